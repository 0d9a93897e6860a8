//! Local memory regions.

use std::ops::Range;
use std::sync::Arc;

use rdma_core::{Buffer, Error as VerbsError, ReadClaim, SharedBuffer, WriteClaim};

use super::PieceLender;
use crate::error::{Error, Result};

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

    /// Splits the region into two, at this byte, which can be in different operations at once.
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
    /// The region, with [`rdma_core::Error::InUse`](rdma_core::Error) while an operation is using it,
    /// and with [`Error::InvalidArgument`] for a byte that is not inside.
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
        // Whoever lent the memory takes it back when it is whole again.
        Ok((
            Self::new(
                SharedBuffer::new(front),
                range.start..middle,
                lender.clone(),
            ),
            Self::new(SharedBuffer::new(back), 0..range.end - middle, lender),
        ))
    }

    /// Joins two regions that were [split](Self::split_at).
    ///
    /// # Errors
    ///
    /// Both regions, with [`rdma_core::Error::InUse`](rdma_core::Error) while an operation is using one
    /// of them, and with [`Error::InvalidArgument`] if they are not neighbours in this order.
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

/// Two regions that could not be joined. From [`LocalMr::join`].
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

/// What a [`LocalMr`] is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) buffer: Buffer,
    /// The part of the buffer that the region is.
    pub(crate) range: Range<usize>,
    /// Who wants the buffer back.
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
