//! Direct accesses to the program's memory. The only other module that accesses it is
//! [`kernel`](super::kernel), through system calls.
//!
//! Other threads and peers may read and write the same bytes concurrently: many programs wait for a
//! message by polling its last byte, instead of a completion queue. So this module never makes
//! references to such memory, and each access is a single instruction of the
//! [`guarded`](super::guarded) accesses. A race gives a mix of old and new values, and never
//! undefined behaviour in this library. An access to memory that is not mapped any more returns an
//! error.
//!
//! A copy proceeds in ascending order, uses the largest aligned access each time, and makes its
//! last access with `Release`: a thread that sees the last bytes sees the whole message. Eight
//! aligned bytes are a single access.

use super::guarded::{self, Missing};

/// Copies `out.len()` bytes from memory at `address` to `out`. Returns an error if not all bytes
/// are readable. Part of the bytes may then have been copied.
///
/// # Safety
/// The bytes must be registered memory, or memory to which no references exist, except references
/// to atomics.
#[inline]
pub(crate) unsafe fn read(address: usize, out: &mut [u8]) -> Result<(), Missing> {
    let to = out.as_mut_ptr().expose_provenance();
    // SAFETY: the caller guarantees the conditions for `address`. `out` is an exclusive borrow of
    // that many bytes.
    unsafe {
        if out.len() == 8 && address.is_multiple_of(8) {
            guarded::copy_8::<false>(address, to)
        } else {
            copy_pieces::<false>(address, to, out.len())
        }
    }
}

/// Copies `data` to the memory at `address`, in ascending order. The last bytes become visible to
/// other threads after all other bytes. Returns an error if not all bytes at `address` are
/// writable. Part of the bytes may then have been copied.
///
/// # Safety
/// The bytes from `address` on must be registered memory, or memory to which no references exist,
/// except references to atomics.
#[inline]
pub(crate) unsafe fn write(address: usize, data: &[u8]) -> Result<(), Missing> {
    // SAFETY: the caller guarantees the conditions for `address`. `data` is only read.
    unsafe { copy(data.as_ptr().expose_provenance(), address, data.len()) }
}

/// Copies `length` bytes from the address `from` to the address `to`, in ascending order. A thread
/// that sees the last bytes sees all other bytes, too. If both addresses are multiples of eight,
/// each word of eight bytes is copied by a single load and a single store. Returns an error if not
/// all bytes are accessible. Part of the bytes may then have been copied.
///
/// # Safety
/// The bytes of each range must be registered memory, or the caller must ensure that no references
/// to them exist, except to atomics.
#[inline]
pub(crate) unsafe fn copy(from: usize, to: usize, length: usize) -> Result<(), Missing> {
    // SAFETY: the caller guarantees the conditions for both ranges.
    unsafe {
        if length == 8 && to.is_multiple_of(8) {
            guarded::copy_8::<true>(from, to)
        } else {
            copy_pieces::<true>(from, to, length)
        }
    }
}

/// Copies `length` bytes from the address `from` to the address `to`, by accesses of one, two, four
/// or eight bytes. If `OUTWARD` is set, `to` is memory that other threads may poll: stores are
/// aligned, and the last bytes become visible after all other bytes. If `OUTWARD` is not set, `to`
/// is a private buffer, and loads are aligned.
///
/// # Safety
/// The bytes of each range must be registered memory, or the caller must ensure that no references
/// to them exist, except to atomics.
#[inline(never)]
unsafe fn copy_pieces<const OUTWARD: bool>(
    from: usize,
    to: usize,
    length: usize,
) -> Result<(), Missing> {
    let mut done = 0;
    while done < length {
        let (source, target, rest) = (from + done, to + done, length - done);
        let size = access_size(if OUTWARD { target } else { source }, rest);
        // SAFETY: the `size` bytes are inside the ranges, for which the caller guarantees the
        // conditions. With `OUTWARD`, the target is aligned.
        done += unsafe {
            match size {
                8 if rest > 8 => {
                    // All words, except a word that would be the last access.
                    let words = if OUTWARD { rest - 1 } else { rest } & !7;
                    if !guarded::copy_words(source, target, words) {
                        copy_each(source, target, words)?;
                    }
                    words
                }
                8 => {
                    guarded::copy_8::<OUTWARD>(source, target)?;
                    8
                }
                4 => {
                    guarded::copy_4::<OUTWARD>(source, target)?;
                    4
                }
                2 => {
                    guarded::copy_2::<OUTWARD>(source, target)?;
                    2
                }
                _ => {
                    guarded::copy_1::<OUTWARD>(source, target)?;
                    1
                }
            }
        };
    }
    Ok(())
}

/// Copies words of eight bytes one by one. Called after a faster copy of the same words has failed.
/// The faster copy does not report whether the source or the target caused the fault, but the error
/// of this function does. Succeeds if the memory has been mapped again since the fault.
///
/// # Safety
/// The bytes of each range must be registered memory, or the caller must ensure that no references
/// to them exist, except to atomics. `length` must be a multiple of eight.
#[cold]
unsafe fn copy_each(from: usize, to: usize, length: usize) -> Result<(), Missing> {
    for offset in (0..length).step_by(8) {
        // SAFETY: the caller guarantees the conditions for both ranges.
        unsafe { guarded::copy_8::<false>(from + offset, to + offset)? };
    }
    Ok(())
}

/// Atomically replaces the eight bytes at `address` by `swap` if they equal `compare`. Returns the
/// previous value, or an error if the bytes are not mapped or not writable.
///
/// # Safety
/// `address` must be a multiple of eight. The word must be registered memory, or the caller must
/// ensure that no references to it exist, except to an atomic.
pub(super) unsafe fn compare_swap(address: usize, compare: u64, swap: u64) -> Result<u64, Missing> {
    // SAFETY: the caller guarantees the conditions for `address`.
    unsafe { guarded::compare_swap(address, compare, swap) }
}

/// Atomically adds `add` to the eight-byte integer at `address`. Returns the previous value, or an
/// error if the bytes are not mapped or not writable.
///
/// # Safety
/// `address` must be a multiple of eight. The word must be registered memory, or the caller must
/// ensure that no references to it exist, except to an atomic.
pub(super) unsafe fn fetch_add(address: usize, add: u64) -> Result<u64, Missing> {
    // SAFETY: the caller guarantees the conditions for `address`.
    unsafe { guarded::fetch_add(address, add) }
}

/// Returns the size (1, 2, 4 or 8 bytes) of the largest access that is aligned at `address` and not
/// longer than `length`. `length` must not be 0.
fn access_size(address: usize, length: usize) -> usize {
    let aligned = 1 << address.trailing_zeros().min(3);
    let fits = 1 << length.ilog2().min(3);
    aligned.min(fits)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::super::{DeviceMemory, Span};

    /// Minimum length in bytes of copies that use the processor's string instruction, which is
    /// faster than a loop for long copies only.
    const MANY: usize = 512;

    fn memory(length: u64) -> (Arc<DeviceMemory>, Span) {
        let memory = DeviceMemory::new(length).unwrap();
        let span = Span::device(&memory, 0, length).unwrap();
        (memory, span)
    }

    #[test]
    fn every_length_is_copied_at_every_alignment_and_no_other_byte_is_changed() {
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

    /// Checks that a thread that sees the last byte of a message sees the whole message.
    #[test]
    fn the_last_bytes_are_copied_last() {
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
                // Bytes of a later message may already be there; bytes of an earlier message may
                // not.
                assert!(bytes.iter().all(|byte| *byte >= last), "{last}: {bytes:?}");
            }
        });
    }
}
