//! The accesses on other processors, and for tools that do not support assembly. A fault ends the program.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::Missing;

/// Does nothing, as nothing is guarded.
pub(crate) fn install() {}

macro_rules! copy {
    ($(#[$doc:meta])* $name:ident, $atomic:ident, $integer:ident) => {
        $(#[$doc])*
        /// `RELEASE`: the store is as one with `Release`.
        ///
        /// # Safety
        /// The bytes at both places must be mapped, and those at `to` writable. The caller makes sure that nobody holds
        /// a reference to them, unless it is to atomics.
        pub(crate) unsafe fn $name<const RELEASE: bool>(
            from: usize,
            to: usize,
        ) -> Result<(), Missing> {
            let source = ptr::with_exposed_provenance_mut::<$integer>(from);
            let target = ptr::with_exposed_provenance_mut::<$integer>(to);
            // SAFETY: the caller's promise. An unaligned access is to memory that only this thread uses, or may be
            // torn.
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
    /// Copies eight bytes: by one access each, where they are aligned.
    copy_8, AtomicU64, u64
}
copy! {
    /// Copies four bytes: by one access each, where they are aligned.
    copy_4, AtomicU32, u32
}
copy! {
    /// Copies two bytes: by one access each, where they are aligned.
    copy_2, AtomicU16, u16
}
copy! {
    /// Copies a byte.
    copy_1, AtomicU8, u8
}

/// Copies words in ascending order, each by one access where it is aligned. Returns whether all could be accessed.
///
/// # Safety
/// `length` must be a multiple of eight. The bytes at both places must be mapped, and those at `to` writable. The
/// caller makes sure that nobody holds a reference to them, unless it is to atomics.
pub(crate) unsafe fn copy_words(from: usize, to: usize, length: usize) -> bool {
    (0..length).step_by(8).all(|offset| {
        // SAFETY: the caller's promise.
        unsafe { copy_8::<false>(from + offset, to + offset) }.is_ok()
    })
}

/// Stores `swap` in the word at `address` if that is `compare`, as one operation. Returns the word from before.
///
/// # Safety
/// `address` must be a multiple of eight, and the bytes mapped and writable. The caller makes sure that nobody holds a
/// reference to them, unless it is to an atomic.
pub(crate) unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Missing> {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address)) };
    let order = Ordering::SeqCst;
    let before = word.compare_exchange(compare, swap, order, order);
    Ok(before.unwrap_or_else(|before| before))
}

/// Adds to the word at `address`, as one operation. Returns the word from before.
///
/// # Safety
/// `address` must be a multiple of eight, and the bytes mapped and writable. The caller makes sure that nobody holds a
/// reference to them, unless it is to an atomic.
pub(crate) unsafe fn fetch_add(address: usize, add: u64) -> Result<u64, Missing> {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(address)) };
    Ok(word.fetch_add(add, Ordering::SeqCst))
}
