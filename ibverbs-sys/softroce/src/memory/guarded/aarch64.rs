//! The guarded accesses on ARM64.

use std::arch::asm;

use super::Missing;
pub(crate) use super::handler::install;
use super::table::entry;

/// Defines a function that copies a fixed number of bytes (1, 2, 4 or 8) from `from` to `to`.
macro_rules! copy {
    ($(#[$doc:meta])* $name:ident, $load:literal, $store:literal, $release:literal) => {
        $(#[$doc])*
        /// The store to `to` has release ordering if `RELEASE` is set, and otherwise no ordering.
        /// Fails if the bytes at `from` cannot be read, or the bytes at `to` cannot be written.
        ///
        /// # Safety
        /// The caller must ensure that no references to the bytes of either range exist, except to
        /// atomics. With `RELEASE`, the target must be aligned.
        #[inline(always)]
        pub(crate) unsafe fn $name<const RELEASE: bool>(
            from: usize,
            to: usize,
        ) -> Result<(), Missing> {
            macro_rules! access {
                ($how:literal) => {
                    // SAFETY: the caller guarantees that no references to the bytes exist. After a
                    // fault, the thread continues at a label.
                    unsafe {
                        asm!(
                            concat!("2: ", $load),
                            concat!("3: ", $how),
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
                };
            }
            if RELEASE {
                access!($release);
            } else {
                access!($store);
            }
            Ok(())
        }
    };
}

copy! {
    /// Copies eight bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_8, "ldr {value}, [{from}]", "str {value}, [{to}]", "stlr {value}, [{to}]"
}
copy! {
    /// Copies four bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_4, "ldr {value:w}, [{from}]", "str {value:w}, [{to}]", "stlr {value:w}, [{to}]"
}
copy! {
    /// Copies two bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_2, "ldrh {value:w}, [{from}]", "strh {value:w}, [{to}]", "stlrh {value:w}, [{to}]"
}
copy! {
    /// Copies one byte from `from` to `to`.
    copy_1, "ldrb {value:w}, [{from}]", "strb {value:w}, [{to}]", "stlrb {value:w}, [{to}]"
}

/// Copies `length` bytes from the address `from` to the address `to` as words of eight bytes, in
/// ascending order. An aligned word is copied by a single access. Returns `false` if some bytes
/// cannot be accessed. Some of the words can have been copied in this case.
///
/// # Safety
/// `length` must be a multiple of eight, and not 0. The caller must ensure that no references to
/// the bytes of either range exist, except to atomics.
#[inline(always)]
pub(crate) unsafe fn copy_words(from: usize, to: usize, length: usize) -> bool {
    // SAFETY: the caller guarantees the conditions for both ranges.
    unsafe {
        asm!(
            "2: ldr {value}, [{from}], #8",
            "str {value}, [{to}], #8",
            "subs {left}, {left}, #8",
            "b.ne 2b",
            "3:",
            entry!("2b", "3b", "{missing}"),
            left = inout(reg) length => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            value = out(reg) _,
            missing = label { return false },
            options(nostack)
        );
    }
    true
}

/// Atomically replaces the eight bytes at `address` by `swap` if they equal `compare`. Returns
/// their previous value. Fails if the bytes are not mapped, or if they equal `compare` and are not
/// writable.
///
/// # Safety
/// `address` must be a multiple of eight. The caller must ensure that no references to the bytes
/// exist, except to an atomic.
pub(crate) unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Missing> {
    let mut before = 0_u64;
    // SAFETY: the caller guarantees the conditions for `address`. The previous word is stored in a
    // local variable. The barrier also orders the operation before later loads.
    unsafe {
        asm!(
            "2: ldaxr {value}, [{address}]",
            "cmp {value}, {compare}",
            "b.ne 3f",
            "stlxr {failed:w}, {swap}, [{address}]",
            "cbnz {failed:w}, 2b",
            "3: dmb ish",
            "str {value}, [{before}]",
            entry!("2b", "3b", "{missing}"),
            address = in(reg) address,
            compare = in(reg) compare,
            swap = in(reg) swap,
            before = in(reg) &raw mut before,
            value = out(reg) _,
            failed = out(reg) _,
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
    // local variable. The barrier also orders the operation before later loads.
    unsafe {
        asm!(
            "2: ldaxr {value}, [{address}]",
            "add {sum}, {value}, {add}",
            "stlxr {failed:w}, {sum}, [{address}]",
            "cbnz {failed:w}, 2b",
            "3: dmb ish",
            "str {value}, [{before}]",
            entry!("2b", "3b", "{missing}"),
            address = in(reg) address,
            add = in(reg) add,
            before = in(reg) &raw mut before,
            value = out(reg) _,
            sum = out(reg) _,
            failed = out(reg) _,
            missing = label { return Err(Missing::Target) },
            options(nostack)
        );
    }
    Ok(before)
}

/// Returns access to the saved program counter of the thread that a signal has interrupted. The
/// thread continues at this address after the signal handler.
///
/// # Safety
/// `context` must be the third argument of the signal's handler, and must stay valid while the
/// result is used.
pub(super) unsafe fn instruction<'a>(context: *mut libc::ucontext_t) -> Instruction<'a> {
    // SAFETY: the caller guarantees that `context` is valid.
    Instruction(unsafe { &mut (*context).uc_mcontext.pc })
}

/// Access of a signal handler to the program counter of the interrupted thread. The thread
/// continues at the address that the handler sets.
#[derive(Debug)]
pub(super) struct Instruction<'a>(&'a mut u64);

impl Instruction<'_> {
    pub(super) fn address(&self) -> usize {
        *self.0 as usize
    }

    pub(super) fn set(&mut self, address: usize) {
        *self.0 = address as u64;
    }
}
