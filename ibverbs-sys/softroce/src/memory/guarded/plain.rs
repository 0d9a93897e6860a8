//! The accesses on processors other than x86-64 and ARM64, and for tools that do not support
//! assembly. These accesses are not guarded: a fault ends the program.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Missing;

/// Does nothing: with this implementation, an access to unmapped memory ends the program. The
/// implementations for x86-64 and ARM64 install a signal handler, and such an access then returns
/// an error.
pub(crate) fn install() {}

/// Defines a function that copies a fixed number of bytes (1, 2, 4 or 8) from `from` to `to`.
macro_rules! copy {
    ($(#[$doc:meta])* $name:ident, $atomic:ident, $integer:ident) => {
        $(#[$doc])*
        /// The store to `to` has release ordering if `RELEASE` is set and `to` is aligned, and
        /// otherwise no ordering. Always returns `Ok`: an access to unmapped memory ends the
        /// program.
        ///
        /// # Safety
        /// The bytes of both ranges must be mapped, and those at `to` writable. The caller must
        /// ensure that no references to them exist, except to atomics.
        pub(crate) unsafe fn $name<const RELEASE: bool>(
            from: usize,
            to: usize,
        ) -> Result<(), Missing> {
            let source = ptr::with_exposed_provenance_mut::<$integer>(from);
            let target = ptr::with_exposed_provenance_mut::<$integer>(to);
            // SAFETY: the caller guarantees the conditions for both ranges. An unaligned access may
            // race with another thread; its result is then a mix of bytes.
            unsafe {
                let value = if source.is_aligned() {
                    $atomic::from_ptr(source).load(Ordering::Relaxed)
                } else {
                    source.read_unaligned()
                };
                if !target.is_aligned() {
                    target.write_unaligned(value);
                } else if RELEASE {
                    $atomic::from_ptr(target).store(value, Ordering::Release);
                } else {
                    $atomic::from_ptr(target).store(value, Ordering::Relaxed);
                }
            }
            Ok(())
        }
    };
}

copy! {
    /// Copies eight bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_8, AtomicU64, u64
}
copy! {
    /// Copies four bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_4, AtomicU32, u32
}
copy! {
    /// Copies two bytes from `from` to `to`, by a single load and a single store where they are
    /// aligned.
    copy_2, AtomicU16, u16
}
copy! {
    /// Copies one byte from `from` to `to`.
    copy_1, AtomicU8, u8
}

/// Copies `length` bytes from the address `from` to the address `to` as words of eight bytes, in
/// ascending order. An aligned word is copied by a single load and a single store. Always returns
/// `true`, unlike the variants for other processors: an access to unmapped memory ends the program.
///
/// # Safety
/// `length` must be a multiple of eight. The bytes of both ranges must be mapped, and those at `to`
/// writable. The caller must ensure that no references to them exist, except to atomics.
pub(crate) unsafe fn copy_words(from: usize, to: usize, length: usize) -> bool {
    (0..length).step_by(8).all(|offset| {
        // SAFETY: the caller guarantees the conditions for both ranges.
        unsafe { copy_8::<false>(from + offset, to + offset) }.is_ok()
    })
}

/// Atomically replaces the eight bytes at `address` by `swap` if they equal `compare`. Returns the
/// previous value. Never returns an error: an access to unmapped memory ends the program.
///
/// # Safety
/// `address` must be a multiple of eight, and the bytes mapped and writable. The caller must ensure
/// that no references to them exist, except to an atomic.
pub(crate) unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Missing> {
    // SAFETY: the caller guarantees the conditions for `address`.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address)) };
    let order = Ordering::SeqCst;
    let before = word.compare_exchange(compare, swap, order, order);
    Ok(before.unwrap_or_else(|before| before))
}

/// Atomically adds `add` to the eight-byte integer at `address`. Returns the previous value. Never
/// returns an error: an access to unmapped memory ends the program.
///
/// # Safety
/// `address` must be a multiple of eight, and the bytes mapped and writable. The caller must ensure
/// that no references to them exist, except to an atomic.
pub(crate) unsafe fn fetch_add(address: usize, add: u64) -> Result<u64, Missing> {
    // SAFETY: the caller guarantees the conditions for `address`.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address)) };
    Ok(word.fetch_add(add, Ordering::SeqCst))
}
