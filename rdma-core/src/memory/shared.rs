//! Memory for which access is checked at run time, by claims.

use std::ops::{Deref, DerefMut, Range, RangeBounds};
use std::sync::Arc;

use super::buffer::resolve;
use super::gather::{Elements, Gather, Scatter, sealed};
use super::{Buffer, FrozenBuffer};
use crate::error::{Error, Result};
use crate::ffi::{LocalKey, Reading, RegionHandle, Shared, Span, Writing};

/// A buffer whose use is checked at run time by claims, like a read-write lock that never blocks. A
/// claim is a right to use the memory. Several read claims can exist at the same time. A write
/// claim excludes all other claims.
///
/// The type is intended for software layers that keep a handle to the memory while the device is
/// using the memory. A request holds its claim until the request completes, even if the caller that
/// posted the request no longer exists. A conflicting use fails with [`Error::InUse`] instead of
/// waiting. A claim costs one atomic operation, and borrowing the bytes costs one atomic load.
#[derive(Debug)]
pub struct SharedBuffer {
    shared: Arc<Shared>,
}

impl SharedBuffer {
    /// Converts `buffer` to a shared buffer on which no claim (a right to use the memory) exists
    /// yet.
    pub fn new(buffer: Buffer) -> Self {
        Self {
            shared: Arc::new(Shared::new(buffer.into_span())),
        }
    }

    /// Returns the length of the buffer in bytes.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.shared.len() == 0
    }

    /// Returns whether no claim (a right to use the memory) on the buffer exists at this moment.
    /// Requests in flight also hold claims.
    pub fn is_unclaimed(&self) -> bool {
        self.shared.is_unclaimed()
    }

    /// Returns whether this value is the only holder of the memory: no request or other user has a
    /// claim (a right to use the memory), and no claim is just being dropped.
    ///
    /// ```
    /// # fn main() -> rdma_core::Result<()> {
    /// # let domain = rdma_core::Context::open_default()?.protection_domain()?;
    /// let buffer = rdma_core::memory::SharedBuffer::new(domain.allocate(64)?);
    /// assert!(buffer.is_sole_holder());
    /// let claim = buffer.try_read(..)?;
    /// assert!(!buffer.is_sole_holder());
    /// # drop(claim);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn is_sole_holder(&self) -> bool {
        Shared::is_sole(&self.shared)
    }

    /// Creates a claim to read the bytes in `range` of the buffer. While this claim exists, no
    /// write claim on the buffer can be created.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while the buffer is claimed for writing, [`Error::OutOfRange`] if the range
    /// is not inside of the buffer.
    #[inline]
    pub fn try_read(&self, range: impl RangeBounds<usize>) -> Result<ReadClaim> {
        let range = resolve(range, self.len())?;
        match self.shared.claim_read() {
            Some(reading) => Ok(ReadClaim { reading, range }),
            None => Err(write_claim_exists()),
        }
    }

    /// Creates the exclusive claim to read and write the bytes in `range` of the buffer. While this
    /// claim exists, no other claim on any part of the buffer can be created.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while another claim exists, [`Error::OutOfRange`] if the range is not
    /// inside of the buffer.
    #[inline]
    pub fn try_write(&mut self, range: impl RangeBounds<usize>) -> Result<WriteClaim> {
        let range = resolve(range, self.len())?;
        match self.shared.claim_write() {
            Some(writing) => Ok(WriteClaim { writing, range }),
            None => Err(claim_exists()),
        }
    }

    /// Returns the bytes of the buffer for reading, if no write claim (the right of a request or
    /// other user to write to the memory) exists.
    ///
    /// No write claim can be created while the bytes are borrowed, because [`Self::try_write`]
    /// needs `&mut self`.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while the buffer is claimed for writing.
    #[inline]
    pub fn bytes(&self) -> Result<&[u8]> {
        self.shared.bytes().ok_or_else(write_claim_exists)
    }

    /// Returns the bytes of the buffer for writing, if no claim (a right of a request or other user
    /// to use the memory) exists.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while a claim exists.
    #[inline]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let Self { shared } = self;
        Shared::bytes_mut(shared).ok_or_else(claim_exists)
    }

    /// Converts the shared buffer to a write claim: the exclusive right to read and write the bytes
    /// in `range`. [`WriteClaim::into_shared`] converts the claim back. Neither conversion
    /// allocates memory.
    ///
    /// # Errors
    ///
    /// Returns the shared buffer, if a claim exists or if the range is not inside of the buffer.
    #[inline]
    pub fn into_claim(self, range: impl RangeBounds<usize>) -> Result<WriteClaim, Self> {
        let Ok(range) = resolve(range, self.len()) else {
            return Err(self);
        };
        match self.shared.into_claim() {
            Ok(writing) => Ok(WriteClaim { writing, range }),
            Err(shared) => Err(Self { shared }),
        }
    }

    /// Returns the underlying buffer, if no claim (a right of a request or other user to use the
    /// memory) exists.
    ///
    /// # Errors
    ///
    /// Returns the shared buffer, if a claim exists.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        match Arc::try_unwrap(self.shared) {
            Ok(shared) => Ok(Buffer::new(shared.into_span())),
            Err(shared) => Err(Self { shared }),
        }
    }
}

/// Read-only registered memory that several requests and clones of this value can use at the same
/// time. Each request holds a [`ReadClaim`], a right to read that keeps the memory registered.
///
/// This type is the read-only counterpart of [`SharedBuffer`], for example for memory of the
/// program that was registered by [`ProtectionDomain::register_shared`].
///
/// [`ProtectionDomain::register_shared`]: crate::ProtectionDomain::register_shared
///
/// ```
/// use std::sync::Arc;
///
/// use rdma_core::memory::SharedFrozenBuffer;
///
/// # fn main() -> rdma_core::Result<()> {
/// # let domain = rdma_core::Context::open_default()?.protection_domain()?;
/// let owner: Arc<[u8]> = Arc::from([7; 64]);
/// let frozen = domain.register_shared(Arc::clone(&owner))?;
/// let shared = SharedFrozenBuffer::new(frozen).expect("no other clone exists");
/// let claim = shared.as_shared().try_read(..8)?;
/// assert_eq!(claim.as_ptr(), owner.as_ptr());
/// // The claim keeps the memory registered.
/// drop(shared);
/// assert_eq!(Arc::strong_count(&owner), 2);
/// drop(claim);
/// assert_eq!(Arc::strong_count(&owner), 1);
/// # Ok(())
/// # }
/// ```
///
/// The memory cannot be claimed for writing:
///
/// ```compile_fail,E0596
/// # use rdma_core::memory::{SharedFrozenBuffer, WriteClaim};
/// fn write(mut shared: SharedFrozenBuffer) -> rdma_core::Result<WriteClaim> {
///     shared.as_shared().try_write(..)
/// }
/// ```
#[derive(Debug)]
pub struct SharedFrozenBuffer {
    /// Never given out by value or by exclusive reference, both of which would allow writes.
    shared: SharedBuffer,
}

impl SharedFrozenBuffer {
    /// Converts a frozen buffer to a shared read-only buffer, if no other clone or part of the
    /// frozen buffer exists.
    ///
    /// # Errors
    ///
    /// Returns the frozen buffer if other clones or parts of it exist, or if `frozen` is only a
    /// part of the registered memory.
    pub fn new(frozen: FrozenBuffer) -> Result<Self, FrozenBuffer> {
        if frozen.range() != (0..frozen.buffer().len()) {
            return Err(frozen);
        }
        frozen.into_inner().map(|buffer| Self {
            shared: SharedBuffer::new(buffer),
        })
    }

    /// Returns the memory as a [`SharedBuffer`], from which rights to read the memory
    /// ([`ReadClaim`]s) can be created. Rights to write cannot be created through this reference.
    pub fn as_shared(&self) -> &SharedBuffer {
        &self.shared
    }

    /// Returns the underlying read-only buffer, if no other clone of this value exists and no
    /// [`ReadClaim`] uses the memory.
    ///
    /// # Errors
    ///
    /// Returns this value, if a clone or a claim exists.
    pub fn into_frozen(self) -> Result<FrozenBuffer, Self> {
        match self.shared.into_buffer() {
            Ok(buffer) => Ok(buffer.freeze()),
            Err(shared) => Err(Self { shared }),
        }
    }
}

impl Clone for SharedFrozenBuffer {
    fn clone(&self) -> Self {
        Self {
            shared: SharedBuffer {
                shared: Arc::clone(&self.shared.shared),
            },
        }
    }
}

/// The right to read a range of a [`SharedBuffer`], until this value is dropped. Several read
/// claims can exist at the same time.
#[derive(Debug)]
pub struct ReadClaim {
    reading: Reading,
    range: Range<usize>,
}

impl ReadClaim {
    /// Returns the registration of the claimed memory, and the claimed byte range, counted from the
    /// start of the registered memory.
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

/// The exclusive right to read and write a range of a [`SharedBuffer`], until this value is
/// dropped.
#[derive(Debug)]
pub struct WriteClaim {
    writing: Writing,
    range: Range<usize>,
}

impl WriteClaim {
    /// Ends the claim and returns the memory as a new shared buffer.
    ///
    /// # Errors
    ///
    /// Returns the claim if the shared buffer on which the claim was created still exists.
    #[inline]
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

/// A read claim or a write claim on shared memory, as the memory of a request. All requests of a
/// queue have the same memory type. With this type, one queue can post both requests that read
/// memory and requests that write to memory.
#[derive(Debug)]
pub enum Claim {
    /// The claim of a request that only reads the memory.
    Read(ReadClaim),
    /// The claim of a request that writes to the memory.
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
        // Without this call, a request that writes to memory could use a read claim inside of a
        // `Claim`.
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

/// Returns the error for an access that conflicts with an existing write claim on the shared
/// buffer.
#[cold]
fn write_claim_exists() -> Error {
    Error::in_use("a shared buffer", "a claim for writing")
}

/// Returns the error for an access that conflicts with an existing claim (read or write) on the
/// shared buffer.
#[cold]
fn claim_exists() -> Error {
    Error::in_use("a shared buffer", "a claim for reading or writing")
}
