//! [`LocalPieces`]: the local memory of a transfer, which is divided into pieces.

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, RdmaDevice};

use super::BulkMemory;
use crate::error::{BulkError, Result};

/// Local memory for one piece of a transfer. A transfer reads or writes the peer's memory in pieces
/// of at most 64 KiB, from or to local memory.
pub(super) enum PieceMemory<'m> {
    /// Part of memory that is registered with the device of the connection. Owned, so that several
    /// operations can use parts of the same memory at the same time.
    Region(LocalMr),
    /// Part of other memory.
    Heap(&'m mut [u8]),
}

impl PieceMemory<'_> {
    /// Returns the length of the piece in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Region(region) => region.length(),
            Self::Heap(bytes) => bytes.len(),
        }
    }

    /// Returns the bytes of the piece for reading and writing. The caller must ensure that no
    /// operation of the device is using the memory.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Region(region) => region.as_mut_slice(),
            Self::Heap(bytes) => bytes,
        }
    }
}

/// Local memory for the transfer of one contiguous range of the peer's memory. The transfer takes
/// pieces of the local memory in order, and puts each piece back after transferring its bytes.
pub(super) struct LocalPieces<'m> {
    memory: LocalMemory<'m>,
    /// Offset of the next piece in the bulk.
    at: usize,
}

/// Storage of the local memory of a transfer. RDMA operations access the memory of the variant
/// `Region` directly. The bytes of the variant `Heap` are copied from or to registered memory or a
/// message.
enum LocalMemory<'m> {
    /// Memory that is registered with `device`, the device of the connection.
    Region {
        device: RdmaDevice,
        /// Length of the whole memory in bytes.
        len: usize,
        /// Memory of the pieces that were put back, or `None` before the first piece is put back,
        /// and after memory was lost.
        joined: Option<LocalMr>,
        /// Memory that was not taken, or `None` after the last piece.
        rest: Option<LocalMr>,
    },
    /// Other memory that was not taken.
    Heap(&'m mut [u8]),
}

impl<'m> LocalPieces<'m> {
    /// Prepares `memory` for a transfer in pieces. The first byte of the memory is transferred from
    /// or to the offset `at` of the peer's memory.
    ///
    /// If the memory is registered with `device`, this function moves it out of `memory`, so that
    /// the pieces can be owned by RDMA operations. [`Self::into_memory`] returns it later.
    pub(super) fn new(at: usize, memory: &'m mut BulkMemory, device: Option<&RdmaDevice>) -> Self {
        let region = device.and_then(|device| match std::mem::take(memory).into_region(device) {
            Ok(region) => Some(LocalMemory::Region {
                device: device.clone(),
                len: region.length(),
                joined: None,
                rest: Some(region),
            }),
            Err(other) => {
                *memory = other;
                None
            }
        });
        let memory = region.unwrap_or_else(|| LocalMemory::Heap(memory));
        Self { memory, at }
    }

    /// Returns whether [`Self::take`] has already returned all of the local memory, so that no
    /// piece is left to transfer.
    pub(super) fn is_empty(&self) -> bool {
        match &self.memory {
            LocalMemory::Region { rest, .. } => rest.is_none(),
            LocalMemory::Heap(rest) => rest.is_empty(),
        }
    }

    /// Takes the next piece, at most `len` bytes of local memory, for a transfer. Returns the
    /// memory, and the offset in the bulk at which the piece is read or written. The caller must
    /// ensure that memory is left, see [`Self::is_empty`]. Fails, and takes nothing, if an earlier
    /// operation is still using the memory.
    pub(super) fn take(&mut self, len: usize) -> Result<(PieceMemory<'m>, usize)> {
        let piece = match &mut self.memory {
            LocalMemory::Region { rest, .. } => {
                let whole = rest.take().ok_or(BulkError::Lost)?;
                if whole.length() <= len {
                    PieceMemory::Region(whole)
                } else {
                    match whole.split_at(len) {
                        Ok((front, back)) => {
                            *rest = Some(back);
                            PieceMemory::Region(front)
                        }
                        Err((whole, error)) => {
                            *rest = Some(whole);
                            return Err(error.into());
                        }
                    }
                }
            }
            LocalMemory::Heap(rest) => {
                let whole = std::mem::take(rest);
                let (front, back) = whole.split_at_mut(len.min(whole.len()));
                *rest = back;
                PieceMemory::Heap(front)
            }
        };
        let at = self.at;
        self.at += piece.len();
        Ok((piece, at))
    }

    /// Puts the memory of a piece back after the transfer of this piece. The caller must put pieces
    /// back in the order in which it has taken them. After a failed operation, the device is
    /// perhaps still accessing the memory. Such memory is not put back, and is lost.
    pub(super) fn put_back(&mut self, piece: PieceMemory<'m>) {
        if let (LocalMemory::Region { joined, .. }, PieceMemory::Region(mut piece)) =
            (&mut self.memory, piece)
        {
            match piece.try_as_mut_slice() {
                Ok(_) => *joined = join(joined.take(), Some(piece)),
                // Without the piece, `into_memory` does not return the whole memory.
                Err(error) => tracing::error!(%error, "memory of a failed transfer is lost"),
            }
        }
    }

    /// Returns the registered memory that [`Self::new`] has moved out of a [`BulkMemory`], or
    /// `None` if no memory was moved. If the device still uses a part of the memory after a failed
    /// operation, the result has length 0, and the memory is lost.
    pub(super) fn into_memory(self) -> Option<BulkMemory> {
        let LocalMemory::Region {
            device,
            len,
            joined,
            rest,
        } = self.memory
        else {
            return None;
        };
        let whole = join(joined, rest).filter(|whole| whole.length() == len);
        Some(whole.map_or_else(BulkMemory::default, |whole| {
            BulkMemory::of_region(whole, device)
        }))
    }
}

/// Joins two adjacent regions of memory to one region. If one region is absent, returns the other
/// region. If both regions are absent, returns `None`. Also returns `None` if the device is still
/// using a region after a failed operation. Both regions are then lost for the program.
fn join(front: Option<LocalMr>, back: Option<LocalMr>) -> Option<LocalMr> {
    match (front, back) {
        (Some(front), Some(back)) => match front.join(back) {
            Ok(whole) => Some(whole),
            Err(refused) => {
                tracing::error!(error = %refused.error, "memory of a failed transfer is lost");
                None
            }
        },
        (front, back) => front.or(back),
    }
}
