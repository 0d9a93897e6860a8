//! Borrowed slices of registered memory.

use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Deref, DerefMut, Range, RangeBounds};

use super::buffer::resolve;
use super::gather::{Elements, Gather, Scatter, sealed};
use super::{Buffer, FrozenBuffer};
use crate::error::{Error, Result};
use crate::ffi::{Borrowed, BorrowedMut, LocalKey};

/// A borrowed, read-only part of registered memory. Requests can use the part as the source of
/// sends and writes.
///
/// Any number of parts can exist at the same time, and they may overlap. `BufferSlice` is `Send`
/// and `Sync`, like a `&[u8]`.
///
/// A part cannot outlive the memory:
///
/// ```compile_fail,E0505
/// # fn example(buffer: rdma_core::Buffer) -> rdma_core::Result<()> {
/// let part = buffer.slice(..8)?;
/// drop(buffer);
/// println!("{}", part[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct BufferSlice<'a> {
    memory: Borrowed<'a>,
}

/// A borrowed, writable part of registered memory. Requests can use the part as source or
/// destination.
///
/// Parts that exist at the same time cannot overlap. `BufferSliceMut` is `Send` and `Sync`, like a
/// `&mut [u8]`.
///
/// ```compile_fail,E0499
/// # fn example(mut buffer: rdma_core::Buffer) -> rdma_core::Result<()> {
/// let mut one = buffer.slice_mut(..8)?;
/// let mut other = buffer.slice_mut(4..)?;
/// one[0] = other[0];
/// # Ok(())
/// # }
/// ```
///
/// Disjoint parts can be borrowed at the same time:
///
/// ```
/// # let domain = rdma_core::Context::open_default()?.protection_domain()?;
/// let mut buffer = domain.allocate(64)?;
/// let (mut left, mut right) = buffer.as_slice_mut().split_at_mut(32);
/// (left[0], right[0]) = (1, 2);
/// let [mut header, mut body] = buffer.disjoint_mut([0..8, 16..64])?;
/// header.copy_from_slice(&[3; 8]);
/// body.fill(4);
/// # Ok::<(), rdma_core::Error>(())
/// ```
pub struct BufferSliceMut<'a> {
    memory: BorrowedMut<'a>,
}

impl Buffer {
    /// Borrows the whole buffer for reading, as memory for a request.
    pub fn as_slice(&self) -> BufferSlice<'_> {
        let (address, lkey) = (self.span().address(), self.span().region().lkey());
        BufferSlice {
            memory: Borrowed::new(self, address, lkey),
        }
    }

    /// Borrows the whole buffer for writing, as memory for a request.
    pub fn as_slice_mut(&mut self) -> BufferSliceMut<'_> {
        let (address, lkey) = (self.span().address(), self.span().region().lkey());
        BufferSliceMut {
            memory: BorrowedMut::new(self, address, lkey),
        }
    }

    /// Borrows the part `range` of the buffer for reading.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_>> {
        self.as_slice().slice(range)
    }

    /// Borrows the part `range` of the buffer for writing.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferSliceMut<'_>> {
        self.as_slice_mut().slice_mut(range)
    }

    /// Borrows several disjoint parts of the buffer for writing, and returns them in the order of
    /// `ranges`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if a range is not inside of the buffer, [`Error::InvalidArgument`] if
    /// two ranges overlap or are not in ascending order.
    pub fn disjoint_mut<const N: usize>(
        &mut self,
        ranges: [Range<usize>; N],
    ) -> Result<[BufferSliceMut<'_>; N]> {
        let len = self.len();
        let mut end = 0;
        for range in &ranges {
            resolve(range.clone(), len)?;
            if range.start < end {
                let reason = format!("{range:?} begins before {end}");
                return Err(Error::invalid("disjoint parts of a buffer", reason));
            }
            end = range.end;
        }
        let (mut rest, mut start) = (Some(self.as_slice_mut()), 0);
        Ok(ranges.map(|range| {
            let ahead = rest.take().expect("put back below");
            let (_, ahead) = ahead.split_at_mut(range.start - start);
            let (part, ahead) = ahead.split_at_mut(range.len());
            (rest, start) = (Some(ahead), range.end);
            part
        }))
    }
}

impl FrozenBuffer {
    /// Borrows the whole frozen buffer, as memory for a request. Unlike a clone, the borrowed slice
    /// does not change a reference count.
    pub fn as_slice(&self) -> BufferSlice<'_> {
        let range = self.range();
        let (_, ahead) = self.buffer().as_slice().split_at(range.start);
        ahead.split_at(range.len()).0
    }
}

impl<'a> BufferSlice<'a> {
    /// Converts the slice to a slice of only the bytes in `range`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the slice.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = resolve(range, self.len())?;
        let (_, ahead) = self.split_at(range.start);
        Ok(ahead.split_at(range.len()).0)
    }

    /// Splits the slice into `[0, at)` and `[at, len)`.
    ///
    /// # Panics
    ///
    /// Panics if `at` is larger than the length.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let (left, right) = self.memory.split_at(at);
        (Self { memory: left }, Self { memory: right })
    }

    /// Returns an iterator over consecutive chunks of `size` bytes. The last chunk may be shorter.
    ///
    /// # Panics
    ///
    /// Panics if `size` is 0.
    pub fn chunks(self, size: usize) -> impl FusedIterator<Item = BufferSlice<'a>> {
        assert_ne!(size, 0, "pieces of 0 bytes");
        let mut rest = self;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (piece, ahead) = rest.split_at(size.min(rest.len()));
            rest = ahead;
            Some(piece)
        })
        .fuse()
    }

    /// Returns the bytes as a plain slice, with the lifetime of the original borrow.
    pub fn bytes(self) -> &'a [u8] {
        self.memory.bytes()
    }
}

impl<'a> BufferSliceMut<'a> {
    /// Borrows the part `range` of the slice for reading.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_>> {
        let whole = Borrowed::new(self, self.memory.address(), self.memory.lkey());
        BufferSlice { memory: whole }.slice(range)
    }

    /// Converts the slice to a slice of only the bytes in `range`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the slice.
    pub fn slice_mut(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = resolve(range, self.len())?;
        let (_, ahead) = self.split_at_mut(range.start);
        Ok(ahead.split_at_mut(range.len()).0)
    }

    /// Borrows the same bytes for a shorter lifetime. Afterwards `self` can be used again.
    pub fn reborrow(&mut self) -> BufferSliceMut<'_> {
        BufferSliceMut {
            memory: self.memory.reborrow(),
        }
    }

    /// Splits the slice into two writable slices, `[0, at)` and `[at, len)`.
    ///
    /// # Panics
    ///
    /// Panics if `at` is larger than the length.
    #[must_use]
    pub fn split_at_mut(self, at: usize) -> (Self, Self) {
        let (left, right) = self.memory.split_at(at);
        (Self { memory: left }, Self { memory: right })
    }

    /// Returns an iterator over consecutive writable chunks of `size` bytes. All chunks can exist
    /// at the same time. The last chunk may be shorter.
    ///
    /// # Panics
    ///
    /// Panics if `size` is 0.
    pub fn chunks_mut(self, size: usize) -> impl FusedIterator<Item = BufferSliceMut<'a>> {
        assert_ne!(size, 0, "pieces of 0 bytes");
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let whole = rest.take().filter(|rest| !rest.is_empty())?;
            let at = size.min(whole.len());
            let (piece, ahead) = whole.split_at_mut(at);
            rest = Some(ahead);
            Some(piece)
        })
        .fuse()
    }

    /// Returns the bytes as a plain mutable slice, with the lifetime of the original borrow.
    pub fn into_bytes(self) -> &'a mut [u8] {
        self.memory.into_bytes()
    }
}

/// Implements the traits that [`BufferSlice`] and [`BufferSliceMut`] have in common.
macro_rules! borrowed_part {
    ($part:ident) => {
        impl Deref for $part<'_> {
            type Target = [u8];

            #[inline]
            fn deref(&self) -> &[u8] {
                self.memory.bytes()
            }
        }

        impl fmt::Debug for $part<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($part))
                    .field("address", &format_args!("{:#x}", self.memory.address()))
                    .field("len", &self.len())
                    .finish()
            }
        }

        impl sealed::Sealed for $part<'_> {}

        impl sealed::Contiguous for $part<'_> {
            #[inline]
            fn address(&self) -> u64 {
                self.memory.address()
            }

            #[inline]
            fn size(&self) -> usize {
                self.len()
            }

            #[inline]
            fn lkey(&self) -> LocalKey {
                self.memory.lkey()
            }

            #[inline]
            fn is_mapped(&self) -> bool {
                self.memory.address() == self.as_ptr() as u64
            }
        }

        impl Gather for $part<'_> {
            #[inline]
            fn gather(&self, elements: &mut Elements<'_>) {
                elements.push(self);
            }
        }
    };
}

borrowed_part!(BufferSlice);
borrowed_part!(BufferSliceMut);

impl DerefMut for BufferSliceMut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl Scatter for BufferSliceMut<'_> {}
