//! The functions of the C library that this library replaces.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, c_char, c_int, ssize_t};

/// A function of the C library, or of the next preloaded library that replaces it.
pub(crate) struct Next {
    name: &'static CStr,
    /// Address of the function; null before the function is found.
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the address of the function, or `None` if this C library does not have it.
    #[inline]
    pub(crate) fn find(&self) -> Option<*const ()> {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            return self.look_up();
        }
        Some(found.cast_const().cast())
    }

    /// Looks up the function. This happens when the library is loaded, or earlier if the
    /// initialization of another library calls the function. A lookup that succeeds does not
    /// allocate memory.
    #[cold]
    fn look_up(&self) -> Option<*const ()> {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        (!found.is_null()).then(|| found.cast_const().cast())
    }
}

/// Result of a function of the C library that reports an error by a special value.
pub(crate) trait ErrorValue {
    /// The value that the function returns after an error. The error number is then in `errno`.
    const FAILED: Self;
}

impl ErrorValue for c_int {
    const FAILED: Self = -1;
}

impl ErrorValue for ssize_t {
    const FAILED: Self = -1;
}

impl ErrorValue for *mut libc::DIR {
    const FAILED: Self = ptr::null_mut();
}

impl ErrorValue for *mut FILE {
    const FAILED: Self = ptr::null_mut();
}

impl ErrorValue for *mut c_char {
    const FAILED: Self = ptr::null_mut();
}

/// Sets `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the C library returns a valid pointer to the calling thread's variable.
    unsafe { *libc::__errno_location() = number };
}

/// Returns `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Calls the C library's function with the name and the type of this library's function:
/// `next!(open(path, flags))`. Fails with `ENOSYS` if the C library does not have the function.
macro_rules! next {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        static NEXT: $crate::next::Next = {
            const NAME: &str = concat!(stringify!($name), "\0");
            match ::std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
                Ok(name) => $crate::next::Next::new(name),
                Err(_) => panic!("a name has no zero inside"),
            }
        };
        /// Finds the function when the library is loaded, so that later calls need no lookup.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static FIND: extern "C" fn() = {
            extern "C" fn find() {
                NEXT.find();
            }
            find
        };
        let mut function: unsafe extern "C" fn($($crate::next::argument!($argument)),*) -> _ = $name;
        match NEXT.find() {
            Some(found) => {
                // The C library's function has the same type as this library's function with the
                // same name.
                function = $crate::next::typed(function, found);
                function($($argument),*)
            }
            None => {
                $crate::next::set_errno(::libc::ENOSYS);
                $crate::next::ErrorValue::FAILED
            }
        }
    }};
}
pub(crate) use next;

/// Expands to `_` for each argument of [`next!`]: the type of the function determines the type of
/// the argument.
macro_rules! argument {
    ($argument:expr) => {
        _
    };
}
pub(crate) use argument;

/// Converts the address of a function to a function pointer of the same type as `_ours`.
///
/// # Safety
/// `found` must be a function of the type `F`, and `F` a function pointer type.
pub(crate) unsafe fn typed<F: Copy>(_ours: F, found: *const ()) -> F {
    const { assert!(size_of::<F>() == size_of::<*const ()>()) };
    // SAFETY: the caller guarantees the type of the function. A function pointer is an address.
    unsafe { std::mem::transmute_copy(&found) }
}
