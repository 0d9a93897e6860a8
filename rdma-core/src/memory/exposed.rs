//! Memory that peers can access by RDMA.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use super::buffer::resolve;
use super::gather::{Elements, Gather, Scatter, sealed};
use super::{AccessFlags, Buffer, RemoteMemory, VolatileSlice};
use crate::error::{Error, Result};
use crate::ffi::{Exposed, LocalKey, RegionHandle, RegistrationParameters};
use crate::refused::Refused;

/// Registered memory that peers can access by RDMA as long as this value, a clone or a part of it
/// exists.
///
/// A peer may write at any moment, so the memory is never exposed as a slice. This process reads
/// and writes the memory by copies and atomics, which are methods of [`VolatileSlice`] (see
/// [`Self::volatile`]). Clones and parts share the memory. Any number of requests of this process
/// can use the memory as their local memory at the same time.
///
/// ```compile_fail,E0608
/// # fn example(exposed: rdma_core::ExposedMemory) {
/// println!("{}", exposed[0]);
/// # }
/// ```
///
/// The access of peers ends when the program calls [`Self::revoke`] or drops the last clone. A
/// later access of a peer fails with a remote access error.
#[derive(Debug, Clone)]
pub struct ExposedMemory {
    exposed: Arc<Exposed>,
    range: Range<usize>,
    access: AccessFlags,
}

impl ExposedMemory {
    pub(crate) fn new(exposed: Exposed, access: AccessFlags) -> Self {
        let range = 0..exposed.memory().len();
        Self {
            exposed: Arc::new(exposed),
            range,
            access,
        }
    }

    /// Returns the length of the memory in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the access rights that peers have to the memory. The local device has the same
    /// rights.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// Returns the `ibv_mr` of the registration that grants peers access. The pointer is valid as
    /// long as this value exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mr {
        self.exposed.lease().as_raw()
    }

    pub(super) fn lease(&self) -> &RegionHandle {
        self.exposed.lease()
    }

    /// Returns the address, length and key that a peer needs to access the memory.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.exposed.address().wrapping_add(self.range.start as u64),
            len: self.range.len() as u64,
            rkey: self.exposed.lease().rkey(),
        }
    }

    /// Returns the part `range` of the memory. The result shares the memory and the registration
    /// with this value.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the memory.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = resolve(range, self.range.len())?;
        let start = self.range.start;
        let range = start + range.start..start + range.end;
        Ok(Self {
            exposed: Arc::clone(&self.exposed),
            range,
            access: self.access,
        })
    }

    /// Returns a view of the memory, through which this process reads and writes the bytes by
    /// copies and atomics.
    #[inline]
    pub fn volatile(&self) -> VolatileSlice<'_> {
        VolatileSlice::new(self.exposed.memory(), self.range.clone())
    }

    /// Copies `to.len()` bytes of the memory, beginning at `offset`, into `to`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the memory.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.volatile().read_at(offset, to)
    }

    /// Copies `from` into the memory at `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the memory.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.volatile().write_at(offset, from)
    }

    /// Reads the byte at `offset` with acquire ordering, like [`VolatileSlice::load_u8`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the byte is not inside of the memory.
    #[inline]
    pub fn load_u8(&self, offset: usize) -> Result<u8> {
        self.volatile().load_u8(offset)
    }

    /// Writes the byte at `offset` with release ordering, like [`VolatileSlice::store_u8`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the byte is not inside of the memory.
    #[inline]
    pub fn store_u8(&self, offset: usize, value: u8) -> Result<()> {
        self.volatile().store_u8(offset, value)
    }

    /// Reads the four bytes at `offset` in one atomic access with acquire ordering, like
    /// [`VolatileSlice::load_u32`].
    ///
    /// # Errors
    ///
    /// The errors of [`VolatileSlice::load_u32`].
    #[inline]
    pub fn load_u32(&self, offset: usize) -> Result<u32> {
        self.volatile().load_u32(offset)
    }

    /// Writes the four bytes at `offset` in one atomic access with release ordering, like
    /// [`VolatileSlice::store_u32`].
    ///
    /// # Errors
    ///
    /// The errors of [`VolatileSlice::load_u32`].
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32) -> Result<()> {
        self.volatile().store_u32(offset, value)
    }

    /// Reads the eight bytes at `offset` in one atomic access with acquire ordering, like
    /// [`VolatileSlice::load_u64`].
    ///
    /// # Errors
    ///
    /// The errors of [`VolatileSlice::load_u64`].
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        self.volatile().load_u64(offset)
    }

    /// Writes the eight bytes at `offset` in one atomic access with release ordering, like
    /// [`VolatileSlice::store_u64`].
    ///
    /// # Errors
    ///
    /// The errors of [`VolatileSlice::load_u64`].
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.volatile().store_u64(offset, value)
    }

    /// Grants peers additional access to the memory, with the rights in `access`, by a new
    /// registration that has its own remote key. Revoking the new key does not affect other keys of
    /// the memory, so each peer can have its own key.
    ///
    /// ```
    /// # use rdma_core::{AccessFlags, Context};
    /// # let context = Context::open("softroce0")?;
    /// let domain = context.protection_domain()?;
    /// let exposed = domain.allocate(64)?.expose(AccessFlags::REMOTE_READ)?;
    /// let of_a_peer = exposed.grant(AccessFlags::REMOTE_READ)?;
    /// assert_ne!(of_a_peer.remote().rkey, exposed.remote().rkey);
    /// of_a_peer.revoke()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for memory of 0 bytes, and the error of `ibv_reg_mr`.
    #[doc(alias = "ibv_reg_mr")]
    pub fn grant(&self, access: AccessFlags) -> Result<ExposedGrant> {
        if self.is_empty() {
            let reason = "0 bytes cannot be registered";
            return Err(Error::invalid("memory to grant access to", reason));
        }
        let span = self.exposed.span();
        let (domain, memory) = (span.region().domain(), span.region().memory());
        let start = span.range().start;
        let range = start + self.range.start..start + self.range.end;
        let how = RegistrationParameters {
            access: access | AccessFlags::LOCAL_WRITE,
            first: None,
        };
        let lease = RegionHandle::register(Arc::clone(domain), Arc::clone(memory), range, how)?;
        Ok(ExposedGrant {
            address: lease.request_address(span.start().as_ptr()),
            lease,
            memory: self.clone(),
        })
    }

    /// Ends the access of peers by deregistering the memory at the device, and returns the memory
    /// as a [`Buffer`], which peers cannot access.
    ///
    /// # Errors
    ///
    /// Returns the memory, with [`Error::InUse`] if clones or parts of it exist or are in flight,
    /// or with the error of the deregistration. Peers then still have access to the memory.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(self) -> Result<Buffer, Refused<Self>> {
        let Self {
            exposed,
            range,
            access,
        } = self;
        let whole = |exposed| Self {
            exposed,
            range,
            access,
        };
        match Arc::try_unwrap(exposed) {
            Ok(exposed) => match exposed.revoke() {
                Ok(span) => Ok(Buffer::new(span)),
                Err((exposed, error)) => Err(Refused::new(whole(Arc::new(*exposed)), error)),
            },
            Err(exposed) => Err(Refused::new(
                whole(exposed),
                Error::in_use("exposed memory", "a clone or part of it"),
            )),
        }
    }
}

/// An additional grant of access to [`ExposedMemory`], created by [`ExposedMemory::grant`]. Each
/// grant has its own remote key. Access by this key ends when the program calls [`Self::revoke`] or
/// drops the value. Access by other keys continues.
#[derive(Debug)]
pub struct ExposedGrant {
    /// Declared before `memory`, so that the access ends before the memory can be used again.
    lease: RegionHandle,
    /// Address that requests use for the first byte of the whole exposed memory.
    address: u64,
    memory: ExposedMemory,
}

impl ExposedGrant {
    /// Returns the address, length and key that a peer needs to access the memory.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.address.wrapping_add(self.memory.range.start as u64),
            len: self.memory.len() as u64,
            rkey: self.lease.rkey(),
        }
    }

    /// Ends the access of peers by the remote key of this grant: deregisters the key's registration
    /// at the device. Access by other keys of the memory continues.
    ///
    /// # Errors
    ///
    /// The error of the deregistration. Peers may then still have access, so the memory is never
    /// freed, and [`ExposedMemory::revoke`] fails with [`Error::InUse`].
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(mut self) -> Result<()> {
        self.lease.end()
    }
}

impl Drop for ExposedGrant {
    fn drop(&mut self) {
        if self.lease.end().is_err() {
            // Peers may still access the memory, so it must never become a buffer again.
            std::mem::forget(self.memory.clone());
        }
    }
}

impl sealed::Sealed for ExposedMemory {}

impl sealed::Contiguous for ExposedMemory {
    #[inline]
    fn address(&self) -> u64 {
        self.exposed.address().wrapping_add(self.range.start as u64)
    }

    #[inline]
    fn size(&self) -> usize {
        self.range.len()
    }

    #[inline]
    fn lkey(&self) -> LocalKey {
        self.exposed.lease().lkey()
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        self.exposed.lease().is_mapped()
    }
}

impl Gather for ExposedMemory {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        elements.push(self);
    }
}

impl Scatter for ExposedMemory {}
