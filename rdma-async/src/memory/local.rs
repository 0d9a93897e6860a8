//! [`LocalMr`]: registered memory of this process, which operations read and write.

use std::ops::Range;
use std::sync::Arc;

use rdma_core::memory::{ReadClaim, SharedBuffer, WriteClaim};
use rdma_core::{Buffer, Error as VerbsError};

use super::PieceLender;
use crate::error::{Error, Result};

/// Registered memory of this process.
///
/// Operations take the region, or a slice of it, by reference. The program cannot read the bytes
/// while an operation is writing to them, and cannot write the bytes while any operation is using
/// them. While the future lives, its borrow prevents such an access. If the future is dropped
/// earlier, a claim prevents it until the operation has completed.
#[derive(Debug)]
pub struct LocalMr {
    /// `None` only within `drop` and `into_parts`.
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

    /// Takes the region apart. Returns the region with an error while an operation is using it.
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

    /// Returns the region with only its first `len` bytes, which must not be more than it has.
    pub(crate) fn truncated(mut self, len: usize) -> Self {
        debug_assert!(len <= self.range.len(), "a region cannot grow");
        self.range.end = self.range.start + len;
        self
    }

    /// Splits the region at byte `at` into two regions, which different operations can use at once.
    ///
    /// ```
    /// # use std::alloc::Layout;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// # use rdma_async::RdmaBuilder;
    /// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
    /// # let address = listener.local_address()?;
    /// # let (client, server) =
    /// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
    /// let layout = Layout::new::<[u8; 4096]>();
    /// let remote = client.request_remote_mr(layout).await?;
    /// let region = client.alloc_local_mr(layout)?;
    /// let (mut front, mut back) = region.split_at(1000).map_err(|(_, error)| error)?;
    /// let from_front = remote.get(0..1000).expect("a part");
    /// let from_back = remote.get(1000..4096).expect("a part");
    /// tokio::try_join!(
    ///     client.read(&mut front, &from_front),
    ///     client.read(&mut back, &from_back),
    /// )?;
    /// let region = front.join(back)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The region, with [`rdma_core::Error::InUse`](rdma_core::Error) while an operation is using
    /// it, or with [`Error::InvalidArgument`] if `at` is greater than the length.
    pub fn split_at(self, at: usize) -> Result<(Self, Self), (Self, Error)> {
        if at > self.range.len() {
            let reason = format!("byte {at} is not one of its {}", self.range.len());
            return Err((
                self,
                Error::invalid("split of a local memory region", reason),
            ));
        }
        let Parts {
            buffer,
            range,
            lender,
        } = self
            .into_parts()
            .map_err(|(region, error)| (region, error.into()))?;
        let middle = range.start + at;
        let (front, back) = buffer.split_at(middle);
        // The lender takes the memory back only after the parts were joined to a whole piece.
        Ok((
            Self::new(
                SharedBuffer::new(front),
                range.start..middle,
                lender.clone(),
            ),
            Self::new(SharedBuffer::new(back), 0..range.end - middle, lender),
        ))
    }

    /// Joins two regions that [`Self::split_at`] returned.
    ///
    /// # Errors
    ///
    /// Both regions, with [`rdma_core::Error::InUse`](rdma_core::Error) while an operation is using
    /// either region, or with [`Error::InvalidArgument`] if `back` does not directly follow this
    /// region.
    pub fn join(self, back: Self) -> Result<Self, Box<NotJoined>> {
        let front = match self.into_parts() {
            Ok(front) => front,
            Err((front, error)) => return Err(NotJoined::new(front, back, error)),
        };
        let back = match back.into_parts() {
            Ok(back) => back,
            Err((back, error)) => return Err(NotJoined::new(front.into_region(), back, error)),
        };
        if front.range.end != front.buffer.len() || back.range.start != 0 {
            return Err(NotJoined::foreign(front, back));
        }
        let range = front.range.start..front.range.end + back.range.end;
        match front.buffer.join(back.buffer) {
            Ok(whole) => Ok(Self::new(SharedBuffer::new(whole), range, front.lender)),
            Err((front_buffer, back_buffer)) => Err(NotJoined::foreign(
                Parts {
                    buffer: front_buffer,
                    ..front
                },
                Parts {
                    buffer: back_buffer,
                    ..back
                },
            )),
        }
    }

    /// Returns the bytes of `range` for reading, or `None` if `range` exceeds the region.
    pub fn get(&self, range: Range<usize>) -> Option<LocalMrSlice<'_>> {
        let range = inside(&self.range, &range)?;
        Some(LocalMrSlice {
            region: self,
            range,
        })
    }

    /// Returns the bytes of `range` for reading and writing, or `None` if `range` exceeds the
    /// region.
    pub fn get_mut(&mut self, range: Range<usize>) -> Option<LocalMrSliceMut<'_>> {
        let range = inside(&self.range, &range)?;
        Some(LocalMrSliceMut {
            region: self,
            range,
        })
    }
}

/// Error of [`LocalMr::join`], with the two regions that were not joined.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotJoined {
    /// Region that was to be the front.
    pub front: LocalMr,
    /// Region that was to be the back.
    pub back: LocalMr,
    /// Reason for not joining the regions.
    pub error: Error,
}

impl NotJoined {
    fn new(front: LocalMr, back: LocalMr, error: impl Into<Error>) -> Box<Self> {
        Box::new(Self {
            front,
            back,
            error: error.into(),
        })
    }

    fn foreign(front: Parts, back: Parts) -> Box<Self> {
        let error = Error::invalid("join of local memory regions", "they are no neighbours");
        Self::new(front.into_region(), back.into_region(), error)
    }
}

impl From<Box<NotJoined>> for Error {
    fn from(refused: Box<NotJoined>) -> Self {
        refused.error
    }
}

/// Parts of a [`LocalMr`].
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) buffer: Buffer,
    /// Range of the buffer that belongs to the region.
    pub(crate) range: Range<usize>,
    /// Lender to which the buffer is returned.
    pub(crate) lender: Option<Arc<PieceLender>>,
}

impl Parts {
    fn into_region(self) -> LocalMr {
        LocalMr::new(SharedBuffer::new(self.buffer), self.range, self.lender)
    }
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

/// Returns the range of `part`, whose bounds are relative to the start of `whole`, or `None` if it
/// exceeds `whole`.
pub(super) fn inside(whole: &Range<usize>, part: &Range<usize>) -> Option<Range<usize>> {
    let range = whole.start.checked_add(part.start)?..whole.start.checked_add(part.end)?;
    (range.start <= range.end && range.end <= whole.end).then_some(range)
}

pub(crate) mod sealed {
    use super::{Range, SharedBuffer};

    /// Access to the buffer of a region or slice, and to its range in the buffer.
    pub trait Memory {
        fn shared(&self) -> (&SharedBuffer, Range<usize>);
    }

    /// Exclusive access to the buffer of a region or slice, for writing.
    pub trait MemoryMut: Memory {
        fn shared_mut(&mut self) -> (&mut SharedBuffer, Range<usize>);
    }
}

/// Local memory that an operation can read, as the source of a write or a send. Sealed.
pub trait LocalMrReadAccess: sealed::Memory {
    /// Returns the length in bytes.
    fn length(&self) -> usize {
        self.shared().1.len()
    }

    /// Returns the bytes.
    ///
    /// # Panics
    ///
    /// If an operation whose future was dropped is still writing to the bytes.
    /// [`Self::try_as_slice`] returns an error instead.
    fn as_slice(&self) -> &[u8] {
        match self.try_as_slice() {
            Ok(bytes) => bytes,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the bytes, or an error if an operation is writing to them.
    ///
    /// # Errors
    ///
    /// [`rdma_core::Error::InUse`] if an operation whose future was dropped is still writing to the
    /// bytes.
    fn try_as_slice(&self) -> Result<&[u8]> {
        let (memory, range) = self.shared();
        Ok(&memory.bytes()?[range])
    }
}

/// Local memory that an operation can write, as the destination of a read. Sealed.
pub trait LocalMrWriteAccess: LocalMrReadAccess + sealed::MemoryMut {
    /// Returns the bytes for writing.
    ///
    /// # Panics
    ///
    /// If an operation whose future was dropped is still using the bytes.
    /// [`Self::try_as_mut_slice`] returns an error instead.
    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self.try_as_mut_slice() {
            Ok(bytes) => bytes,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the bytes for writing, or an error if an operation is using them.
    ///
    /// # Errors
    ///
    /// [`rdma_core::Error::InUse`] if an operation whose future was dropped is still using the
    /// bytes.
    fn try_as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let (memory, range) = self.shared_mut();
        Ok(&mut memory.bytes_mut()?[range])
    }
}

/// Claims memory for an operation that reads it.
pub(crate) fn claim_read(memory: &(impl LocalMrReadAccess + ?Sized)) -> Result<ReadClaim> {
    let (memory, range) = memory.shared();
    Ok(memory.try_read(range)?)
}

/// Claims memory for an operation that writes it.
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
