//! The real libibverbs. Softroce calls it for devices of other drivers, and for functions that use
//! no device.
//!
//! The library is opened by its name, or where distributions keep it. `RTLD_NEXT` would find
//! nothing if the linker dropped the library as unneeded, and would find another copy of this crate
//! in a program that links and preloads it. Symbols are looked up only in that library, so a lookup
//! never finds a function of this crate.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_char, c_int};

use super::set_errno;
use crate::per_process::PerProcess;

/// A function of the system's libibverbs, which this crate calls for the devices of other drivers.
/// The function is looked up only once, at the first call.
pub(crate) struct Symbol {
    name: &'static CStr,
    /// Address of the function. Null before the lookup, and [`MISSING`] if the real library lacks
    /// the function.
    found: AtomicPtr<c_void>,
}

impl Symbol {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the address of the function in the system's libibverbs. Returns `None` if that
    /// library is not installed or lacks the function. `ours` is this crate's function with the
    /// same name. If the lookup finds `ours`, also returns `None`, so that the function does not
    /// call itself.
    pub(crate) fn find(&self, ours: *const ()) -> Option<*const ()> {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            found = look_up(self.name).unwrap_or(MISSING);
            if ptr::eq(found.cast_const().cast(), ours) {
                found = MISSING;
            }
            self.found.store(found, Ordering::Release);
        }
        (found != MISSING).then(|| found.cast_const().cast())
    }
}

/// Value that marks a function as missing: the real library does not export it. No function has
/// this address.
const MISSING: *mut c_void = ptr::without_provenance_mut(1);

/// Returns whether the real libibverbs is installed and exports the symbol `name`.
pub(crate) fn has(name: &CStr) -> bool {
    look_up(name).is_some()
}

/// Names by which the system's libibverbs (the real library) is opened, in this order. The bare
/// name comes first. The bare name may lead to softroce itself, if softroce was installed under
/// this name. The other names are in the directories where distributions install libraries.
const NAMES: &[&CStr] = &[
    c"libibverbs.so.1",
    c"/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    c"/usr/lib/aarch64-linux-gnu/libibverbs.so.1",
    c"/usr/lib64/libibverbs.so.1",
    c"/usr/lib/libibverbs.so.1",
    c"/lib64/libibverbs.so.1",
    c"/lib/libibverbs.so.1",
];

fn look_up(name: &CStr) -> Option<*mut c_void> {
    static LIBRARY: PerProcess<usize> = PerProcess::new(|| {
        let ours: *const () = super::device::ibv_get_device_list as *const ();
        let is_real = |&library: &usize| {
            let found = symbol_in(library, c"ibv_get_device_list");
            found.is_some_and(|found| !ptr::eq(found.cast_const().cast(), ours))
        };
        NAMES
            .iter()
            .map(|name| open(name))
            .find(is_real)
            .unwrap_or(0)
    });
    symbol_in(*LIBRARY.get(), name)
}

/// Opens the library with the name `name` by `dlopen`. Returns the handle of the library, which is
/// never closed, or 0 if the library cannot be opened.
fn open(name: &CStr) -> usize {
    // SAFETY: the name is a C string. The constructors of the library only initialize its own data.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    handle.expose_provenance()
}

/// Returns the address of the symbol `name` in the library with the handle `library`. Returns
/// `None` if the handle is 0, or if the library does not have the symbol.
fn symbol_in(library: usize, name: &CStr) -> Option<*mut c_void> {
    if library == 0 {
        return None;
    }
    // SAFETY: the handle is never closed, and the name is a C string.
    let symbol = unsafe { libc::dlsym(ptr::with_exposed_provenance_mut(library), name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// Guard that marks the calling thread as executing a function of the system's libibverbs (the real
/// library), until the guard is dropped. That function can call verbs by their public names, and
/// then calls functions of this crate. Such calls must return only devices of the real library,
/// because the real library reads private parts of a device (`ibv_import_device`).
pub(crate) struct InRealLibrary(PhantomData<*const ()>);

impl InRealLibrary {
    pub(crate) fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(PhantomData)
    }

    /// Returns whether the calling thread is executing a function of the system's libibverbs.
    /// Functions of this crate then know that this library calls them, and not the program.
    pub(crate) fn is() -> bool {
        DEPTH.get() > 0
    }
}

impl Drop for InRealLibrary {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Return type of a verb, with the way in which it reports an error: `c_int` as the error number,
/// `isize` as the negative error number, pointers as null, and `u64` as 0. Used if a call for an
/// object of another driver cannot be passed to the system's libibverbs.
pub(crate) trait Missing: Sized {
    /// Returns the failure value of this type for the error number `errno`, such as a null pointer
    /// or the number itself. Sets errno if verbs with this return type set errno.
    fn failed(errno: c_int) -> Self;

    /// Returns the value by which a verb with this result type reports that the operation is not
    /// supported (`EOPNOTSUPP`).
    fn missing() -> Self {
        Self::failed(libc::EOPNOTSUPP)
    }
}

impl Missing for c_int {
    fn failed(errno: c_int) -> Self {
        set_errno(errno);
        errno
    }
}

impl Missing for isize {
    fn failed(errno: c_int) -> Self {
        set_errno(errno);
        -(errno as isize)
    }
}

impl Missing for u64 {
    fn failed(_: c_int) -> Self {
        0
    }
}

impl Missing for () {
    fn failed(_: c_int) -> Self {}
}

impl<T> Missing for *mut T {
    fn failed(errno: c_int) -> Self {
        set_errno(errno);
        ptr::null_mut()
    }
}

impl Missing for *const c_char {
    fn failed(errno: c_int) -> Self {
        set_errno(errno);
        ptr::null()
    }
}

/// Converts the address `found` of a function to a function pointer of the type `F`. `_ours` is any
/// function of the type `F`, and the compiler infers `F` from this argument.
///
/// # Safety
/// `found` must be a function of the type `F`, and `F` a function pointer type.
pub(crate) unsafe fn typed<F: Copy>(_ours: F, found: *const ()) -> F {
    const { assert!(size_of::<F>() == size_of::<*const ()>()) };
    // SAFETY: the caller guarantees the type of the function. A function pointer is an address.
    unsafe { mem::transmute_copy(&found) }
}

/// Calls the function of the system's libibverbs (the real library) that has the same name and type
/// as a function of this crate: `call!(ibv_xxx(a, b))`. If the library does not have the function,
/// returns the error of [`Missing`], or the expression after `else`.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::abi::real::call!($name($($argument),*) else $crate::abi::real::Missing::missing())
    };
    ($name:ident($($argument:expr),* $(,)?) else $missing:expr) => {{
        static SYMBOL: $crate::abi::real::Symbol = {
            const NAME: &str = concat!(stringify!($name), "\0");
            match ::std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
                Ok(name) => $crate::abi::real::Symbol::new(name),
                Err(_) => panic!("a name has no zero inside"),
            }
        };
        let mut function: unsafe extern "C" fn($($crate::abi::real::argument!($argument)),*) -> _ = $name;
        match SYMBOL.find(function as *const ()) {
            Some(found) => {
                // The real library's function has the same type as this crate's function with the
                // same name.
                function = $crate::abi::real::typed(function, found);
                let _inside = $crate::abi::real::InRealLibrary::enter();
                function($($argument),*)
            }
            None => $missing,
        }
    }};
}
pub(crate) use call;

/// Converts an argument of [`call!`] to the type that this crate's function has for this argument.
macro_rules! argument {
    ($argument:expr) => {
        _
    };
}
pub(crate) use argument;

/// Passes the call of a verb to the system's libibverbs if `context` does not belong to this
/// device: `forward!((*qp).context, ibv_query_qp(qp, attr, mask, init))`. The calling function then
/// returns the result of that library. If the library does not have the function, the result is the
/// error of [`Missing`], or the expression after `else`. If the context was inherited through
/// `fork`, the result is that of [`refused!`]. For a context of this device, does nothing.
macro_rules! forward {
    ($context:expr, $name:ident($($argument:expr),* $(,)?) $(else $missing:expr)?) => {
        if !$crate::abi::is_ours($context) {
            if $crate::abi::fork::is_inherited($context) {
                return $crate::abi::real::refused!($($missing)?);
            }
            return $crate::abi::real::call!($name($($argument),*) $(else $missing)?);
        }
    };
}
pub(crate) use forward;

/// Returns the failure of a verb whose object a child of `fork` has inherited. Sets errno, and
/// reports the error `EIO` in the way of that verb, for example by a null pointer.
macro_rules! refused {
    () => {
        $crate::abi::real::Missing::failed(::libc::EIO)
    };
    ($missing:expr) => {{
        let answer = $missing;
        $crate::abi::set_errno(::libc::EIO);
        answer
    }};
}
pub(crate) use refused;

#[cfg(test)]
mod tests {
    use super::{InRealLibrary, Symbol};

    #[test]
    fn the_real_function_is_found_instead_of_this_librarys() {
        static SYMBOL: Symbol = Symbol::new(c"ibv_wc_status_str");
        let real = SYMBOL
            .find(std::ptr::null())
            .expect("libibverbs.so.1 is installed");
        assert_eq!(SYMBOL.find(std::ptr::null()), Some(real));
        static AGAIN: Symbol = Symbol::new(c"ibv_wc_status_str");
        assert_eq!(AGAIN.find(real), None);
    }

    #[test]
    fn a_missing_function_is_looked_up_once() {
        static SYMBOL: Symbol = Symbol::new(c"ibv_no_such_function");
        assert_eq!(SYMBOL.find(std::ptr::null()), None);
        assert_eq!(SYMBOL.find(std::ptr::null()), None);
    }

    #[test]
    fn nested_calls_are_counted_per_thread() {
        assert!(!InRealLibrary::is());
        let outer = InRealLibrary::enter();
        drop(InRealLibrary::enter());
        assert!(InRealLibrary::is());
        assert!(!std::thread::spawn(InRealLibrary::is).join().unwrap());
        drop(outer);
        assert!(!InRealLibrary::is());
    }
}
