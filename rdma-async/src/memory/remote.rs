//! [`RemoteMr`]: memory of the peer that this end may access.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rdma_core::RemoteMemory;

use super::local::subrange;
use crate::connection::Connection;

/// Memory of the peer that this end may access.
///
/// The peer has lent the memory at the request of this end ([`Rdma::request_remote_mr`]) or without
/// a request ([`Rdma::receive_remote_mr`]). [`Rdma::send_remote_mr`] returns the memory to the
/// peer's program. Dropping this value releases the memory, so that the peer can free it.
/// Afterwards the peer's device refuses the key of the memory.
///
/// [`Rdma::request_remote_mr`]: crate::Rdma::request_remote_mr
/// [`Rdma::receive_remote_mr`]: crate::Rdma::receive_remote_mr
/// [`Rdma::send_remote_mr`]: crate::Rdma::send_remote_mr
pub struct RemoteMr {
    memory: RemoteMemory,
    /// Id of the peer's lease, and the connection of the lease. `None` after the lease was
    /// returned, or if the region was created from a token.
    lease: Option<(u64, Weak<Connection>)>,
    /// Flag that is set when the peer revokes the lease. `None` if the region was created from a
    /// token.
    ended: Option<Arc<AtomicBool>>,
}

impl fmt::Debug for RemoteMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteMr")
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl RemoteMr {
    pub(crate) fn new(memory: RemoteMemory, lease: u64, connection: Weak<Connection>) -> Self {
        Self {
            memory,
            lease: Some((lease, connection)),
            ended: None,
        }
    }

    /// Adds `ended` to this region. The connection sets this flag when the peer ends the access to
    /// the memory, and [`Self::has_ended`] returns its value.
    pub(crate) fn with_end_flag(mut self, ended: Arc<AtomicBool>) -> Self {
        self.ended = Some(ended);
        self
    }

    /// Returns whether the peer has ended the lease of this memory, that is, no longer lends it to
    /// this end. Operations on the memory then fail with
    /// [`Error::LeaseEnded`](crate::Error::LeaseEnded). Always returns `false` for memory that was
    /// created from a token.
    pub fn has_ended(&self) -> bool {
        let ended = self.ended.as_ref();
        ended.is_some_and(|ended| ended.load(Ordering::Acquire))
    }

    /// Creates a region from a token (address, length and key) that was received by means outside
    /// of this crate. The peer is not notified when the region is dropped.
    #[inline]
    pub fn from_token(memory: RemoteMemory) -> Self {
        Self {
            memory,
            lease: None,
            ended: None,
        }
    }

    /// Creates a region of the peer's memory from an encoded token (address, length and key).
    /// [`RemoteMemory::to_bytes`] has returned these bytes at the peer. Does not check the token,
    /// like [`Self::from_token`].
    pub fn from_token_bytes(bytes: &[u8; RemoteMemory::ENCODED_LEN]) -> Self {
        Self::from_token(RemoteMemory::from_bytes(bytes))
    }

    /// Returns the token of the memory: its address, length and key. The token can be sent to other
    /// programs by means outside of this crate.
    pub fn token(&self) -> RemoteMemory {
        self.memory
    }

    /// Returns the id of the lease under which the peer has lent this memory. Returns `None` if the
    /// memory was not lent on `connection`.
    pub(crate) fn lease_on(&self, connection: &Connection) -> Option<u64> {
        self.lease
            .as_ref()
            .filter(|(_, of)| std::ptr::eq(of.as_ptr(), connection))
            .map(|(lease, _)| *lease)
    }

    /// Drops this region without notifying the peer, because the caller has already sent a message
    /// that gives the memory back. Also removes the region from the connection's table of memory
    /// that the peer has lent.
    pub(crate) fn forget_lease(mut self) {
        if let Some((lease, connection)) = self.lease.take()
            && let Some(connection) = connection.upgrade()
        {
            connection.forget_borrowed(lease);
        }
    }

    /// Returns a slice of the region for reading, or `None` if `range` exceeds the region.
    pub fn get(&self, range: Range<usize>) -> Option<RemoteMrSlice<'_>> {
        let memory = self.part(range)?;
        Some(RemoteMrSlice {
            region: self,
            memory,
        })
    }

    /// Returns a slice of the region for reading and writing, or `None` if `range` exceeds the
    /// region.
    pub fn get_mut(&mut self, range: Range<usize>) -> Option<RemoteMrSliceMut<'_>> {
        let memory = self.part(range)?;
        Some(RemoteMrSliceMut {
            region: self,
            memory,
        })
    }

    /// Converts the region to a value that can be cloned and shared between tasks. The memory is
    /// released when the last clone is dropped.
    pub fn share(self) -> SharedRemoteMr {
        SharedRemoteMr {
            memory: self.memory,
            region: Arc::new(self),
        }
    }

    fn part(&self, range: Range<usize>) -> Option<RemoteMemory> {
        part_of(self.memory, &range)
    }
}

/// Returns the address, length and key of the bytes `range` of `memory`. Returns `None` if `range`
/// exceeds the length of `memory`.
fn part_of(memory: RemoteMemory, range: &Range<usize>) -> Option<RemoteMemory> {
    let whole = 0..usize::try_from(memory.len).ok()?;
    memory.slice(subrange(&whole, range)?).ok()
}

/// Handle to memory of the peer, or to a part of this memory, that several tasks can share. Created
/// by [`RemoteMr::share`].
///
/// Clones refer to the same bytes. If several tasks write to the same bytes concurrently, the order
/// of their writes is undefined.
#[derive(Debug, Clone)]
pub struct SharedRemoteMr {
    region: Arc<RemoteMr>,
    memory: RemoteMemory,
}

impl SharedRemoteMr {
    /// Returns a handle for the bytes `range` of this memory of the peer, or `None` if `range`
    /// exceeds this memory.
    pub fn get(&self, range: Range<usize>) -> Option<Self> {
        Some(Self {
            region: Arc::clone(&self.region),
            memory: part_of(self.memory, &range)?,
        })
    }

    /// Returns the whole region if no other clone or part of it exists, for example to return the
    /// memory to the peer.
    ///
    /// # Errors
    ///
    /// The error is this value, unchanged. Returned while other clones or parts exist.
    pub fn into_whole(self) -> Result<RemoteMr, Self> {
        let memory = self.memory;
        Arc::try_unwrap(self.region).map_err(|region| Self { region, memory })
    }
}

impl Drop for RemoteMr {
    fn drop(&mut self) {
        if let Some((lease, connection)) = self.lease.take()
            && let Some(connection) = connection.upgrade()
        {
            connection.forget_borrowed(lease);
            connection.release_remote(lease);
        }
    }
}

/// Slice of a [`RemoteMr`] for reading, for example to read a part of the memory. Created by
/// [`RemoteMr::get`].
#[derive(Debug)]
pub struct RemoteMrSlice<'a> {
    region: &'a RemoteMr,
    memory: RemoteMemory,
}

/// Slice of a [`RemoteMr`] for reading and writing, for example to write a part of the memory.
/// Created by [`RemoteMr::get_mut`].
#[derive(Debug)]
pub struct RemoteMrSliceMut<'a> {
    region: &'a mut RemoteMr,
    memory: RemoteMemory,
}

mod sealed {
    pub trait Sealed {}
}

/// Remote memory that an operation can read from: [`RemoteMr`], [`SharedRemoteMr`] and the slices
/// (sealed trait).
pub trait RemoteMrReadAccess: sealed::Sealed {
    /// Returns the length in bytes of this memory of the peer.
    fn length(&self) -> usize {
        usize::try_from(self.memory().len).unwrap_or(usize::MAX)
    }

    /// Returns the address, length and key of this memory of the peer. Every request that accesses
    /// the memory contains these values.
    fn memory(&self) -> RemoteMemory;

    /// Returns whether the peer has ended the access of this end to the memory, so that operations
    /// on it fail.
    fn lease_has_ended(&self) -> bool;
}

/// Remote memory that an operation can write to: [`RemoteMr`], [`SharedRemoteMr`] and
/// [`RemoteMrSliceMut`] (sealed trait).
pub trait RemoteMrWriteAccess: RemoteMrReadAccess {}

impl sealed::Sealed for RemoteMr {}
impl sealed::Sealed for SharedRemoteMr {}
impl sealed::Sealed for RemoteMrSlice<'_> {}
impl sealed::Sealed for RemoteMrSliceMut<'_> {}

impl RemoteMrReadAccess for RemoteMr {
    fn memory(&self) -> RemoteMemory {
        self.memory
    }

    fn lease_has_ended(&self) -> bool {
        self.has_ended()
    }
}

impl RemoteMrReadAccess for SharedRemoteMr {
    fn memory(&self) -> RemoteMemory {
        self.memory
    }

    fn lease_has_ended(&self) -> bool {
        self.region.has_ended()
    }
}

impl RemoteMrReadAccess for RemoteMrSlice<'_> {
    fn memory(&self) -> RemoteMemory {
        self.memory
    }

    fn lease_has_ended(&self) -> bool {
        self.region.has_ended()
    }
}

impl RemoteMrReadAccess for RemoteMrSliceMut<'_> {
    fn memory(&self) -> RemoteMemory {
        self.memory
    }

    fn lease_has_ended(&self) -> bool {
        self.region.has_ended()
    }
}

impl RemoteMrWriteAccess for RemoteMr {}
impl RemoteMrWriteAccess for SharedRemoteMr {}
impl RemoteMrWriteAccess for RemoteMrSliceMut<'_> {}
