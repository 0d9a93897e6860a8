//! Access to memory that peers or devices write at the same time.

use std::ops::{Range, RangeBounds};
use std::sync::atomic::Ordering;

use super::buffer::resolve;
use super::gather::out_of_range;
use crate::error::{Error, Result};
use crate::ffi::Volatile;

/// A view of memory that peers may write at any moment. A Rust slice of such memory would be
/// unsound, so the program reads and writes the bytes by copies and atomics.
///
/// Every access is atomic: it reads or writes one byte, or an aligned word of four or eight bytes.
/// A copy consists of such accesses, of any size. A concurrent write can therefore change the
/// values that are read, but never causes undefined behaviour. The order in which a peer sees
/// several stores depends on the machine and the device. Only the functions that load or store a
/// word always read and write an aligned word as a whole.
///
/// The methods `compare_and_swap_u64` and `fetch_and_add_u64` are atomic with regard to a peer's
/// atomics only if the device supports
/// [`AtomicCapability::Global`](crate::device::AtomicCapability::Global), or lists the operation
/// and its size in [`pci_atomics`](crate::device::ExtendedDeviceAttributes::pci_atomics). Most
/// devices guarantee atomicity only among atomics that they execute themselves.
#[derive(Debug, Clone)]
pub struct VolatileSlice<'a> {
    memory: &'a Volatile,
    range: Range<usize>,
}

impl<'a> VolatileSlice<'a> {
    pub(super) fn new(memory: &'a Volatile, range: Range<usize>) -> Self {
        Self { memory, range }
    }

    /// Returns the length of this slice in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns a view of the part `range` of the memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the view.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = resolve(range, self.range.len())?;
        let start = self.range.start;
        Ok(Self {
            memory: self.memory,
            range: start + range.start..start + range.end,
        })
    }

    /// Copies `to.len()` bytes of the memory, beginning at `offset`, into `to`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the view.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.memory.read(self.inside(offset, to.len())?, to);
        Ok(())
    }

    /// Copies `from` into the memory at `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the view.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.memory.write(self.inside(offset, from.len())?, from);
        Ok(())
    }

    /// Copies all bytes of the memory into a new vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.memory.read(self.range.start, &mut bytes);
        bytes
    }

    /// Writes `value` to every byte of the memory.
    pub fn fill(&self, value: u8) {
        let piece = [value; 256];
        for start in self.range.clone().step_by(piece.len()) {
            let len = piece.len().min(self.range.end - start);
            self.memory.write(start, &piece[..len]);
        }
    }

    /// Reads the byte at `offset`, with acquire ordering: later reads of this thread see everything
    /// that the writer of the byte had written before.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the byte is not inside of the view.
    #[inline]
    pub fn load_u8(&self, offset: usize) -> Result<u8> {
        let place = self.inside(offset, 1)?;
        Ok(self.memory.u8(place).load(Ordering::Acquire))
    }

    /// Writes the byte at `offset`, with release ordering: a reader that sees the byte also sees
    /// all earlier writes of this thread.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the byte is not inside of the view.
    #[inline]
    pub fn store_u8(&self, offset: usize, value: u8) -> Result<()> {
        let place = self.inside(offset, 1)?;
        self.memory.u8(place).store(value, Ordering::Release);
        Ok(())
    }

    /// Reads the four bytes at `offset` in one access, in the host's byte order, with acquire
    /// ordering.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the four bytes are not inside of the view,
    /// [`Error::InvalidArgument`] if their address is not a multiple of four.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> Result<u32> {
        let place = self.word(offset, size_of::<u32>())?;
        Ok(self.memory.u32(place).load(Ordering::Acquire))
    }

    /// Writes the four bytes at `offset` in one access, in the host's byte order, with release
    /// ordering.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::load_u32`].
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32) -> Result<()> {
        let place = self.word(offset, size_of::<u32>())?;
        self.memory.u32(place).store(value, Ordering::Release);
        Ok(())
    }

    /// Reads the eight bytes at `offset` in one access, in the host's byte order, with acquire
    /// ordering.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the eight bytes are not inside of the view,
    /// [`Error::InvalidArgument`] if their address is not a multiple of eight.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        let place = self.word(offset, size_of::<u64>())?;
        Ok(self.memory.u64(place).load(Ordering::Acquire))
    }

    /// Writes the eight bytes at `offset` in one access, in the host's byte order, with release
    /// ordering.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::load_u64`].
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        let place = self.word(offset, size_of::<u64>())?;
        self.memory.u64(place).store(value, Ordering::Release);
        Ok(())
    }

    /// Atomically replaces the eight bytes at `offset` by `desired` if they are equal to
    /// `expected`, and returns the previous value.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::load_u64`].
    #[inline]
    pub fn compare_and_swap_u64(&self, offset: usize, expected: u64, desired: u64) -> Result<u64> {
        let word = self.memory.u64(self.word(offset, size_of::<u64>())?);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match word.compare_exchange(expected, desired, success, failure) {
            Ok(before) | Err(before) => Ok(before),
        }
    }

    /// Atomically adds `add` to the eight bytes at `offset`, wrapping on overflow, and returns the
    /// previous value.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::load_u64`].
    #[inline]
    pub fn fetch_and_add_u64(&self, offset: usize, add: u64) -> Result<u64> {
        let word = self.memory.u64(self.word(offset, size_of::<u64>())?);
        Ok(word.fetch_add(add, Ordering::AcqRel))
    }

    /// Converts `offset` in this view to an offset in the underlying memory. Returns an error if
    /// the `len` bytes at `offset` are not inside of the view.
    #[inline]
    fn inside(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.range.len() => Ok(self.range.start + offset),
            end => Err(out_of_range(
                &(offset..end.unwrap_or(usize::MAX)),
                self.range.len(),
            )),
        }
    }

    #[inline]
    fn word(&self, offset: usize, size: usize) -> Result<usize> {
        let place = self.inside(offset, size)?;
        if self.memory.is_aligned(place, size) {
            return Ok(place);
        }
        Err(unaligned(offset, size))
    }
}

#[cold]
fn unaligned(offset: usize, size: usize) -> Error {
    let what = match size {
        4 => "four-byte word",
        _ => "eight-byte word",
    };
    Error::invalid(
        what,
        format!("offset {offset} is not aligned to {size} bytes"),
    )
}
