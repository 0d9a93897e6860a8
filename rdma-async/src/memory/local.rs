//! Local memory regions.

use std::ops::Range;
use std::sync::Arc;

use rdma_core::{Buffer, Error as VerbsError, ReadClaim, SharedBuffer, WriteClaim};

use super::PieceLender;
use crate::error::Result;

/// Registered memory of this process.
///
/// Operations take it, or a slice of it, by reference. While one is in flight that writes to it, or,
/// for writing, any, the bytes are out of reach: by the borrow while its future lives, and by a claim
/// after its future was dropped. A claim ends with its operation, so try again then.
#[derive(Debug)]
pub struct LocalMr {
    /// `None` only while it is dropped or taken apart.
    memory: Option<SharedBuffer>,
    range: Range<usize>,
    lender: Option<Arc<PieceLender>>,
}

impl LocalMr {
    pub(crate) fn new(
        memory: SharedBuffer,
        range: Range<usize>,
        lender: Option<Arc<PieceLender>>,
    ) -> Self {
        Self {
            memory: Some(memory),
            range,
            lender,
        }
    }

    fn memory(&self) -> &SharedBuffer {
        self.memory
            .as_ref()
            .expect("only `drop` and `into_parts` take the memory")
    }

    fn memory_mut(&mut self) -> &mut SharedBuffer {
        self.memory
            .as_mut()
            .expect("only `drop` and `into_parts` take the memory")
    }

    /// What it is made of, if no operation has it.
    pub(crate) fn into_parts(mut self) -> Result<Parts, (Self, VerbsError)> {
        let memory = self
            .memory
            .take()
            .expect("only `drop` and `into_parts` take the memory");
        match memory.into_buffer() {
            Ok(buffer) => Ok(Parts {
                buffer,
                range: self.range.clone(),
                lender: self.lender.take(),
            }),
            Err(memory) => {
                self.memory = Some(memory);
                Err((
                    self,
                    VerbsError::InUse {
                        object: "a local memory region".into(),
                        holder: "an operation in flight",
                    },
                ))
            }
        }
    }

    /// The bytes of `range`, if it is inside.
    pub fn get(&self, range: Range<usize>) -> Option<LocalMrSlice<'_>> {
        let range = inside(&self.range, &range)?;
        Some(LocalMrSlice {
            region: self,
            range,
        })
    }

    /// The bytes of `range` for writing, if it is inside.
    pub fn get_mut(&mut self, range: Range<usize>) -> Option<LocalMrSliceMut<'_>> {
        let range = inside(&self.range, &range)?;
        Some(LocalMrSliceMut {
            region: self,
            range,
        })
    }
}

/// What a [`LocalMr`] is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) buffer: Buffer,
    /// The part of the buffer that the region is.
    pub(crate) range: Range<usize>,
    /// Who wants the buffer back.
    pub(crate) lender: Option<Arc<PieceLender>>,
}

impl Drop for LocalMr {
    fn drop(&mut self) {
        if let (Some(memory), Some(lender)) = (self.memory.take(), self.lender.take()) {
            lender.put_back(memory);
        }
    }
}

/// A part of a [`LocalMr`], for reading.
#[derive(Debug)]
pub struct LocalMrSlice<'a> {
    region: &'a LocalMr,
    range: Range<usize>,
}

/// A part of a [`LocalMr`], for reading and writing.
#[derive(Debug)]
pub struct LocalMrSliceMut<'a> {
    region: &'a mut LocalMr,
    range: Range<usize>,
}

/// `part`, which counts from the start of `whole`, if it is inside.
pub(super) fn inside(whole: &Range<usize>, part: &Range<usize>) -> Option<Range<usize>> {
    let range = whole.start.checked_add(part.start)?..whole.start.checked_add(part.end)?;
    (range.start <= range.end && range.end <= whole.end).then_some(range)
}

pub(crate) mod sealed {
    use super::{Range, SharedBuffer};

    /// Whose memory a slice is, and which part.
    pub trait Memory {
        fn shared(&self) -> (&SharedBuffer, Range<usize>);
    }

    /// The same, for writing.
    pub trait MemoryMut: Memory {
        fn shared_mut(&mut self) -> (&mut SharedBuffer, Range<usize>);
    }
}

/// Local memory that an operation can read: the source of a write or a send. Sealed.
pub trait LocalMrReadAccess: sealed::Memory {
    /// How many bytes it has.
    fn length(&self) -> usize {
        self.shared().1.len()
    }

    /// The bytes.
    ///
    /// # Panics
    ///
    /// If an operation is writing to them whose future was dropped before it completed;
    /// [`Self::try_as_slice`] tells.
    fn as_slice(&self) -> &[u8] {
        match self.try_as_slice() {
            Ok(bytes) => bytes,
            Err(error) => panic!("{error}"),
        }
    }

    /// The bytes, unless an operation is writing to them.
    ///
    /// # Errors
    ///
    /// [`rdma_core::Error::InUse`] while one is whose future was dropped before it completed.
    fn try_as_slice(&self) -> Result<&[u8]> {
        let (memory, range) = self.shared();
        Ok(&memory.bytes()?[range])
    }
}

/// Local memory that an operation can write: the destination of a read. Sealed.
pub trait LocalMrWriteAccess: LocalMrReadAccess + sealed::MemoryMut {
    /// The bytes for writing.
    ///
    /// # Panics
    ///
    /// If an operation has them whose future was dropped before it completed;
    /// [`Self::try_as_mut_slice`] tells.
    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.try_as_mut_slice() {
            Ok(bytes) => bytes,
            Err(error) => panic!("{error}"),
        }
    }

    /// The bytes for writing, unless an operation has them.
    ///
    /// # Errors
    ///
    /// [`rdma_core::Error::InUse`] while one has whose future was dropped before it completed.
    fn try_as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let (memory, range) = self.shared_mut();
        Ok(&mut memory.bytes_mut()?[range])
    }
}

/// Claims what an operation reads.
pub(crate) fn claim_read(memory: &(impl LocalMrReadAccess + ?Sized)) -> Result<ReadClaim> {
    let (memory, range) = memory.shared();
    Ok(memory.try_read(range)?)
}

/// Claims what an operation writes.
pub(crate) fn claim_write(memory: &mut (impl LocalMrWriteAccess + ?Sized)) -> Result<WriteClaim> {
    let (memory, range) = memory.shared_mut();
    Ok(memory.try_write(range)?)
}

impl sealed::Memory for LocalMr {
    fn shared(&self) -> (&SharedBuffer, Range<usize>) {
        (self.memory(), self.range.clone())
    }
}

impl sealed::MemoryMut for LocalMr {
    fn shared_mut(&mut self) -> (&mut SharedBuffer, Range<usize>) {
        let range = self.range.clone();
        (self.memory_mut(), range)
    }
}

impl sealed::Memory for LocalMrSlice<'_> {
    fn shared(&self) -> (&SharedBuffer, Range<usize>) {
        (self.region.memory(), self.range.clone())
    }
}

impl sealed::Memory for LocalMrSliceMut<'_> {
    fn shared(&self) -> (&SharedBuffer, Range<usize>) {
        (self.region.memory(), self.range.clone())
    }
}

impl sealed::MemoryMut for LocalMrSliceMut<'_> {
    fn shared_mut(&mut self) -> (&mut SharedBuffer, Range<usize>) {
        (self.region.memory_mut(), self.range.clone())
    }
}

impl LocalMrReadAccess for LocalMr {}
impl LocalMrWriteAccess for LocalMr {}
impl LocalMrReadAccess for LocalMrSlice<'_> {}
impl LocalMrReadAccess for LocalMrSliceMut<'_> {}
impl LocalMrWriteAccess for LocalMrSliceMut<'_> {}

#[cfg(test)]
mod tests {
    use super::inside;

    #[test]
    #[allow(
        clippy::reversed_empty_ranges,
        reason = "a reversed range must be refused"
    )]
    fn parts_stay_inside_of_their_whole() {
        assert_eq!(inside(&(16..24), &(4..8)), Some(20..24));
        assert_eq!(inside(&(16..24), &(8..8)), Some(24..24));
        assert_eq!(inside(&(16..24), &(4..9)), None);
        assert_eq!(inside(&(16..24), &(5..4)), None);
        assert_eq!(inside(&(16..24), &(0..usize::MAX)), None);
    }
}
