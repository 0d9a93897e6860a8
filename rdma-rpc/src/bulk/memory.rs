//! [`BulkMemory`]: local memory from which a bulk is created, or into which a bulk is read.

use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, RdmaDevice};

use crate::core::Core;
use crate::error::{BulkError, Error};
use crate::link::Link;
use crate::payload::Buffer;

/// Memory from which a [`Bulk`](super::Bulk) is created, or into which the peer's bulk is read.
///
/// [`Client::bulk_memory`](crate::Client::bulk_memory) and
/// [`Context::bulk_memory`](crate::Context::bulk_memory) allocate memory that is registered with
/// the device of their connection. Other memory, such as that of a vector, can also be used, but is
/// copied when it is transferred over RDMA.
pub struct BulkMemory {
    buffer: Buffer,
    /// Device with which the memory is registered, or `None` for heap memory.
    device: Option<RdmaDevice>,
}

impl BulkMemory {
    /// Allocates `len` bytes of zeroed memory that the connection `core` can transfer without a
    /// copy: registered memory for RDMA, heap memory for other transports. Fails if the connection
    /// has ended, or if the memory cannot be allocated.
    pub(crate) fn for_peer(core: &Core, len: usize) -> Result<Self, Error> {
        let link = core.outbox.link().ok_or_else(|| core.end_error())?;
        Self::allocate(&link, len, false)
    }

    /// Allocates `len` bytes of memory that `link` can transfer without a copy. If `is_stale` is
    /// set, the memory can contain bytes of earlier transfers. Otherwise all bytes are 0. Stale
    /// memory is cheaper, and suffices if the caller overwrites all bytes.
    pub(super) fn allocate(link: &Link, len: usize, is_stale: bool) -> Result<Self, Error> {
        let Some(rdma) = link.rdma().filter(|_| len > 0) else {
            // The peer chooses the length of its bulk, so a failure must not abort the process. The
            // allocation of zeroed memory itself does not touch the pages of long memory.
            let available = Vec::<u8>::new().try_reserve_exact(len);
            available.map_err(|_| BulkError::OutOfMemory { len })?;
            return Ok(vec![0; len].into());
        };
        let layout = Layout::from_size_align(len, 64).map_err(|_| Error::TooLarge {
            len,
            limit: isize::MAX as usize,
        })?;
        let region = match is_stale {
            true => rdma.alloc_local_mr_stale(layout)?,
            false => rdma.alloc_local_mr(layout)?,
        };
        Ok(Self::of_region(region, rdma.device().clone()))
    }

    /// Creates the memory of a bulk from a region that is registered with `device`.
    pub(super) fn of_region(region: LocalMr, device: RdmaDevice) -> Self {
        Self {
            buffer: Buffer::Region(region),
            device: Some(device),
        }
    }

    /// Converts the memory to a vector. Copies the bytes if the memory is registered with a device.
    pub fn into_vec(self) -> Vec<u8> {
        match self.buffer {
            Buffer::Region(region) => region.as_slice().to_vec(),
            Buffer::Heap(bytes) => bytes,
        }
    }

    /// Converts the memory to its region if it is registered with `device`. Otherwise returns the
    /// memory as the error.
    pub(super) fn into_region(self, device: &RdmaDevice) -> Result<LocalMr, Self> {
        match self {
            Self {
                buffer: Buffer::Region(region),
                device: Some(own),
            } if own == *device => Ok(region),
            other => Err(other),
        }
    }
}

impl Default for BulkMemory {
    /// Returns empty memory (0 bytes).
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<u8>> for BulkMemory {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            buffer: Buffer::Heap(bytes),
            device: None,
        }
    }
}

impl Deref for BulkMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.bytes()
    }
}

impl DerefMut for BulkMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.buffer {
            // Not in use: the program owns the memory, so no operation is accessing it.
            Buffer::Region(region) => region.as_mut_slice(),
            Buffer::Heap(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for BulkMemory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for BulkMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkMemory")
            .field("len", &self.len())
            .field("is_registered", &self.device.is_some())
            .finish_non_exhaustive()
    }
}
