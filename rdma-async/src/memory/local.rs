//! [`LocalMr`]: registered memory of this process, which operations read and write.

use std::ops::Range;
use std::sync::Arc;

use rdma_core::memory::{ReadClaim, SharedBuffer, WriteClaim};
use rdma_core::{AccessFlags, Buffer, Error as VerbsError};

use super::PieceLender;
use crate::error::{Error, Result};

/// Registered memory of this process.
///
/// Operations take the region, or a slice of the region, by reference. While an operation is using
/// memory, the program cannot write to the memory. While an operation is writing to memory, the
/// program cannot read the memory either. The borrow of the operation's future prevents such
/// accesses. If the future is dropped before the operation has completed, a claim, which the
/// operation holds on the memory, prevents such accesses until then.
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

    #[inline]
    fn memory(&self) -> &SharedBuffer {
        self.memory
            .as_ref()
            .expect("only `drop` and `into_parts` take the memory")
    }

    #[inline]
    fn memory_mut(&mut self) -> &mut SharedBuffer {
        self.memory
            .as_mut()
            .expect("only `drop` and `into_parts` take the memory")
    }

    /// Splits this value into the registered buffer, the range of the region in the buffer, and the
    /// lender: the pool to which the buffer returns (`None` for memory of the program). While an
    /// operation is using the region, returns the region and an error.
    pub(crate) fn into_parts(mut self) -> Result<RegionParts, (Self, VerbsError)> {
        let memory = self
            .memory
            .take()
            .expect("only `drop` and `into_parts` take the memory");
        match memory.into_buffer() {
            Ok(buffer) => Ok(RegionParts {
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

    /// Returns the region, shortened to its first `len` bytes. `len` must not exceed the length of
    /// the region.
    pub(crate) fn truncated(mut self, len: usize) -> Self {
        debug_assert!(len <= self.range.len(), "a region cannot grow");
        self.range.end = self.range.start + len;
        self
    }

    /// Splits the region at byte `at` into two regions, which different operations can use
    /// concurrently.
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
    /// Every error is returned together with the region.
    /// [`rdma_core::Error::InUse`](rdma_core::Error) while an operation is using the region.
    /// [`Error::InvalidArgument`] if `at` is greater than the length.
    pub fn split_at(self, at: usize) -> Result<(Self, Self), (Self, Error)> {
        if at > self.range.len() {
            let reason = format!("byte {at} is after its end at {}", self.range.len());
            return Err((
                self,
                Error::invalid("split of a local memory region", reason),
            ));
        }
        let RegionParts {
            buffer,
            range,
            lender,
        } = self
            .into_parts()
            .map_err(|(region, error)| (region, error.into()))?;
        let middle = range.start + at;
        let (front, back) = buffer.split_at(middle);
        // Both parts keep the lender. A part is freed when it is dropped, and the joined region
        // returns to the lender.
        Ok((
            Self::new(
                SharedBuffer::new(front),
                range.start..middle,
                lender.clone(),
            ),
            Self::new(SharedBuffer::new(back), 0..range.end - middle, lender),
        ))
    }

    /// Joins this region and `back`, the region that directly follows it, to one region, and
    /// returns the joined region. Both regions must be parts of one region that was split by
    /// [`Self::split_at`].
    ///
    /// # Errors
    ///
    /// Every error is returned together with both regions.
    /// [`rdma_core::Error::InUse`](rdma_core::Error) while an operation is using one of the
    /// regions. [`Error::InvalidArgument`] if `back` does not directly follow this region.
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
            return Err(NotJoined::not_adjacent(front, back));
        }
        let range = front.range.start..front.range.end + back.range.end;
        match front.buffer.join(back.buffer) {
            Ok(whole) => Ok(Self::new(SharedBuffer::new(whole), range, front.lender)),
            Err((front_buffer, back_buffer)) => Err(NotJoined::not_adjacent(
                RegionParts {
                    buffer: front_buffer,
                    ..front
                },
                RegionParts {
                    buffer: back_buffer,
                    ..back
                },
            )),
        }
    }

    /// Deregisters memory of the program. Returns the value that owns the memory, such as a
    /// `Vec<u8>`, which the program has passed to
    /// [`RdmaDevice::register`](crate::RdmaDevice::register).
    ///
    /// ```
    /// use rdma_async::{LocalMrWriteAccess, RdmaDevice};
    ///
    /// let device = RdmaDevice::open_default()?;
    /// let region = device.register(vec![0; 100]);
    /// let mut region = region.map_err(|(_, error)| error)?;
    /// region.as_mut_slice().fill(7);
    /// let owner: Vec<u8> = region.into_owner().map_err(|(_, error)| error)?;
    /// assert_eq!(owner, [7; 100]);
    /// # Ok::<(), rdma_async::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Every error is returned together with the region.
    /// [`rdma_core::Error::InUse`](rdma_core::Error) while an operation is using the region, or if
    /// the region is only a part of the registered memory. [`Error::InvalidArgument`] if the memory
    /// is not owned by an `O`, or belongs to the pool of the device. Otherwise the error of
    /// `ibv_dereg_mr`.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_owner<O: 'static>(self) -> Result<O, (Self, Error)> {
        if self.lender.is_some() {
            let reason = "the memory belongs to the pool of the device";
            let error = Error::invalid("owner of a local memory region", reason);
            return Err((self, error));
        }
        let RegionParts {
            buffer,
            range,
            lender,
        } = self
            .into_parts()
            .map_err(|(region, error)| (region, error.into()))?;
        buffer.into_owner().map_err(|refused| {
            let region = Self::new(SharedBuffer::new(refused.value), range, lender);
            (region, refused.error.into())
        })
    }

    /// Returns a slice of the region for reading, or `None` if `range` exceeds the region.
    pub fn get(&self, range: Range<usize>) -> Option<LocalMrSlice<'_>> {
        let range = subrange(&self.range, &range)?;
        Some(LocalMrSlice {
            region: self,
            range,
        })
    }

    /// Returns a slice of the region for reading and writing, or `None` if `range` exceeds the
    /// region.
    pub fn get_mut(&mut self, range: Range<usize>) -> Option<LocalMrSliceMut<'_>> {
        let range = subrange(&self.range, &range)?;
        Some(LocalMrSliceMut {
            region: self,
            range,
        })
    }
}

/// Creates a region of memory that the program has registered itself, for example with options
/// ([`Registration`](rdma_core::memory::Registration)). The buffer must belong to the
/// [protection domain of the device](crate::RdmaDevice::protection_domain): the device refuses
/// operations on memory of another protection domain, which ends their connection.
impl From<Buffer> for LocalMr {
    fn from(buffer: Buffer) -> Self {
        let range = 0..buffer.len();
        Self::new(SharedBuffer::new(buffer), range, None)
    }
}

/// Error of [`LocalMr::join`]. Contains the two regions that were not joined.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotJoined {
    /// Region on which [`LocalMr::join`] was called.
    pub front: LocalMr,
    /// Region that was passed to [`LocalMr::join`].
    pub back: LocalMr,
    /// Reason why the regions were not joined.
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

    /// Creates the error for two regions that cannot be joined, because they are not adjacent parts
    /// of one region. The error contains both regions, so that the program gets them back.
    fn not_adjacent(front: RegionParts, back: RegionParts) -> Box<Self> {
        let error = Error::invalid("join of local memory regions", "they are not adjacent");
        Self::new(front.into_region(), back.into_region(), error)
    }
}

impl From<Box<NotJoined>> for Error {
    fn from(refused: Box<NotJoined>) -> Self {
        refused.error
    }
}

/// Parts of a [`LocalMr`]: its buffer, its range in the buffer, and the lender (pool of buffers) to
/// which the buffer returns.
#[derive(Debug)]
pub(crate) struct RegionParts {
    pub(crate) buffer: Buffer,
    /// Range of the buffer that the region consists of.
    pub(crate) range: Range<usize>,
    /// Lender to which the buffer returns when the region is dropped.
    pub(crate) lender: Option<Arc<PieceLender>>,
}

impl RegionParts {
    /// Returns whether memory windows can be bound to the buffer, which depends on the access
    /// rights of its registration.
    pub(crate) fn allows_windows(&self) -> bool {
        self.buffer.access().contains(AccessFlags::WINDOW_BIND)
    }

    /// Converts the parts (buffer, range, and pool of the buffer) back to a region.
    pub(crate) fn into_region(self) -> LocalMr {
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

/// Slice of a [`LocalMr`] for reading, for example to send a part of the region. Created by
/// [`LocalMr::get`].
#[derive(Debug)]
pub struct LocalMrSlice<'a> {
    region: &'a LocalMr,
    range: Range<usize>,
}

/// Slice of a [`LocalMr`] for reading and writing, for example to fill a part of the region by an
/// RDMA read. Created by [`LocalMr::get_mut`].
#[derive(Debug)]
pub struct LocalMrSliceMut<'a> {
    region: &'a mut LocalMr,
    range: Range<usize>,
}

/// Converts `part`, whose bounds are relative to the start of `whole`, to absolute bounds. Returns
/// `None` if `part` exceeds `whole`.
pub(super) fn subrange(whole: &Range<usize>, part: &Range<usize>) -> Option<Range<usize>> {
    let range = whole.start.checked_add(part.start)?..whole.start.checked_add(part.end)?;
    (range.start <= range.end && range.end <= whole.end).then_some(range)
}

pub(crate) mod sealed {
    use super::{Range, SharedBuffer};

    /// Access to the registered buffer of a local region or slice, and to the range of the region
    /// or slice in the buffer. This trait is not exported. Other crates thus cannot implement the
    /// public traits that require it.
    pub trait RegionAccess {
        fn buffer_and_range(&self) -> (&SharedBuffer, Range<usize>);
    }

    /// Mutable access to the registered buffer of a local region or slice, for operations that
    /// write to the memory.
    pub trait RegionAccessMut: RegionAccess {
        fn buffer_and_range_mut(&mut self) -> (&mut SharedBuffer, Range<usize>);
    }
}

/// Local memory that an operation can read from, for example as the source of a write or a send.
/// Only [`LocalMr`], its slices and [`SharedLocalMr`] implement this trait (sealed trait).
///
/// [`SharedLocalMr`]: crate::SharedLocalMr
pub trait LocalMrReadAccess: sealed::RegionAccess {
    /// Returns the length of this local memory in bytes.
    fn length(&self) -> usize {
        self.buffer_and_range().1.len()
    }

    /// Returns the bytes of the memory.
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

    /// Returns the bytes of the memory, or an error if an operation is writing to them.
    ///
    /// # Errors
    ///
    /// [`rdma_core::Error::InUse`] if an operation whose future was dropped is still writing to the
    /// bytes.
    fn try_as_slice(&self) -> Result<&[u8]> {
        let (memory, range) = self.buffer_and_range();
        Ok(&memory.bytes()?[range])
    }
}

/// Local memory that an operation can write to, for example as the destination of a read. Only
/// [`LocalMr`] and [`LocalMrSliceMut`] implement this trait (sealed trait).
pub trait LocalMrWriteAccess: LocalMrReadAccess + sealed::RegionAccessMut {
    /// Returns the bytes of the memory for writing.
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

    /// Returns the bytes of the memory for writing, or an error if an operation is using them.
    ///
    /// # Errors
    ///
    /// [`rdma_core::Error::InUse`] if an operation whose future was dropped is still using the
    /// bytes.
    fn try_as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let (memory, range) = self.buffer_and_range_mut();
        Ok(&mut memory.bytes_mut()?[range])
    }
}

/// Claims memory for an operation that reads from the memory, such as a send. Until the claim is
/// dropped, the program cannot write to the memory. Fails if an operation is writing to the memory.
pub(crate) fn claim_read(memory: &(impl LocalMrReadAccess + ?Sized)) -> Result<ReadClaim> {
    let (memory, range) = memory.buffer_and_range();
    Ok(memory.try_read(range)?)
}

/// Claims memory for an operation that writes to the memory, such as an RDMA read. Until the claim
/// is dropped, the program can neither read nor write the memory. Fails if another operation is
/// using the memory.
pub(crate) fn claim_write(memory: &mut (impl LocalMrWriteAccess + ?Sized)) -> Result<WriteClaim> {
    let (memory, range) = memory.buffer_and_range_mut();
    Ok(memory.try_write(range)?)
}

impl sealed::RegionAccess for LocalMr {
    #[inline]
    fn buffer_and_range(&self) -> (&SharedBuffer, Range<usize>) {
        (self.memory(), self.range.clone())
    }
}

impl sealed::RegionAccessMut for LocalMr {
    #[inline]
    fn buffer_and_range_mut(&mut self) -> (&mut SharedBuffer, Range<usize>) {
        let range = self.range.clone();
        (self.memory_mut(), range)
    }
}

impl sealed::RegionAccess for LocalMrSlice<'_> {
    fn buffer_and_range(&self) -> (&SharedBuffer, Range<usize>) {
        (self.region.memory(), self.range.clone())
    }
}

impl sealed::RegionAccess for LocalMrSliceMut<'_> {
    fn buffer_and_range(&self) -> (&SharedBuffer, Range<usize>) {
        (self.region.memory(), self.range.clone())
    }
}

impl sealed::RegionAccessMut for LocalMrSliceMut<'_> {
    fn buffer_and_range_mut(&mut self) -> (&mut SharedBuffer, Range<usize>) {
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
    use super::subrange;

    #[test]
    #[allow(
        clippy::reversed_empty_ranges,
        reason = "a reversed range must be refused"
    )]
    fn parts_do_not_exceed_the_whole() {
        assert_eq!(subrange(&(16..24), &(4..8)), Some(20..24));
        assert_eq!(subrange(&(16..24), &(8..8)), Some(24..24));
        assert_eq!(subrange(&(16..24), &(4..9)), None);
        assert_eq!(subrange(&(16..24), &(5..4)), None);
        assert_eq!(subrange(&(16..24), &(0..usize::MAX)), None);
    }
}
