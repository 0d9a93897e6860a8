//! Memory whose use is decided at run time.

use std::ops::{Deref, DerefMut, Range, RangeBounds};
use std::sync::Arc;

use super::Buffer;
use super::buffer::resolve;
use super::gather::{Elements, Gather, Scatter, sealed};
use crate::error::{Error, Result};
use crate::ffi::{LocalKey, Reading, RegionHandle, Shared, Span, Writing};

/// A buffer that is claimed for each use, by any number of readers or one writer.
///
/// It is for layers where a handle to memory must stay usable while the device has the memory: an
/// operation holds a claim until it completes, even if whoever started it is gone, and another use
/// in the meantime fails with [`Error::InUse`] instead of waiting. A claim costs one atomic
/// operation; borrowing the bytes costs a look.
#[derive(Debug)]
pub struct SharedBuffer {
    shared: Arc<Shared>,
}

impl SharedBuffer {
    /// Makes a buffer shared.
    pub fn new(buffer: Buffer) -> Self {
        Self {
            shared: Arc::new(Shared::new(buffer.into_span())),
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.shared.len() == 0
    }

    /// Whether nobody, no operation in flight either, holds a claim at this moment.
    pub fn is_unclaimed(&self) -> bool {
        self.shared.is_unclaimed()
    }

    /// Claims a range for reading.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while it is claimed for writing, [`Error::OutOfRange`] if the range is not
    /// inside.
    #[inline]
    pub fn try_read(&self, range: impl RangeBounds<usize>) -> Result<ReadClaim> {
        let range = resolve(range, self.len())?;
        match self.shared.claim_read() {
            Some(reading) => Ok(ReadClaim { reading, range }),
            None => Err(written()),
        }
    }

    /// Claims it for writing to a range.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while it is claimed at all, [`Error::OutOfRange`] if the range is not
    /// inside.
    #[inline]
    pub fn try_write(&mut self, range: impl RangeBounds<usize>) -> Result<WriteClaim> {
        let range = resolve(range, self.len())?;
        match self.shared.claim_write() {
            Some(writing) => Ok(WriteClaim { writing, range }),
            None => Err(claimed()),
        }
    }

    /// The bytes, if nobody writes them.
    ///
    /// While they are borrowed nobody can begin to: a write claim needs `&mut self`.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while it is claimed for writing.
    #[inline]
    pub fn bytes(&self) -> Result<&[u8]> {
        self.shared.bytes().ok_or_else(written)
    }

    /// The bytes for writing, if nobody has a claim.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while it is claimed at all.
    #[inline]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let Self { shared } = self;
        Shared::bytes_mut(shared).ok_or_else(claimed)
    }

    /// Makes it a claim for writing to a range, without an owner beside it; from there
    /// [`WriteClaim::into_shared`] leads back. Nothing is allocated either way.
    ///
    /// # Errors
    ///
    /// The shared buffer itself, while it is claimed, or if the range is not inside.
    pub fn into_claim(mut self, range: impl RangeBounds<usize>) -> Result<WriteClaim, Self> {
        self.try_write(range).map_err(|_| self)
    }

    /// The buffer again, if no claim is held.
    ///
    /// # Errors
    ///
    /// The shared buffer itself, while it is claimed.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        match Arc::try_unwrap(self.shared) {
            Ok(shared) => Ok(Buffer::new(shared.into_span())),
            Err(shared) => Err(Self { shared }),
        }
    }
}

/// The right to read a range of a [`SharedBuffer`]; others may hold the same.
#[derive(Debug)]
pub struct ReadClaim {
    reading: Reading,
    range: Range<usize>,
}

impl ReadClaim {
    /// The registration and the range of its memory that this claims.
    pub(super) fn place(&self) -> (&RegionHandle, Range<usize>) {
        let span = self.reading.span();
        let start = span.range().start;
        (
            span.region(),
            start + self.range.start..start + self.range.end,
        )
    }
}

impl Deref for ReadClaim {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.reading.span().bytes()[self.range.clone()]
    }
}

/// The sole right to a [`SharedBuffer`], for reading and writing a range of it.
#[derive(Debug)]
pub struct WriteClaim {
    writing: Writing,
    range: Range<usize>,
}

impl WriteClaim {
    /// Ends the claim; the memory is a shared buffer again, if the one it was claimed from is gone.
    ///
    /// # Errors
    ///
    /// The claim itself, if the shared buffer it was claimed from still exists.
    pub fn into_shared(self) -> Result<SharedBuffer, Self> {
        let Self { writing, range } = self;
        match writing.into_shared() {
            Ok(shared) => Ok(SharedBuffer { shared }),
            Err(writing) => Err(Self { writing, range }),
        }
    }
}

impl Deref for WriteClaim {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.writing.span().bytes()[self.range.clone()]
    }
}

impl DerefMut for WriteClaim {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.writing.bytes_mut()[self.range.clone()]
    }
}

/// A claim of either kind, for queues whose requests need both.
#[derive(Debug)]
pub enum Claim {
    /// For a request that only reads.
    Read(ReadClaim),
    /// For a request that writes.
    Write(WriteClaim),
}

impl From<ReadClaim> for Claim {
    fn from(claim: ReadClaim) -> Self {
        Self::Read(claim)
    }
}

impl From<WriteClaim> for Claim {
    fn from(claim: WriteClaim) -> Self {
        Self::Write(claim)
    }
}

impl sealed::Sealed for ReadClaim {}

impl Gather for ReadClaim {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        // In a `Claim` it can stand where a request wants memory to write to.
        elements.forbid_writing();
        elements.push_range(self.reading.span(), &self.range);
    }
}

impl sealed::Sealed for WriteClaim {}

impl Gather for WriteClaim {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        elements.push_range(self.writing.span(), &self.range);
    }
}

impl Scatter for WriteClaim {}

impl sealed::Sealed for Claim {}

impl Gather for Claim {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        match self {
            Self::Read(claim) => claim.gather(elements),
            Self::Write(claim) => claim.gather(elements),
        }
    }
}

impl Scatter for Claim {
    #[inline]
    fn scatter(&self, elements: &mut Elements<'_>) -> Result<()> {
        match self {
            Self::Read(_) => Err(Error::NotWritable),
            Self::Write(claim) => claim.scatter(elements),
        }
    }
}

impl sealed::Sealed for Span {}

impl sealed::Contiguous for Span {
    #[inline]
    fn address(&self) -> u64 {
        self.address()
    }

    #[inline]
    fn size(&self) -> usize {
        self.len()
    }

    #[inline]
    fn lkey(&self) -> LocalKey {
        self.region().lkey()
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        self.region().is_mapped()
    }
}

/// The error of a claim for reading.
#[cold]
fn written() -> Error {
    Error::in_use("a shared buffer", "a claim for writing")
}

/// The error of a claim for writing.
#[cold]
fn claimed() -> Error {
    Error::in_use("a shared buffer", "a claim for reading or writing")
}
