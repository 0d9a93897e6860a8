//! Copies from and to memory that a peer or a device may be writing at the same time.
//!
//! Every access is a relaxed atomic access to one byte or to one aligned eight-byte word, or has
//! the effect of such accesses in any order. A concurrent write by a device or a thread can
//! therefore change the values that are read, but never causes undefined behaviour.
//!
//! Two threads may access a byte at the same time with different sizes, one as a byte and one as a
//! part of a word. The memory model of Rust and C++ does not define such mixed-size accesses. LLVM
//! and processors define them for each byte separately.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();
/// Minimum length, in bytes, of a copy that uses the string instruction `rep movsb`. Shorter copies
/// use a loop, because starting the instruction takes longer than a short loop.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const STRING_LEN: usize = 1 << 10;

/// Copies `to.len()` bytes into `to` from memory at `from`, to which a device or another thread can
/// write at the same time. Copies eight-byte words where possible.
///
/// # Safety
///
/// `from` must be valid for reads of `to.len()` bytes, and no Rust reference to these bytes may
/// exist.
pub(super) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if to.len() >= STRING_LEN {
        // SAFETY: the caller guarantees `from`; `to` is an exclusive borrow of that many bytes.
        return unsafe { copy_string(from, to.as_mut_ptr(), to.len()) };
    }
    let head = from.align_offset(WORD).min(to.len());
    let (first, rest) = to.split_at_mut(head);
    // SAFETY: the caller guarantees the whole range; `head` is inside it.
    let middle = unsafe { copy_out_bytes(from, first) };
    let mut words = rest.chunks_exact_mut(WORD);
    let mut at = middle;
    for word in &mut words {
        // SAFETY: `at` is aligned to a word and inside the range that the caller guarantees.
        let value = unsafe { (*at.cast::<AtomicU64>()).load(Ordering::Relaxed) };
        word.copy_from_slice(&value.to_ne_bytes());
        // SAFETY: the result is inside the range, or one past its end.
        at = unsafe { at.add(WORD) };
    }
    // SAFETY: the remaining bytes end where the range ends.
    unsafe { copy_out_bytes(at, words.into_remainder()) };
}

/// Copies the bytes of `from` into memory at `to`, which a device or another thread can access at
/// the same time. Copies eight-byte words where possible.
///
/// # Safety
///
/// `to` must be valid for writes of `from.len()` bytes, and no Rust reference to these bytes may
/// exist.
pub(super) unsafe fn copy_in(from: &[u8], to: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if from.len() >= STRING_LEN {
        // SAFETY: the caller guarantees `to`; `from` is a borrow of that many bytes.
        return unsafe { copy_string(from.as_ptr(), to, from.len()) };
    }
    let head = to.align_offset(WORD).min(from.len());
    let (first, rest) = from.split_at(head);
    // SAFETY: the caller guarantees the whole range; `head` is inside it.
    let mut at = unsafe { copy_in_bytes(first, to) };
    let mut words = rest.chunks_exact(WORD);
    for word in &mut words {
        let value = u64::from_ne_bytes(word.try_into().expect("a chunk is a word"));
        // SAFETY: `at` is aligned to a word and inside the range that the caller guarantees.
        unsafe { (*at.cast::<AtomicU64>()).store(value, Ordering::Relaxed) };
        // SAFETY: the result is inside the range, or one past its end.
        at = unsafe { at.add(WORD) };
    }
    // SAFETY: the remaining bytes end where the range ends.
    unsafe { copy_in_bytes(words.remainder(), at) };
}

/// Copies `len` bytes with the string instruction `rep movsb`, which copies long ranges in whole
/// cache lines. Another thread or a device may write to the memory during the copy: the compiler
/// assumes nothing about the accesses of an assembly block. This function is not compiled for Miri,
/// which cannot execute assembly.
///
/// # Safety
///
/// `from` must be valid for reads and `to` for writes of `len` bytes, and the ranges must not
/// overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the instruction reads and writes only the ranges that the caller guarantees. The
    // direction flag is clear at the start of an assembly block.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `to.len()` bytes into `to` from memory at `from`, to which a device or another thread can
/// write at the same time. Copies one byte at a time. Returns the address after the last byte that
/// was read.
///
/// # Safety
///
/// `from` must be valid for reads of `to.len()` bytes, and no Rust reference to these bytes may
/// exist.
unsafe fn copy_out_bytes(mut from: *const u8, to: &mut [u8]) -> *const u8 {
    for byte in to {
        // SAFETY: `from` is inside the range that the caller guarantees.
        *byte = unsafe { (*from.cast::<AtomicU8>()).load(Ordering::Relaxed) };
        // SAFETY: the result is inside the range, or one past its end.
        from = unsafe { from.add(1) };
    }
    from
}

/// Copies the bytes of `from` into memory at `to`, which a device or another thread can access at
/// the same time. Copies one byte at a time. Returns the address after the last byte that was
/// written.
///
/// # Safety
///
/// `to` must be valid for writes of `from.len()` bytes, and no Rust reference to these bytes may
/// exist.
unsafe fn copy_in_bytes(from: &[u8], mut to: *mut u8) -> *mut u8 {
    for byte in from {
        // SAFETY: `to` is inside the range that the caller guarantees.
        unsafe { (*to.cast::<AtomicU8>()).store(*byte, Ordering::Relaxed) };
        // SAFETY: the result is inside the range, or one past its end.
        to = unsafe { to.add(1) };
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_and_length_round_trips() {
        let mut memory = [0_u8; STRING_LEN + 64];
        let pattern: Vec<u8> = (0..STRING_LEN + 40).map(|at| (at % 199) as u8).collect();
        for offset in 0..16 {
            for len in (0..=40).chain(STRING_LEN - 2..=STRING_LEN + 10) {
                memory.fill(0xee);
                let start = memory.as_mut_ptr();
                let mut back = vec![0; len];
                // SAFETY: `offset + len` is less than the length of `memory`; no reference is in
                // use.
                unsafe {
                    copy_in(&pattern[..len], start.add(offset));
                    copy_out(start.add(offset), &mut back);
                }
                assert_eq!(back, pattern[..len]);
                assert!(memory[..offset].iter().all(|&byte| byte == 0xee));
                assert!(memory[offset + len..].iter().all(|&byte| byte == 0xee));
            }
        }
    }
}
