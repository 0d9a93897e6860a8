//! Registered memory with one owner ([`Buffer`]) and read-only shared memory ([`FrozenBuffer`]).

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::sync::Arc;

use super::gather::{Elements, Gather, Scatter, out_of_range, sealed};
use super::{AccessFlags, ExposedMemory};
use crate::error::{Error, Result};
use crate::ffi::{Exposed, LocalKey, RegionHandle, RegistrationParameters, Span};
use crate::refused::Refused;

/// Registered memory with one owner. Peers cannot access the memory.
///
/// A buffer dereferences to `[u8]`. Posting a request moves the buffer into the request, and the
/// completion gives the buffer back.
/// [`ProtectionDomain::allocate`](crate::ProtectionDomain::allocate) creates a buffer of zeroed
/// memory, and [`ProtectionDomain::register`](crate::ProtectionDomain::register) creates a buffer
/// from memory of the program. A buffer can be split. When the last part is dropped, the memory is
/// deregistered and then freed. Buffers are `Send` and `Sync`, like a `Box<[u8]>`.
///
/// While a request is using the buffer, the program cannot access the bytes:
///
/// ```compile_fail,E0382
/// # use rdma_core::{Buffer, Result, SendQueue, SendRequest};
/// # fn example(buffer: Buffer, mut queue: SendQueue<Buffer>) -> Result<()> {
/// queue.post(SendRequest::send(buffer))?;
/// println!("{}", buffer[0]);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_mr")]
pub struct Buffer {
    span: Span,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("address", &format_args!("{:#x}", self.span.address()))
            .field("len", &self.span.len())
            .finish()
    }
}

impl Buffer {
    pub(crate) fn new(span: Span) -> Self {
        Self { span }
    }

    pub(crate) fn into_span(self) -> Span {
        self.span
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Returns the operations that the device may perform on the memory of this buffer.
    pub fn access(&self) -> AccessFlags {
        self.span.region().access()
    }

    /// Returns the `ibv_mr` of the registration to which this buffer belongs. The pointer is valid
    /// as long as this buffer exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mr {
        self.span.region().as_raw()
    }

    /// Splits the buffer into two independent buffers of the same registration, `[0, at)` and `[at,
    /// len)`.
    ///
    /// # Panics
    ///
    /// Panics if `at` is larger than the length.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let (left, right) = self.span.split_at(at);
        (Self { span: left }, Self { span: right })
    }

    /// Joins this buffer and `right` into one buffer. `right` must begin where this buffer ends,
    /// and must belong to the same registration.
    ///
    /// # Errors
    ///
    /// Returns both buffers if `right` does not directly follow this buffer in the same
    /// registration.
    pub fn join(self, right: Self) -> Result<Self, (Self, Self)> {
        match self.span.join(right.span) {
            Ok(span) => Ok(Self { span }),
            Err((left, right)) => Err((Self { span: left }, Self { span: right })),
        }
    }

    /// Converts the buffer to a read-only buffer. Any number of requests can send from clones of
    /// the read-only buffer at the same time.
    pub fn freeze(self) -> FrozenBuffer {
        let range = 0..self.len();
        FrozenBuffer {
            buffer: Arc::new(self),
            range,
        }
    }

    /// Grants peers RDMA access to the memory of this buffer, with the rights in `access`. The
    /// grant ends when the returned value is revoked or dropped.
    ///
    /// For the grant, the crate registers the memory of this buffer a second time. The remote key
    /// of the second registration covers only the bytes of this buffer.
    ///
    /// # Errors
    ///
    /// Returns the buffer, with the error of the second registration, for example
    /// [`Error::InvalidArgument`] for an empty buffer.
    #[doc(alias = "ibv_reg_mr")]
    pub fn expose(self, access: AccessFlags) -> Result<ExposedMemory, Refused<Self>> {
        self.grant(access, None)
    }

    /// Grants peers RDMA access to the memory of this buffer, and sets the address that peers use
    /// for the first byte to `address`. Otherwise this method works like [`Self::expose`].
    /// `address` must have the same offset within a page as the memory.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::expose`], and [`Error::InvalidArgument`] for
    /// [`AccessFlags::ZERO_BASED`] with an address other than 0.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn expose_at(
        self,
        access: AccessFlags,
        address: u64,
    ) -> Result<ExposedMemory, Refused<Self>> {
        self.grant(access, Some(address))
    }

    fn grant(
        self,
        access: AccessFlags,
        first: Option<u64>,
    ) -> Result<ExposedMemory, Refused<Self>> {
        let base = self.span.region();
        let (domain, memory) = (Arc::clone(base.domain()), Arc::clone(base.memory()));
        let access = access | AccessFlags::LOCAL_WRITE;
        let how = RegistrationParameters { access, first };
        if self.is_empty() {
            let error = Error::invalid("memory to expose", "0 bytes cannot be registered");
            return Err(Refused::new(self, error));
        }
        match RegionHandle::register(domain, memory, self.span.range(), how) {
            Ok(lease) => Ok(ExposedMemory::new(Exposed::new(lease, self.span), access)),
            Err(error) => Err(Refused::new(self, error)),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.span.bytes()
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.span.bytes_mut()
    }
}

impl sealed::Sealed for Buffer {}

impl sealed::Contiguous for Buffer {
    #[inline]
    fn address(&self) -> u64 {
        self.span.address()
    }

    #[inline]
    fn size(&self) -> usize {
        self.span.len()
    }

    #[inline]
    fn lkey(&self) -> LocalKey {
        self.span.region().lkey()
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        self.span.region().is_mapped()
    }
}

impl Gather for Buffer {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        elements.push(self);
    }
}

impl Scatter for Buffer {}

/// Read-only registered memory, from [`Buffer::freeze`] or
/// [`ProtectionDomain::register_shared`](crate::ProtectionDomain::register_shared). Clones share
/// the memory.
///
/// A frozen buffer can be the source of sends and writes, but not the destination of a read or a
/// receive:
///
/// ```compile_fail,E0277
/// # use rdma_core::{FrozenBuffer, RemoteMemory, SendRequest};
/// # fn example(frozen: FrozenBuffer, remote: RemoteMemory) {
/// let request = SendRequest::read(frozen, remote);
/// # }
/// ```
///
/// This process cannot write to a frozen buffer either:
///
/// ```compile_fail,E0594
/// # fn example(mut frozen: rdma_core::FrozenBuffer) {
/// frozen[0] = 1;
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FrozenBuffer {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl FrozenBuffer {
    /// Returns the part `range` of the buffer. The result shares the memory with this buffer.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = resolve(range, self.range.len())?;
        let start = self.range.start;
        let range = start + range.start..start + range.end;
        Ok(Self {
            buffer: Arc::clone(&self.buffer),
            range,
        })
    }

    /// Converts this read-only buffer back to a writable buffer, if no other clone or part of it
    /// exists.
    ///
    /// # Errors
    ///
    /// Returns the frozen buffer if other clones or parts of it exist, or if the memory was
    /// registered as [read-only](crate::ProtectionDomain::register_shared).
    pub fn thaw(self) -> Result<Buffer, Self> {
        if !self.buffer.span.region().memory().is_writable() {
            return Err(self);
        }
        self.into_inner()
    }

    /// Returns the underlying [`Buffer`] if no other clone or part of this frozen buffer exists.
    /// Otherwise returns the frozen buffer unchanged. This function does not check whether the
    /// memory was registered as read-only memory. The caller must not write to such memory.
    pub(super) fn into_inner(self) -> Result<Buffer, Self> {
        let range = self.range;
        Arc::try_unwrap(self.buffer).map_err(|buffer| Self { buffer, range })
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    pub(super) fn with_range(self, range: Range<usize>) -> Self {
        Self { range, ..self }
    }
}

impl Deref for FrozenBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl sealed::Sealed for FrozenBuffer {}

impl Gather for FrozenBuffer {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        elements.push_range(&*self.buffer, &self.range);
    }
}

/// Converts `range`, which may be any Rust range type, to a start and an exclusive end. Returns an
/// error if the range does not lie inside `0..len`.
pub(crate) fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if start > end || end > len {
        Err(out_of_range(&(start..end), len))
    } else {
        Ok(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn ranges_resolve_inside_and_only_inside() {
        assert_eq!(resolve(.., 8), Ok(0..8));
        assert_eq!(resolve(4.., 8), Ok(4..8));
        assert_eq!(resolve(..=7, 8), Ok(0..8));
        assert_eq!(resolve(8..8, 8), Ok(8..8));
        assert!(resolve(4..9, 8).is_err());
        assert!(resolve(..=usize::MAX, 8).is_err());
        #[allow(
            clippy::reversed_empty_ranges,
            reason = "a reversed range must be refused"
        )]
        let reversed = resolve(5..4, 8);
        assert!(reversed.is_err());
    }
}
