//! The only place that touches the program's memory itself; [`kernel`] lets the kernel do it.
//!
//! Other threads, and peers, may write and read the same bytes at the same time: a program that
//! waits for a message by looking at its last byte is as common as one that polls. So no reference to
//! such memory is ever made, and every access is an atomic one: what races is a mix of old and new
//! values, and never undefined behaviour on this side.
//!
//! Copies ascend, take the largest aligned piece each time, and write the last piece with
//! `Release`: who sees it sees the whole message. Eight aligned bytes are one access.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::context::{Refusal, Shared, Usage};
use crate::proto::Misplaced;

use super::{Block, Place, is_mapped, kernel};

/// A stretch of memory that was registered.
#[derive(Clone, Debug)]
pub struct Span {
    /// The first byte.
    address: usize,
    length: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// The program's.
    Mapped,
    /// The program's, which it has from the device.
    Allocated {
        /// Keeps the bytes at `address`.
        block: Arc<Block>,
    },
    /// The program's, which may come and go: copied by the kernel, which says when it is not there.
    OnDemand,
    /// The device's.
    Device {
        /// Keeps the bytes at `address`.
        _memory: Arc<DeviceMemory>,
    },
    /// None: reads give zeroes and writes vanish.
    Null,
}

/// Bytes that can be touched for as long as this is around.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    address: usize,
    length: usize,
    writable: bool,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Piece<'a> {
    /// Bytes of this process's own, to be read.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self {
            address: bytes.as_ptr().expose_provenance(),
            length: bytes.len(),
            writable: false,
            bytes: PhantomData,
        }
    }

    /// Where they begin.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// How many they are.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// How many those of a list are. Most lists have one.
    #[inline]
    pub(crate) fn total(list: &[Self]) -> usize {
        match list {
            [only] => only.length,
            list => list.iter().map(Self::length).sum(),
        }
    }

    /// Whether they may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Writes a word to the first eight of them. None: they are less, or may not be written.
    pub(crate) fn store(&self, word: u64) -> Option<()> {
        if !self.writable || self.length < size_of::<u64>() {
            return None;
        }
        // SAFETY: they can be touched, and written; and so can this word.
        unsafe {
            let from = (&raw const word).expose_provenance();
            copy(from, self.address, size_of::<u64>());
        }
        Some(())
    }
}

/// The memory cannot be accessed as it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inaccessible;

impl Span {
    /// The program's memory from `address` on.
    ///
    /// # Safety
    /// Until the span and all its clones are gone, the bytes are mapped, and may be written if
    /// anything will be written through the span. All that write or read them at the same time do it
    /// atomically, or live with what the C memory model says of them.
    pub unsafe fn mapped(address: usize, length: u64) -> Self {
        Self {
            address,
            length,
            kind: Kind::Mapped,
        }
    }

    /// A part of memory that the device handed out. None: it is not all inside.
    ///
    /// # Safety
    /// All that write or read the bytes at the same time do it atomically, or live with what the C
    /// memory model says of them.
    pub unsafe fn allocated(block: &Arc<Block>, address: usize, length: u64) -> Option<Self> {
        block.place(address, length).map(|_| Self {
            address,
            length,
            kind: Kind::Allocated {
                block: Arc::clone(block),
            },
        })
    }

    /// The program's memory, of which parts may be unmapped: an access to those fails.
    ///
    /// # Safety
    /// Nobody on this side holds a reference to bytes that are written through the span. Eight
    /// bytes that are read through the span are not unmapped while an atomic operation goes to them.
    pub unsafe fn on_demand(address: usize, length: u64) -> Self {
        Self {
            address,
            length,
            kind: Kind::OnDemand,
        }
    }

    /// A part of the device's memory. None: it is not all inside.
    pub fn device(memory: &Arc<DeviceMemory>, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        (end <= memory.length).then(|| Self {
            address: memory.address() + offset as usize,
            length,
            kind: Kind::Device {
                _memory: Arc::clone(memory),
            },
        })
    }

    /// Memory that is none.
    pub fn null() -> Self {
        Self {
            address: 0,
            length: u64::MAX,
            kind: Kind::Null,
        }
    }

    /// The first byte's address.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether it is the program's.
    pub fn is_program(&self) -> bool {
        matches!(
            self.kind,
            Kind::Mapped | Kind::Allocated { .. } | Kind::OnDemand
        )
    }

    /// Where a peer of the same host finds the bytes in the file of the arena, which is the block's.
    /// None: they are no memory that the device handed out.
    pub fn place(&self) -> Option<(&Arc<Block>, Place)> {
        match &self.kind {
            Kind::Allocated { block } => Some((block, block.place(self.address, self.length)?)),
            _ => None,
        }
    }

    /// Whether it is none.
    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Copies to all of it.
    pub(crate) fn copy_in(&self, data: &[u8]) -> Result<(), Refusal> {
        self.write(0, data).map_err(|_| Refusal::Fault)
    }

    /// Copies all of it.
    pub(crate) fn copy_out(&self, out: &mut [u8]) -> Result<(), Refusal> {
        self.read(0, out).map_err(|_| Refusal::Fault)
    }

    /// Copies the bytes from `offset` on to `out`.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Inaccessible> {
        let address = self.locate(offset, out.len())?;
        match self.kind {
            // SAFETY: inside the span, and whoever made it keeps the bytes mapped.
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => unsafe {
                read(address, out);
            },
            Kind::OnDemand => {
                return kernel::read(address, out).ok_or(Inaccessible);
            }
            Kind::Null => out.fill(0),
        }
        Ok(())
    }

    /// Copies `data` to the bytes from `offset` on.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Inaccessible> {
        let address = self.locate(offset, data.len())?;
        match self.kind {
            // SAFETY: inside the span, and whoever made it keeps the bytes mapped and writable.
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => unsafe {
                write(address, data);
            },
            Kind::OnDemand => {
                return kernel::write(address, data).ok_or(Inaccessible);
            }
            Kind::Null => {}
        }
        Ok(())
    }

    /// Copies `length` bytes from `offset` on to those of another span, from `to_offset` on.
    #[inline]
    pub(super) fn copy_to(
        &self,
        offset: u64,
        to: &Self,
        to_offset: u64,
        length: usize,
    ) -> Result<(), Misplaced> {
        let from = self.locate(offset, length).map_err(|_| Misplaced::Here)?;
        let place = to.locate(to_offset, length).map_err(|_| Misplaced::There)?;
        match (&self.kind, &to.kind) {
            (
                Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. },
                Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. },
            ) => {
                // SAFETY: inside the spans, whose makers keep the bytes mapped, and the second's writable.
                unsafe { copy(from, place, length) };
            }
            _ => {
                let mut done = 0;
                let mut room = [0; 1024];
                while done < length {
                    let part = room.len().min(length - done);
                    let bytes = &mut room[..part];
                    self.read(offset + done as u64, bytes)
                        .map_err(|_| Misplaced::Here)?;
                    to.write(to_offset + done as u64, bytes)
                        .map_err(|_| Misplaced::There)?;
                    done += part;
                }
            }
        }
        Ok(())
    }

    /// `length` bytes from `offset` on. None: they are not all inside, or may not be there.
    #[inline]
    pub(super) fn piece(&self, offset: u64, length: usize) -> Option<Piece<'_>> {
        let address = self.locate(offset, length).ok()?;
        match self.kind {
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => Some(Piece {
                address,
                length,
                writable: true,
                bytes: PhantomData,
            }),
            Kind::OnDemand | Kind::Null => None,
        }
    }

    /// Compares and swaps the eight bytes at `offset`; what they were.
    pub(super) fn compare_swap(
        &self,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Inaccessible> {
        let word = self.word(offset)?;
        let order = Ordering::SeqCst;
        Ok(word
            .compare_exchange(compare, swap, order, order)
            .unwrap_or_else(|actual| actual))
    }

    /// Adds to the eight bytes at `offset`; what they were.
    pub(super) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Inaccessible> {
        Ok(self.word(offset)?.fetch_add(add, Ordering::SeqCst))
    }

    /// The address of `length` bytes from `offset` on.
    #[inline]
    fn locate(&self, offset: u64, length: usize) -> Result<usize, Inaccessible> {
        let end = offset.checked_add(length as u64).ok_or(Inaccessible)?;
        if end > self.length {
            return Err(Inaccessible);
        }
        Ok(self.address.wrapping_add(offset as usize))
    }

    /// The eight bytes at `offset` as an atomic word.
    fn word(&self, offset: u64) -> Result<&AtomicU64, Inaccessible> {
        let address = self.locate(offset, size_of::<u64>())?;
        match self.kind {
            Kind::Null => return Err(Inaccessible),
            Kind::Mapped | Kind::Allocated { .. } | Kind::Device { .. } => {}
            // An access to memory that is not there would end the program.
            Kind::OnDemand if !is_mapped(address, size_of::<u64>() as u64, true) => {
                return Err(Inaccessible);
            }
            Kind::OnDemand => {}
        }
        let pointer = ptr::with_exposed_provenance_mut::<u64>(address);
        if !pointer.is_aligned() {
            return Err(Inaccessible);
        }
        // SAFETY: inside the span, whose maker keeps the bytes mapped and writable; aligned, as was just
        // checked; an atomic, so others may access the word at the same time.
        Ok(unsafe { AtomicU64::from_ptr(pointer) })
    }
}

/// Memory of the device: `ibv_dm`. It begins at a multiple of [`ALIGNMENT`](Self::ALIGNMENT).
pub struct DeviceMemory {
    pages: Box<[Page]>,
    length: u64,
    usage: Usage,
}

/// In a cell, since it is reached by its address.
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "reached by its address")] UnsafeCell<[u8; 4096]>);

// SAFETY: the bytes are reached through spans alone, whose accesses are atomic.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// What its address is a multiple of.
    pub const ALIGNMENT: u64 = align_of::<Page>() as u64;

    /// So many bytes, all zero.
    pub fn new(length: u64) -> Result<Arc<Self>, Refusal> {
        let count = length.div_ceil(size_of::<Page>() as u64);
        let count = usize::try_from(count).map_err(|_| Refusal::Exhausted)?;
        let mut pages = Vec::new();
        pages
            .try_reserve_exact(count)
            .map_err(|_| Refusal::Exhausted)?;
        pages.resize_with(count, || Page(UnsafeCell::new([0; 4096])));
        Ok(Arc::new(Self {
            pages: pages.into_boxed_slice(),
            length,
            usage: Usage::default(),
        }))
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn address(&self) -> usize {
        self.pages.as_ptr().expose_provenance()
    }
}

impl Shared for DeviceMemory {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

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

/// As [`write`].
///
/// # Safety
/// As that of [`write`].
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

    #[test]
    fn copies_stay_inside_and_say_which_side_was_wrong() {
        let ((_one, small), (_other, large)) = (memory(64), memory(128));
        assert_eq!(small.copy_to(1, &large, 0, 64), Err(Misplaced::Here));
        assert_eq!(large.copy_to(0, &small, 1, 64), Err(Misplaced::There));
        assert_eq!(large.copy_to(128, &small, 64, 0), Ok(()));
        large.write(0, &[7; 128]).unwrap();
        assert_eq!(Span::null().copy_to(0, &large, 3, 100), Ok(()));
        assert_eq!(large.copy_to(0, &Span::null(), 1 << 40, 128), Ok(()));
        let mut bytes = [0; 128];
        large.read(0, &mut bytes).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == 7).count(), 28);
    }

    #[test]
    fn nothing_outside_is_touched() {
        let (memory, span) = memory(64);
        let mut byte = [0];
        assert_eq!(span.read(64, &mut byte), Err(Inaccessible));
        assert_eq!(span.write(u64::MAX, &byte), Err(Inaccessible));
        assert_eq!(span.read(64, &mut []), Ok(()));
        assert_eq!(span.fetch_add(57, 1), Err(Inaccessible));
        assert_eq!(span.fetch_add(4, 1), Err(Inaccessible), "not aligned");
        assert!(Span::device(&memory, 1, 64).is_none());
        assert!(Span::device(&memory, u64::MAX, 2).is_none());
    }

    #[test]
    fn a_null_span_gives_zeroes_and_swallows() {
        let span = Span::null();
        let mut bytes = [7; 9];
        span.write(1 << 40, &bytes).unwrap();
        span.read(1 << 40, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 9]);
        assert_eq!(span.fetch_add(0, 1), Err(Inaccessible));
    }

    #[test]
    fn atomics_of_many_threads_are_each_done_once() {
        let (_memory, span) = memory(16);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| assert!(span.fetch_add(8, 3).is_ok())));
            }
        });
        assert_eq!(span.compare_swap(8, 12_000, 5), Ok(12_000));
        assert_eq!(span.compare_swap(8, 12_000, 6), Ok(5));
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

    #[test]
    fn memory_on_demand_may_be_missing() {
        let mut bytes = vec![1_u8; 64];
        let address = bytes.as_mut_ptr().expose_provenance();
        // SAFETY: nobody holds a reference to the bytes meanwhile.
        let span = unsafe { Span::on_demand(address, u64::MAX - address as u64) };
        span.write(3, &[5; 7]).unwrap();
        let mut back = [0; 7];
        span.read(3, &mut back).unwrap();
        assert_eq!(back, [5; 7]);
        assert_eq!(bytes[2..11], [1, 5, 5, 5, 5, 5, 5, 5, 1]);

        // SAFETY: the first page is mapped in no program.
        let nowhere = unsafe { Span::on_demand(0, 4096) };
        assert_eq!(nowhere.read(8, &mut back), Err(Inaccessible));
        assert_eq!(nowhere.write(8, &back), Err(Inaccessible));
        assert_eq!(nowhere.fetch_add(8, 1), Err(Inaccessible));
    }
}
