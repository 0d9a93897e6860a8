//! [`PieceTransfer`]: the transfer of a single piece of a bulk.

use std::sync::Arc;
use std::time::Duration;

use rdma_async::{
    LocalMr, LocalMrReadAccess, LocalMrWriteAccess, Rdma, RemoteMr, RemoteMrSliceMut,
};
use tokio::time::timeout;

use super::BulkMemory;
use super::access::Access;
use super::local::PieceMemory;
use super::table::PieceAnswer;
use super::token::Token;
use super::transfer::Direction;
use crate::core::Core;
use crate::error::{BulkError, Error, Result};
use crate::link::Link;
use crate::outbox::{AppendError, Appended, SendAt, send_long};
use crate::wire::Header;

/// Maximum number of bytes of bulk memory that one operation or message transfers. Short, because
/// calls on the connection wait for the end of the operation. Long enough that the fixed cost of an
/// operation is small in comparison.
pub(super) const MAX_PIECE_LEN: usize = 64 << 10;

/// Maximum number of bytes that one RDMA operation of a bulk transfer moves while messages of calls
/// arrive on the connection. Shorter than [`MAX_PIECE_LEN`], because these calls wait for the end
/// of the operation.
const MAX_PIECE_LEN_BESIDE_CALLS: usize = 32 << 10;

/// Number of bytes that a bulk transfer moves by short RDMA operations after a message has arrived.
/// Further messages are then likely, and short operations ([`MAX_PIECE_LEN_BESIDE_CALLS`]) delay
/// them less. If no message arrives while these bytes are moved, the transfer uses long operations
/// ([`MAX_PIECE_LEN`]) again.
const QUIET_LEN: usize = 256 << 10;

/// Maximum number of pieces of one transfer that are in flight at the same time. With two, the next
/// piece is requested while the first piece is on its way. With more than two, calls on the same
/// connection would wait longer.
pub(super) const MAX_PIECES_IN_FLIGHT: usize = 2;

/// Number of bytes reserved for the headers of a message that contains one piece of a transfer.
/// These headers have at most this length.
const MAX_FRAME_OVERHEAD: usize = 64;

/// Timeout for the peer's answer to a message that reads or writes a part of its memory. After the
/// timeout, the connection ends. Equal to the time after which a peer that receives no message is
/// disconnected.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Description of a transfer of the memory of one [`Bulk`](crate::Bulk), which moves the memory
/// piece by piece. Contains the permission to access the memory, its location, the direction, and
/// the transport.
pub(super) struct PieceTransfer {
    pub(super) access: Arc<Access>,
    pub(super) token: Token,
    pub(super) direction: Direction,
    pub(super) link: Arc<Link>,
}

impl PieceTransfer {
    fn core(&self) -> &Arc<Core> {
        self.access.core()
    }

    /// Creates the [`PieceLength`] of this transfer, which computes the length of each next piece.
    /// A piece has at most [`MAX_PIECE_LEN`] bytes. Without RDMA, a piece must also fit into a
    /// message to the peer.
    pub(super) fn length(&self) -> PieceLength<'_> {
        let core = self.core();
        let is_one_sided = self.link.rdma().is_some();
        PieceLength {
            core,
            max: match is_one_sided {
                true => MAX_PIECE_LEN,
                false => MAX_PIECE_LEN.min(core.send_limit() - MAX_FRAME_OVERHEAD),
            },
            is_one_sided,
            messages: core.bulks.messages(),
            since_message: usize::MAX,
        }
    }

    /// Transfers one part of the peer's memory in the direction of this transfer. Reads the bytes
    /// at the offset `at` into the local `memory`, or writes the bytes of `memory` to that offset.
    pub(super) async fn transfer(&self, memory: &mut PieceMemory<'_>, at: usize) -> Result<()> {
        let outcome = match self.link.rdma() {
            Some(rdma) => self.access_by_rdma(rdma, memory, at).await,
            None => self.exchange(memory.bytes_mut(), at).await,
        };
        outcome.map_err(|error| self.core().end().cloned().unwrap_or(error))
    }

    /// Transfers one part of the peer's memory by one-sided operations of `rdma`, like
    /// [`Self::transfer`].
    async fn access_by_rdma(
        &self,
        rdma: &Rdma,
        memory: &mut PieceMemory<'_>,
        at: usize,
    ) -> Result<()> {
        let Some(token) = &self.token.memory else {
            return Err(BulkError::Lost.into());
        };
        let mut remote = RemoteMr::from_token_bytes(token);
        let remote = remote.get_mut(at..at + memory.len());
        let mut remote = remote.ok_or_else(|| Error::from(BulkError::Lost))?;
        match memory {
            PieceMemory::Region(region) => self.access_remote(rdma, &mut remote, region).await,
            PieceMemory::Heap(bytes) => self.copy_and_access(rdma, &mut remote, bytes).await,
        }
    }

    /// Transfers one piece between the local memory `region` and the peer's memory `remote` by a
    /// one-sided RDMA operation: a read or a write, according to the direction of this transfer.
    async fn access_remote(
        &self,
        rdma: &Rdma,
        remote: &mut RemoteMrSliceMut<'_>,
        region: &mut LocalMr,
    ) -> Result<()> {
        match self.direction {
            Direction::Read => rdma.read(region, remote).await?,
            Direction::Write => rdma.write(region, remote).await?,
        }
        Ok(())
    }

    /// Transfers one piece between the local memory `bytes` and the peer's memory `remote` by a
    /// one-sided RDMA operation. Copies the bytes from or to a registered buffer, because `bytes`
    /// is not registered.
    async fn copy_and_access(
        &self,
        rdma: &Rdma,
        remote: &mut RemoteMrSliceMut<'_>,
        bytes: &mut [u8],
    ) -> Result<()> {
        let copy = BulkMemory::allocate(&self.link, bytes.len(), true)?;
        let copy = copy.into_region(rdma.device());
        let mut copy = copy.map_err(|_| Error::from(BulkError::Lost))?;
        if self.direction == Direction::Write {
            copy.as_mut_slice().copy_from_slice(bytes);
        }
        self.access_remote(rdma, remote, &mut copy).await?;
        if self.direction == Direction::Read {
            bytes.copy_from_slice(copy.as_slice());
        }
        Ok(())
    }

    /// Transfers one part of the peer's memory by messages, for transports without RDMA, and waits
    /// for the answer. Depending on the direction of this transfer, reads the bytes at the offset
    /// `at` into `memory`, or writes the bytes of `memory` to that offset.
    async fn exchange(&self, memory: &mut [u8], at: usize) -> Result<()> {
        let core = self.core();
        let (tag, answer) = core.bulks.expect_answer();
        let expecting = ExpectedAnswer { core, tag };
        if let Some(end) = core.end() {
            return Err(end.clone());
        }
        let (lease, at) = (self.access.lease(), at as u64);
        let len = u32::try_from(memory.len()).unwrap_or(u32::MAX);
        let limit = core.send_limit();
        let appended = match self.direction {
            Direction::Read => {
                let header = Header::BulkRead {
                    lease,
                    tag,
                    at,
                    len,
                };
                core.outbox.append(&header, &[][..], limit, SendAt::TurnEnd)
            }
            Direction::Write => {
                let header = Header::BulkWrite { lease, tag, at };
                core.outbox
                    .append(&header, &*memory, limit, SendAt::TurnEnd)
            }
        };
        if let Appended::Long(batch) = appended.map_err(AppendError::into_error)? {
            send_long(&**core, batch).await?;
        }
        let Ok(answer) = timeout(ANSWER_TIMEOUT, answer).await else {
            let reason = format!("the peer has not answered within {ANSWER_TIMEOUT:?}");
            core.fail(Error::disconnected(reason));
            return Err(core.end_error());
        };
        drop(expecting);
        let PieceAnswer { has_ended, bytes } = answer.map_err(|_| core.end_error())?;
        match self.direction {
            _ if has_ended => return Err(BulkError::Ended.into()),
            Direction::Read if bytes.len() == memory.len() => memory.copy_from_slice(&bytes),
            Direction::Read => return Err(BulkError::Lost.into()),
            Direction::Write => {}
        }
        Ok(())
    }
}

/// State that determines the length of the next piece of a bulk transfer. One operation or message
/// transfers one piece. Short pieces delay calls on the connection less, and long pieces cost less
/// per byte. Over RDMA, pieces are short for the next [`QUIET_LEN`] bytes after each received
/// message, and long otherwise. Without RDMA, pieces are always long.
pub(super) struct PieceLength<'c> {
    core: &'c Core,
    /// Maximum length of a piece in bytes.
    max: usize,
    /// Set if pieces are transferred by one-sided operations. Otherwise, each piece itself causes a
    /// message.
    is_one_sided: bool,
    /// Number of messages that had arrived on the connection before the last piece.
    messages: u64,
    /// Number of bytes transferred since the last message.
    since_message: usize,
}

impl PieceLength<'_> {
    /// Returns the maximum length in bytes of the transfer's next piece, and counts these bytes as
    /// transferred. The caller must call this function exactly once for each piece.
    pub(super) fn next(&mut self) -> usize {
        if !self.is_one_sided {
            return self.max;
        }
        let messages = self.core.bulks.messages();
        if messages != self.messages {
            self.messages = messages;
            self.since_message = 0;
        }
        let len = match self.since_message < QUIET_LEN {
            true => MAX_PIECE_LEN_BESIDE_CALLS,
            false => self.max,
        };
        self.since_message = self.since_message.saturating_add(len);
        len
    }
}

/// Guard that exists while this transfer waits for the peer's answer to a request to read or write
/// a part of the peer's memory. `tag` identifies the request. After the guard is dropped, the
/// answer is ignored.
struct ExpectedAnswer<'c> {
    core: &'c Core,
    tag: u32,
}

impl Drop for ExpectedAnswer<'_> {
    fn drop(&mut self) {
        self.core.bulks.forget_answer(self.tag);
    }
}
