//! [`PieceTransfer`]: the transfer of a single piece of a bulk.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaDevice, RemoteMr};
use tokio::time::timeout;

use super::BulkMemory;
use super::access::Access;
use super::table::PieceAnswer;
use super::token::Token;
use super::transfer::Direction;
use crate::core::Core;
use crate::error::{BulkError, Error, Result};
use crate::link::Link;
use crate::outbox::{AppendError, Appended, SendAt, send_long};
use crate::wire::Header;

/// Maximum length of a piece in bytes. Short, because calls wait while a piece is transferred; long
/// enough that the fixed cost of a piece is negligible.
pub(super) const MAX_PIECE_LEN: usize = 64 << 10;

/// Maximum number of pieces of a connection that are being transferred at the same time. A transfer
/// has one piece in flight, so a single transfer does not reach the maximum. With two, the piece of
/// another transfer is requested while a piece is transferred. More would delay the calls beside the
/// transfers.
pub(super) const MAX_PIECES_IN_FLIGHT: usize = 2;

/// Number of bytes reserved for headers in a message that contains a piece: more than any header of
/// such a message needs.
const MAX_FRAME_OVERHEAD: usize = 64;

/// Timeout for the peer's answer to a message that reads or writes a piece. After the timeout, the
/// connection ends. Equal to the time after which a peer that receives no message is disconnected.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Context for transferring the pieces of one bulk: the permission to access the memory, the
/// location of the memory, the direction, and the transport.
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

    /// Returns the maximum length of a piece in bytes over this transport and with the peer's
    /// limits.
    pub(super) fn len(&self) -> usize {
        match self.link.rdma() {
            Some(_) => MAX_PIECE_LEN,
            None => MAX_PIECE_LEN.min(self.core().send_limit() - MAX_FRAME_OVERHEAD),
        }
    }

    /// Transfers one piece: the bytes in `range` of the local `memory`, from or to the offset `at`
    /// of the bulk.
    pub(super) async fn transfer(
        &self,
        memory: &mut BulkMemory,
        range: Range<usize>,
        at: usize,
    ) -> Result<()> {
        let Some(rdma) = self.link.rdma() else {
            return self.exchange(memory, range, at).await;
        };
        let Some(token) = &self.token.memory else {
            return Err(BulkError::Lost.into());
        };
        let mut remote = RemoteMr::from_token_bytes(token);
        let outcome = self
            .access_remote(rdma, &mut remote, memory, range, at)
            .await;
        outcome.map_err(|error| self.core().end().cloned().unwrap_or(error))
    }

    /// Transfers a piece by a one-sided RDMA operation on the peer's memory `remote`. The
    /// parameters are those of [`Self::transfer`].
    async fn access_remote(
        &self,
        rdma: &Rdma,
        remote: &mut RemoteMr,
        memory: &mut BulkMemory,
        range: Range<usize>,
        at: usize,
    ) -> Result<()> {
        let outside = || Error::from(BulkError::Lost);
        let len = range.len();
        let mut remote = remote.get_mut(at..at + len).ok_or_else(outside)?;
        if let Some(region) = memory.region(rdma.device()) {
            let mut local = region.get_mut(range).ok_or_else(outside)?;
            match self.direction {
                Direction::Read => rdma.read(&mut local, &remote).await?,
                Direction::Write => rdma.write(&local, &mut remote).await?,
            }
            return Ok(());
        }
        // Memory that is not registered is copied through a registered buffer.
        let mut copy = BulkMemory::allocate(&self.link, len, true)?;
        let device: &RdmaDevice = rdma.device();
        match self.direction {
            Direction::Read => {
                let region = copy.region(device).ok_or_else(outside)?;
                rdma.read(region, &remote).await?;
                memory[range].copy_from_slice(region.as_slice());
            }
            Direction::Write => {
                let region = copy.region(device).ok_or_else(outside)?;
                region.as_mut_slice().copy_from_slice(&memory[range]);
                rdma.write(region, &mut remote).await?;
            }
        }
        Ok(())
    }

    /// Transfers a piece over a transport without one-sided operations: requests the bytes from the
    /// owner of the bulk, or sends the bytes to the owner, and waits for the answer. The parameters
    /// are those of [`Self::transfer`].
    async fn exchange(
        &self,
        memory: &mut BulkMemory,
        range: Range<usize>,
        at: usize,
    ) -> Result<()> {
        let core = self.core();
        let (tag, answer) = core.bulks.expect_answer();
        let expecting = ExpectedAnswer { core, tag };
        if let Some(end) = core.end() {
            return Err(end.clone());
        }
        let (lease, at) = (self.access.lease(), at as u64);
        let len = u32::try_from(range.len()).unwrap_or(u32::MAX);
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
                let bytes = &memory[range.clone()];
                core.outbox.append(&header, bytes, limit, SendAt::TurnEnd)
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
            Direction::Read if bytes.len() == range.len() => {
                memory[range].copy_from_slice(&bytes);
            }
            Direction::Read => return Err(BulkError::Lost.into()),
            Direction::Write => {}
        }
        Ok(())
    }
}

/// Expectation of an answer with the number `tag`. Dropping this value discards the answer if it
/// arrives later.
struct ExpectedAnswer<'c> {
    core: &'c Core,
    tag: u32,
}

impl Drop for ExpectedAnswer<'_> {
    fn drop(&mut self) {
        self.core.bulks.forget_answer(self.tag);
    }
}
