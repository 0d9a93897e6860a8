//! The traits of memory that work requests can use: [`Gather`] and [`Scatter`].

use std::fmt;
use std::ops::{Deref, Range};

use crate::error::{Error, Result};
use crate::ffi::ElementList;

pub(crate) mod sealed {
    use crate::ffi::LocalKey;

    /// A private supertrait of [`super::Gather`], so that other crates cannot implement `Gather`. A
    /// wrong implementation could name memory of another owner. A device could then write the
    /// result of a read or a receive to that memory.
    pub trait Sealed {}

    /// Memory that lies in one contiguous range of a registration. A request describes such memory
    /// by one scatter/gather element (`ibv_sge`).
    pub trait Contiguous: Sealed {
        /// Returns the address that requests use for the first byte of this memory.
        fn address(&self) -> u64;
        /// Returns the length of the memory in bytes.
        fn size(&self) -> usize;
        /// Returns the local key of the registration that contains the memory.
        fn lkey(&self) -> LocalKey;
        /// Returns whether [`Self::address`] is also the address of the memory in this process.
        /// Only then can the crate copy the bytes as inline data.
        fn is_mapped(&self) -> bool;
    }
}

use sealed::{Contiguous, Sealed};

/// The scatter/gather list of a request that the crate is building. Each element of the list
/// contains the address, the length and the local key of one memory range.
pub struct Elements<'a>(&'a mut ElementList);

impl fmt::Debug for Elements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elements").finish_non_exhaustive()
    }
}

impl<'a> Elements<'a> {
    #[inline]
    pub(crate) fn new(list: &'a mut ElementList) -> Self {
        Self(list)
    }

    #[inline]
    pub(crate) fn push(&mut self, memory: &impl Contiguous) {
        if !memory.is_mapped() {
            self.0.forbid_inline();
        }
        self.0.push(memory.address(), memory.size(), memory.lkey());
    }

    /// Records that the device must not write to the memory in this list. Posting a request that
    /// writes to the memory then fails.
    #[inline]
    pub(crate) fn forbid_writing(&mut self) {
        self.0.forbid_writing();
    }

    /// Appends `bytes` as the data of an inline request. The caller must post the request before
    /// the borrow of `bytes` ends, because posting copies the bytes.
    #[inline]
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.0
            .push_bytes(bytes.as_ptr().expose_provenance() as u64, bytes.len(), 0);
    }

    #[inline]
    pub(crate) fn push_range(&mut self, memory: &impl Contiguous, range: &Range<usize>) {
        if !memory.is_mapped() {
            self.0.forbid_inline();
        }
        self.0.push(
            memory.address().wrapping_add(range.start as u64),
            range.len(),
            memory.lkey(),
        );
    }
}

/// Memory that a device may read for a request, for example the source of a send or an RDMA write.
///
/// A tuple or an array of such memory gathers several ranges into one message; `()` is an empty
/// message. A queue keeps the memory until the request completes, so a queue accepts only `'static`
/// memory. A request of a [`Scope`](crate::Scope) may use borrowed memory. The trait is sealed:
/// other crates cannot implement it.
#[doc(alias = "ibv_sge")]
pub trait Gather: Sealed + Send {
    /// Appends the scatter/gather elements of the memory to `elements`.
    fn gather(&self, elements: &mut Elements<'_>);
}

/// Memory to which a device may write for a request: the destination of a receive, of an RDMA read
/// or of an atomic operation. The trait is sealed: other crates cannot implement it.
#[doc(alias = "ibv_sge")]
pub trait Scatter: Gather {
    /// Appends the scatter/gather elements of the memory to `elements`.
    ///
    /// # Errors
    ///
    /// [`Error::NotWritable`] for a [`super::Claim`] that allows only reading.
    fn scatter(&self, elements: &mut Elements<'_>) -> Result<()> {
        self.gather(elements);
        Ok(())
    }
}

/// Memory together with a byte range, for a request that uses only the bytes in the range. The
/// program gets the whole memory back when the request completes.
#[derive(Debug)]
pub struct Part<M> {
    memory: M,
    range: Range<usize>,
}

impl<M: Contiguous> Part<M> {
    /// Combines `memory` with a range, so that a request uses only the bytes in `range`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the memory.
    pub fn new(memory: M, range: Range<usize>) -> Result<Self> {
        let len = memory.size();
        if range.start > range.end || range.end > len {
            return Err(out_of_range(&range, len));
        }
        Ok(Self { memory, range })
    }
}

impl<M> Part<M> {
    /// Returns the whole memory from which this part was made.
    pub fn into_inner(self) -> M {
        self.memory
    }

    /// Returns the byte range that a request uses, as offsets from the start of the whole memory.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl<M> Deref for Part<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.memory
    }
}

pub(crate) fn out_of_range(range: &Range<usize>, len: usize) -> Error {
    Error::OutOfRange {
        start: range.start as u64,
        end: range.end as u64,
        len: len as u64,
    }
}

impl<M> Sealed for Part<M> {}

impl<M: Contiguous + Send> Gather for Part<M> {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        elements.push_range(&self.memory, &self.range);
    }
}

impl<M: Contiguous + Scatter> Scatter for Part<M> {}

impl<M: Sealed + ?Sized> Sealed for &M {}

/// A reference to memory can also be the memory of a request. A request of a scope accepts any
/// reference, and a request of a queue accepts only a `'static` reference.
impl<M: Gather + Sync + ?Sized> Gather for &M {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        (**self).gather(elements);
    }
}

impl<M: Sealed + ?Sized> Sealed for &mut M {}

impl<M: Gather + ?Sized> Gather for &mut M {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        (**self).gather(elements);
    }
}

impl<M: Scatter + ?Sized> Scatter for &mut M {
    #[inline]
    fn scatter(&self, elements: &mut Elements<'_>) -> Result<()> {
        (**self).scatter(elements)
    }
}

impl Sealed for () {}

impl Gather for () {
    #[inline]
    fn gather(&self, _elements: &mut Elements<'_>) {}
}

impl Scatter for () {}

impl<M: Sealed> Sealed for Option<M> {}

impl<M: Gather> Gather for Option<M> {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        if let Some(memory) = self {
            memory.gather(elements);
        }
    }
}

impl<M: Scatter> Scatter for Option<M> {
    #[inline]
    fn scatter(&self, elements: &mut Elements<'_>) -> Result<()> {
        self.as_ref()
            .map_or(Ok(()), |memory| memory.scatter(elements))
    }
}

impl<A: Sealed, B: Sealed> Sealed for (A, B) {}

impl<A: Gather, B: Gather> Gather for (A, B) {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        self.0.gather(elements);
        self.1.gather(elements);
    }
}

impl<A: Scatter, B: Scatter> Scatter for (A, B) {
    #[inline]
    fn scatter(&self, elements: &mut Elements<'_>) -> Result<()> {
        self.0.scatter(elements)?;
        self.1.scatter(elements)
    }
}

impl<M: Sealed, const N: usize> Sealed for [M; N] {}

impl<M: Gather, const N: usize> Gather for [M; N] {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        for memory in self {
            memory.gather(elements);
        }
    }
}

impl<M: Scatter, const N: usize> Scatter for [M; N] {
    #[inline]
    fn scatter(&self, elements: &mut Elements<'_>) -> Result<()> {
        self.iter().try_for_each(|memory| memory.scatter(elements))
    }
}
