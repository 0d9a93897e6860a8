//! The guarded accesses on x86-64. Every load has acquire and every store release ordering.

use std::arch::asm;

use super::Missing;
pub(crate) use super::handler::install;
use super::table::entry;

/// Defines a function that copies a fixed number of bytes (1, 2, 4 or 8) from `from` to `to`.
macro_rules! copy {
    ($(#[$doc:meta])* $name:ident, $load:literal, $store:literal) => {
        $(#[$doc])*
        /// The store to `to` always has release ordering on this processor, even if `RELEASE` is
        /// not set. Fails if the bytes at `from` cannot be read, or the bytes at `to` cannot be
        /// written.
        ///
        /// # Safety
        /// The caller must ensure that no references to the bytes of either range exist, except to
        /// atomics.
        #[inline(always)]
        pub(crate) unsafe fn $name<const RELEASE: bool>(
            from: usize,
            to: usize,
        ) -> Result<(), Missing> {
            // SAFETY: the caller guarantees that no references to the bytes exist. After a fault,
            // the thread continues at a label.
            unsafe {
                asm!(
                    concat!("2: ", $load),
                    concat!("3: ", $store),
                    "4:",
                    entry!("2b", "3b", "{source}"),
                    entry!("3b", "4b", "{target}"),
                    from = in(reg) from,
                    to = in(reg) to,
                    value = out(reg) _,
                    source = label { return Err(Missing::Source) },
                    target = label { return Err(Missing::Target) },
                    options(nostack, preserves_flags)
                );
            }
            Ok(())
        }
    };
}

copy! {
    /// Copies eight bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_8, "mov {value}, qword ptr [{from}]", "mov qword ptr [{to}], {value}"
}
copy! {
    /// Copies four bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_4, "mov {value:e}, dword ptr [{from}]", "mov dword ptr [{to}], {value:e}"
}
copy! {
    /// Copies two bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_2, "movzx {value:e}, word ptr [{from}]", "mov word ptr [{to}], {value:x}"
}
copy! {
    /// Copies one byte from `from` to `to`.
    copy_1, "movzx {value:e}, byte ptr [{from}]", "mov byte ptr [{to}], {value:l}"
}

/// Minimum length in bytes of copies that use the processor's string instruction. For shorter
/// copies, a loop is faster.
pub(crate) const MANY: usize = 512;

/// Copies `length` bytes from the address `from` to the address `to` as words of eight bytes. An
/// aligned word is copied by a single access. Returns `false` if some bytes cannot be accessed.
/// Some words can then have been copied.
///
/// Fewer than [`MANY`] bytes become visible in ascending order, more bytes in any order. In both
/// cases, all bytes become visible before later stores of this thread (Intel SDM volume 3,
/// "Fast-String Operation and Out-of-Order Stores").
///
/// # Safety
/// `length` must be a multiple of eight, and not 0. The caller must ensure that no references to
/// the bytes of either range exist, except to atomics.
#[inline(always)]
pub(crate) unsafe fn copy_words(from: usize, to: usize, length: usize) -> bool {
    if length >= MANY {
        // SAFETY: the caller guarantees the conditions for both ranges. The direction flag is clear
        // in Rust code.
        unsafe {
            asm!(
                "2: rep movsq",
                "3:",
                entry!("2b", "3b", "{missing}"),
                inout("rcx") length / 8 => _,
                inout("rdi") to => _,
                inout("rsi") from => _,
                missing = label { return false },
                options(nostack, preserves_flags)
            );
        }
    } else {
        // SAFETY: the caller guarantees the conditions for both ranges.
        unsafe {
            // Copies four words at a time, and then the rest one by one.
            asm!(
                "2: sub {left}, 32",
                "jb 4f",
                "3: mov {value}, qword ptr [{from}]",
                "mov qword ptr [{to}], {value}",
                "mov {value}, qword ptr [{from} + 8]",
                "mov qword ptr [{to} + 8], {value}",
                "mov {value}, qword ptr [{from} + 16]",
                "mov qword ptr [{to} + 16], {value}",
                "mov {value}, qword ptr [{from} + 24]",
                "mov qword ptr [{to} + 24], {value}",
                "add {from}, 32",
                "add {to}, 32",
                "sub {left}, 32",
                "jae 3b",
                "4: add {left}, 32",
                "jz 6f",
                "5: mov {value}, qword ptr [{from}]",
                "mov qword ptr [{to}], {value}",
                "add {from}, 8",
                "add {to}, 8",
                "sub {left}, 8",
                "jnz 5b",
                "6:",
                entry!("2b", "6b", "{missing}"),
                left = inout(reg) length => _,
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                value = out(reg) _,
                missing = label { return false },
                options(nostack)
            );
        }
    }
    true
}

/// Atomically replaces the eight bytes at `address` by `swap` if they equal `compare`. Returns the
/// previous value, or an error if the bytes are not mapped or not writable.
///
/// # Safety
/// `address` must be a multiple of eight. The caller must ensure that no references to the bytes
/// exist, except to an atomic.
pub(crate) unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Missing> {
    let mut before = 0_u64;
    // SAFETY: the caller guarantees the conditions for `address`. The previous word is stored in a
    // local variable.
    unsafe {
        asm!(
            "2: lock cmpxchg qword ptr [{address}], {swap}",
            "3: mov qword ptr [{before}], rax",
            entry!("2b", "3b", "{missing}"),
            address = in(reg) address,
            swap = in(reg) swap,
            before = in(reg) &raw mut before,
            inout("rax") compare => _,
            missing = label { return Err(Missing::Target) },
            options(nostack)
        );
    }
    Ok(before)
}

/// Atomically adds `add` to the eight-byte integer at `address`. Returns the previous value. Fails
/// if the bytes are not mapped or not writable.
///
/// # Safety
/// `address` must be a multiple of eight. The caller must ensure that no references to the bytes
/// exist, except to an atomic.
pub(crate) unsafe fn fetch_add(address: usize, add: u64) -> Result<u64, Missing> {
    let mut before = 0_u64;
    // SAFETY: the caller guarantees the conditions for `address`. The previous word is stored in a
    // local variable.
    unsafe {
        asm!(
            "2: lock xadd qword ptr [{address}], {value}",
            "3: mov qword ptr [{before}], {value}",
            entry!("2b", "3b", "{missing}"),
            address = in(reg) address,
            before = in(reg) &raw mut before,
            value = inout(reg) add => _,
            missing = label { return Err(Missing::Target) },
            options(nostack)
        );
    }
    Ok(before)
}

/// Returns access to the saved instruction pointer of the thread that a signal has interrupted. The
/// thread continues at this address after the signal handler.
///
/// # Safety
/// `context` must be the third argument of the signal's handler, and must stay valid while the
/// result is used.
pub(super) unsafe fn instruction<'a>(context: *mut libc::ucontext_t) -> Instruction<'a> {
    // SAFETY: the caller guarantees that `context` is valid.
    let register = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
    Instruction(register)
}

/// Access of a signal handler to the instruction pointer of the interrupted thread. The thread
/// continues at the address that the handler sets.
#[derive(Debug)]
pub(super) struct Instruction<'a>(&'a mut i64);

impl Instruction<'_> {
    pub(super) fn address(&self) -> usize {
        self.0.cast_unsigned() as usize
    }

    pub(super) fn set(&mut self, address: usize) {
        *self.0 = (address as u64).cast_signed();
    }
}
