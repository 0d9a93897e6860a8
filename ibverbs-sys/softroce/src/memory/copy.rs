//! The only place that touches the program's memory itself; [`kernel`](super::kernel) lets the kernel do it.
//!
//! Other threads, and peers, may write and read the same bytes at the same time: a program that
//! waits for a message by looking at its last byte is as common as one that polls. So no reference to
//! such memory is ever made, and every access is an atomic one: what races is a mix of old and new
//! values, and never undefined behaviour on this side.
//!
//! Copies ascend, take the largest aligned piece each time, and write the last piece with
//! `Release`: who sees it sees the whole message. Eight aligned bytes are one access.

use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Copies `out.len()` bytes from `address` on.
///
/// # Safety
/// The bytes are mapped.
#[inline]
pub(crate) unsafe fn read(address: usize, out: &mut [u8]) {
    match <&mut [u8; 8]>::try_from(&mut *out) {
        Ok(word) if address.is_multiple_of(8) => {
            // SAFETY: the caller's promise, and it is aligned.
            let value = unsafe { atomic::<AtomicU64>(address) }.load(Ordering::Relaxed);
            *word = value.to_ne_bytes();
        }
        // SAFETY: the caller's promise.
        _ => unsafe { read_pieces(address, out) },
    }
}

/// As [`read`].
///
/// # Safety
/// As that of [`read`].
unsafe fn read_pieces(address: usize, out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let (place, rest) = (address + done, &mut out[done..]);
        // SAFETY: each piece is inside the caller's bytes and aligned, as `piece` says.
        done += unsafe {
            match piece(place, rest.len()) {
                8 => {
                    let words = rest.len() & !7;
                    read_words(place, &mut rest[..words]);
                    words
                }
                4 => {
                    let value = atomic::<AtomicU32>(place).load(Ordering::Relaxed);
                    rest[..4].copy_from_slice(&value.to_ne_bytes());
                    4
                }
                2 => {
                    let value = atomic::<AtomicU16>(place).load(Ordering::Relaxed);
                    rest[..2].copy_from_slice(&value.to_ne_bytes());
                    2
                }
                _ => {
                    rest[0] = atomic::<AtomicU8>(place).load(Ordering::Relaxed);
                    1
                }
            }
        };
    }
}

/// Copies `data` to the bytes from `address` on: ascending, the last piece when all others can be
/// seen.
///
/// # Safety
/// The bytes are mapped and may be written.
#[inline]
pub(crate) unsafe fn write(address: usize, data: &[u8]) {
    match <[u8; 8]>::try_from(data) {
        Ok(word) if address.is_multiple_of(8) => {
            // SAFETY: the caller's promise, and it is aligned.
            let place = unsafe { atomic::<AtomicU64>(address) };
            place.store(u64::from_ne_bytes(word), Ordering::Release);
        }
        // SAFETY: the caller's promise.
        _ => unsafe { write_pieces(address, data) },
    }
}

/// As [`write`](fn@write).
///
/// # Safety
/// As that of [`write`](fn@write).
unsafe fn write_pieces(address: usize, data: &[u8]) {
    let mut done = 0;
    while done < data.len() {
        let (place, rest) = (address + done, &data[done..]);
        let size = piece(place, rest.len());
        let is_last = rest.len() == size;
        let order = if is_last {
            Ordering::Release
        } else {
            Ordering::Relaxed
        };
        // SAFETY: each piece is inside the caller's bytes and aligned, as `piece` says.
        done += unsafe {
            match (size, rest) {
                (8, &[a, b, c, d, e, f, g, h]) => {
                    let value = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                    atomic::<AtomicU64>(place).store(value, order);
                    8
                }
                (8, rest) => {
                    // All words but one that would be the last piece.
                    let words = (rest.len() - 1) & !7;
                    write_words(place, &rest[..words]);
                    words
                }
                (4, &[a, b, c, d, ..]) => {
                    atomic::<AtomicU32>(place).store(u32::from_ne_bytes([a, b, c, d]), order);
                    4
                }
                (2, &[a, b, ..]) => {
                    atomic::<AtomicU16>(place).store(u16::from_ne_bytes([a, b]), order);
                    2
                }
                (_, rest) => {
                    atomic::<AtomicU8>(place).store(rest[0], order);
                    1
                }
            }
        };
    }
}

/// Copies `length` bytes from one place to another: ascending, the last piece when all others can be seen. A piece
/// that is aligned at both places is one access at each.
///
/// # Safety
/// The bytes at both places are mapped, and those at `to` may be written.
#[inline]
pub(crate) unsafe fn copy(from: usize, to: usize, length: usize) {
    if length == 8 && (from | to).is_multiple_of(8) {
        // SAFETY: the caller's promise, and both are aligned.
        unsafe {
            let value = atomic::<AtomicU64>(from).load(Ordering::Relaxed);
            atomic::<AtomicU64>(to).store(value, Ordering::Release);
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { copy_pieces(from, to, length) };
    }
}

/// As [`copy`].
///
/// # Safety
/// As that of [`copy`].
unsafe fn copy_pieces(from: usize, to: usize, length: usize) {
    let mut done = 0;
    while done < length {
        let (source, place, rest) = (from + done, to + done, length - done);
        let size = piece(place, rest);
        if size == 8 && rest > 8 {
            // All words but one that would be the last piece.
            let words = (rest - 1) & !7;
            // SAFETY: inside the caller's bytes, and `place` is aligned.
            unsafe { move_words(place, source, words) };
            done += words;
            continue;
        }
        let order = if rest == size {
            Ordering::Release
        } else {
            Ordering::Relaxed
        };
        // SAFETY: each piece is inside the caller's bytes and aligned where it is written, as `piece` says.
        unsafe {
            match size {
                8 => {
                    let value = u64::from_ne_bytes(load(source));
                    atomic::<AtomicU64>(place).store(value, order);
                }
                4 => {
                    let value = u32::from_ne_bytes(load(source));
                    atomic::<AtomicU32>(place).store(value, order);
                }
                2 => {
                    let value = u16::from_ne_bytes(load(source));
                    atomic::<AtomicU16>(place).store(value, order);
                }
                _ => {
                    let [value] = load(source);
                    atomic::<AtomicU8>(place).store(value, order);
                }
            }
        }
        done += size;
    }
}

/// The `N` bytes at `address`, by one access if they are a word and aligned.
///
/// # Safety
/// The bytes are mapped.
unsafe fn load<const N: usize>(address: usize) -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: the caller's promise.
    unsafe {
        if N == 8 && address.is_multiple_of(8) {
            let value = atomic::<AtomicU64>(address).load(Ordering::Relaxed);
            bytes.copy_from_slice(&value.to_ne_bytes());
        } else {
            read(address, &mut bytes);
        }
    }
    bytes
}

/// Copies whole words to the bytes from `to` on.
///
/// # Safety
/// The bytes at both places are mapped, those at `to` may be written, and `to` is aligned to words. The length is a
/// multiple of theirs.
unsafe fn move_words(to: usize, from: usize, length: usize) {
    // SAFETY: the caller's promise, and alignment that was looked at.
    unsafe {
        if length >= MANY || !from.is_multiple_of(8) {
            return copy_words(to, from, length);
        }
        for offset in (0..length).step_by(8) {
            let value = atomic::<AtomicU64>(from + offset).load(Ordering::Relaxed);
            atomic::<AtomicU64>(to + offset).store(value, Ordering::Relaxed);
        }
    }
}

/// From so many bytes on the processor's own copy is faster than a loop of words.
const MANY: usize = 512;

/// Copies whole words from `address` on.
///
/// # Safety
/// The bytes are mapped, and `address` is aligned to words. The length is a multiple of theirs.
unsafe fn read_words(address: usize, out: &mut [u8]) {
    if out.len() >= MANY {
        // SAFETY: `out` has that many bytes of its own, and the caller promises as many to read.
        return unsafe { copy_words(out.as_mut_ptr().expose_provenance(), address, out.len()) };
    }
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        // SAFETY: the caller's promise.
        let value = unsafe { atomic::<AtomicU64>(address + 8 * i) }.load(Ordering::Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Copies whole words to the bytes from `address` on.
///
/// # Safety
/// The bytes are mapped and may be written, and `address` is aligned to words. The length is a
/// multiple of theirs.
unsafe fn write_words(address: usize, data: &[u8]) {
    if data.len() >= MANY {
        // SAFETY: `data` has that many bytes, and the caller promises as many to write.
        return unsafe { copy_words(address, data.as_ptr().expose_provenance(), data.len()) };
    }
    for (i, word) in data.chunks_exact(8).enumerate() {
        let value = u64::from_ne_bytes(word.try_into().unwrap_or_default());
        // SAFETY: the caller's promise.
        unsafe { atomic::<AtomicU64>(address + 8 * i) }.store(value, Ordering::Relaxed);
    }
}

/// Copies words as the processor likes to. They may be seen in any order, but all of them before
/// what is stored afterwards: stores do not overtake those of an earlier string operation (Intel
/// SDM volume 3, "Fast-String Operation and Out-of-Order Stores"). To the compiler this is no access
/// that could race.
///
/// # Safety
/// `length` is a multiple of eight; so many bytes can be read at `from` and written at `to`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_words(to: usize, from: usize, length: usize) {
    // SAFETY: the caller's promise; the direction flag is clear wherever Rust code runs.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") length / 8 => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies words in ascending order.
///
/// # Safety
/// `length` is a multiple of eight; so many bytes can be read at `from` and written at `to`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_words(to: usize, from: usize, length: usize) {
    for offset in (0..length).step_by(8) {
        // SAFETY: the caller's promise. The side that is private to this thread may be unaligned, and
        // a volatile access of bytes takes any alignment.
        unsafe {
            let from = ptr::with_exposed_provenance::<[u8; 8]>(from + offset);
            let to = ptr::with_exposed_provenance_mut::<[u8; 8]>(to + offset);
            to.write_volatile(from.read_volatile());
        }
    }
}

/// The eight bytes at `address` as a word. None: it is not aligned.
///
/// # Safety
/// The bytes are mapped and may be written, for as long as the word is around.
pub(super) unsafe fn word<'a>(address: usize) -> Option<&'a AtomicU64> {
    // SAFETY: the caller's promise, and it is aligned.
    (address.is_multiple_of(align_of::<AtomicU64>())).then(|| unsafe { atomic(address) })
}

/// The size of the largest piece that is aligned at `address` and not longer than `length`, which is not 0.
fn piece(address: usize, length: usize) -> usize {
    let aligned = 1 << address.trailing_zeros().min(3);
    let fits = 1 << length.ilog2().min(3);
    aligned.min(fits)
}

/// # Safety
/// The bytes at `address` are mapped, and it is aligned.
unsafe fn atomic<'a, T>(address: usize) -> &'a T {
    // SAFETY: the caller's promise; only atomic types are asked for, whose values are all valid.
    unsafe { &*ptr::with_exposed_provenance::<T>(address) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{DeviceMemory, Span};
    use super::*;

    fn memory(length: u64) -> (Arc<DeviceMemory>, Span) {
        let memory = DeviceMemory::new(length).unwrap();
        let span = Span::device(&memory, 0, length).unwrap();
        (memory, span)
    }

    #[test]
    fn every_length_at_every_alignment_arrives_and_nothing_beside_it() {
        const SIZE: usize = 2048;
        let many = [MANY - 8, MANY - 1, MANY, MANY + 1, MANY + 8, 1033];
        for offset in 0..17_usize {
            for length in (0..49).chain(many) {
                let (_memory, span) = memory(SIZE as u64);
                span.write(0, &[0xee; SIZE]).unwrap();
                let data: Vec<u8> = (0..length).map(|place| (place % 199) as u8).collect();
                span.write(offset as u64, &data).unwrap();
                let mut all = [0; SIZE];
                span.read(0, &mut all).unwrap();
                let end = offset + length;
                assert_eq!(all[offset..end], data);
                let mut beside = all[..offset].iter().chain(&all[end..]);
                assert!(beside.all(|byte| *byte == 0xee));
                let mut back = vec![0; length];
                span.read(offset as u64, &mut back).unwrap();
                assert_eq!(back, data);
            }
        }
    }

    #[test]
    fn every_length_is_copied_between_all_alignments() {
        const SIZE: usize = 1280;
        let many = [MANY - 1, MANY, MANY + 9, 1033];
        for (from, to) in (0..9_usize).flat_map(|from| (0..9_usize).map(move |to| (from, to))) {
            for length in (0..33).chain(many) {
                let ((_one, source), (_other, target)) = (memory(SIZE as u64), memory(SIZE as u64));
                let data: Vec<u8> = (0..SIZE).map(|place| (place % 199) as u8).collect();
                source.write(0, &data).unwrap();
                target.write(0, &[0xee; SIZE]).unwrap();
                source
                    .copy_to(from as u64, &target, to as u64, length)
                    .unwrap();
                let mut all = [0; SIZE];
                target.read(0, &mut all).unwrap();
                assert_eq!(all[to..to + length], data[from..from + length]);
                let mut beside = all[..to].iter().chain(&all[to + length..]);
                assert!(beside.all(|byte| *byte == 0xee));
            }
        }
    }

    /// Who sees the last byte of a message sees all of it.
    #[test]
    fn the_last_piece_comes_last() {
        const LENGTH: usize = 1021;
        let (_memory, span) = memory(1024);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=200_u8 {
                    span.write(1, &[round; LENGTH]).unwrap();
                }
            });
            let mut bytes = [0; LENGTH];
            let mut last = 0;
            while last < 200 {
                let mut flag = [0];
                span.read(LENGTH as u64, &mut flag).unwrap();
                std::sync::atomic::fence(Ordering::Acquire);
                last = flag[0];
                span.read(1, &mut bytes).unwrap();
                // The next rounds may have come over it, those before must not be left.
                assert!(bytes.iter().all(|byte| *byte >= last), "{last}: {bytes:?}");
            }
        });
    }
}
