//! Remote memory regions.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};

use rdma_core::RemoteMemory;

use super::local::inside;
use crate::connection::Connection;

/// Memory of the peer that this end may use.
///
/// It was requested from the peer ([`Rdma::request_remote_mr`]) or given by it
/// ([`Rdma::receive_remote_mr`]). [`Rdma::send_remote_mr`] gives it back; dropping it lets the peer
/// free it. From then on the peer's device refuses its key.
///
/// [`Rdma::request_remote_mr`]: crate::Rdma::request_remote_mr
/// [`Rdma::receive_remote_mr`]: crate::Rdma::receive_remote_mr
/// [`Rdma::send_remote_mr`]: crate::Rdma::send_remote_mr
pub struct RemoteMr {
    memory: RemoteMemory,
    /// The peer's lease and the connection to release it on; `None` once given back.
    lease: Option<(u64, Weak<Connection>)>,
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
        }
    }

    /// Memory that was made known by other means than this crate's; nobody is told of its end.
    pub fn from_token(memory: RemoteMemory) -> Self {
        Self {
            memory,
            lease: None,
        }
    }

    /// What reaches the memory, to be told by other means than this crate's.
    pub fn token(&self) -> RemoteMemory {
        self.memory
    }

    /// Returns the lease, if it is one on this connection.
    pub(crate) fn lease_on(&self, connection: &Connection) -> Option<u64> {
        self.lease
            .as_ref()
            .filter(|(_, of)| std::ptr::eq(of.as_ptr(), connection))
            .map(|(lease, _)| *lease)
    }

    /// Leaves the end of the lease to the caller.
    pub(crate) fn forget_lease(mut self) {
        self.lease = None;
    }

    /// The bytes of `range`, if it is inside.
    pub fn get(&self, range: Range<usize>) -> Option<RemoteMrSlice<'_>> {
        let memory = self.part(range)?;
        Some(RemoteMrSlice {
            _region: self,
            memory,
        })
    }

    /// The bytes of `range` for writing, if it is inside.
    pub fn get_mut(&mut self, range: Range<usize>) -> Option<RemoteMrSliceMut<'_>> {
        let memory = self.part(range)?;
        Some(RemoteMrSliceMut {
            _region: self,
            memory,
        })
    }

    /// Makes the memory one that can be cloned and shared between tasks. The peer can free it once the
    /// last clone was dropped.
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

fn part_of(memory: RemoteMemory, range: &Range<usize>) -> Option<RemoteMemory> {
    let whole = 0..usize::try_from(memory.len).ok()?;
    memory.slice(inside(&whole, range)?).ok()
}

/// Memory of the peer, or a part of it, that tasks share. From [`RemoteMr::share`].
///
/// Clones reach the same bytes. What several tasks write to the same bytes at once is there in an order
/// that nobody knows, as with any RDMA writes.
#[derive(Debug, Clone)]
pub struct SharedRemoteMr {
    region: Arc<RemoteMr>,
    memory: RemoteMemory,
}

impl SharedRemoteMr {
    /// Returns the bytes of `range`; `None` if they are not inside.
    pub fn get(&self, range: Range<usize>) -> Option<Self> {
        Some(Self {
            region: Arc::clone(&self.region),
            memory: part_of(self.memory, &range)?,
        })
    }

    /// Returns the whole memory again, to be given back, if this is its last clone or part.
    ///
    /// # Errors
    ///
    /// The memory as it was while there are others.
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
            connection.release_remote(lease);
        }
    }
}

/// A part of a [`RemoteMr`], for reading.
#[derive(Debug)]
pub struct RemoteMrSlice<'a> {
    _region: &'a RemoteMr,
    memory: RemoteMemory,
}

/// A part of a [`RemoteMr`], for reading and writing.
#[derive(Debug)]
pub struct RemoteMrSliceMut<'a> {
    _region: &'a mut RemoteMr,
    memory: RemoteMemory,
}

mod sealed {
    pub trait Sealed {}
}

/// Remote memory that an operation can read. Sealed.
pub trait RemoteMrReadAccess: sealed::Sealed {
    /// How many bytes it has.
    fn length(&self) -> usize {
        usize::try_from(self.memory().len).unwrap_or(usize::MAX)
    }

    /// What reaches it.
    fn memory(&self) -> RemoteMemory;
}

/// Remote memory that an operation can write. Sealed.
pub trait RemoteMrWriteAccess: RemoteMrReadAccess {}

impl sealed::Sealed for RemoteMr {}
impl sealed::Sealed for SharedRemoteMr {}
impl sealed::Sealed for RemoteMrSlice<'_> {}
impl sealed::Sealed for RemoteMrSliceMut<'_> {}

impl RemoteMrReadAccess for RemoteMr {
    fn memory(&self) -> RemoteMemory {
        self.memory
    }
}

impl RemoteMrReadAccess for SharedRemoteMr {
    fn memory(&self) -> RemoteMemory {
        self.memory
    }
}

impl RemoteMrReadAccess for RemoteMrSlice<'_> {
    fn memory(&self) -> RemoteMemory {
        self.memory
    }
}

impl RemoteMrReadAccess for RemoteMrSliceMut<'_> {
    fn memory(&self) -> RemoteMemory {
        self.memory
    }
}

impl RemoteMrWriteAccess for RemoteMr {}
impl RemoteMrWriteAccess for SharedRemoteMr {}
impl RemoteMrWriteAccess for RemoteMrSliceMut<'_> {}
