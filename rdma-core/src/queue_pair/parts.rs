//! The data that the queue pair types of all states share.

use std::sync::Arc;

use super::connect::{self, initial};
use super::{
    ConnectOptions, DatagramOptions, Endpoint, Modification, QueuePair, QueuePairState, datagram,
    modify,
};
use crate::completion::CompletionQueue;
use crate::device::LocalAddress;
use crate::error::{Error, Result};
use crate::ffi::QueuePairHandle;
use crate::memory::AccessFlags;

/// The data that `ManualQueuePair`, `PreparedQueuePair` and `QueuePair` share: the handle, the
/// completion queues, the address and the settings of a queue pair.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) handle: Arc<QueuePairHandle>,
    pub(crate) send_completions: CompletionQueue,
    pub(crate) receive_completions: CompletionQueue,
    pub(crate) address: LocalAddress,
    pub(crate) access: AccessFlags,
    pub(crate) pkey_index: u16,
    pub(crate) local: Endpoint,
    /// The endpoint of the peer, if the queue pair is connected.
    pub(crate) remote: Option<Endpoint>,
}

impl Parts {
    pub(super) fn modify(&self, wanted: &Modification) -> Result<()> {
        modify(&self.handle, wanted)
    }

    pub(super) fn state(&self) -> Result<QueuePairState> {
        let (now, _) = self.handle.query(super::AttributeMask::STATE)?;
        Ok(QueuePairState::from_raw(now.qp_state))
    }

    /// Moves the queue pair to RESET by applying `change`. Returns [`Error::InUse`] if another
    /// handle to the queue pair exists.
    pub(super) fn reset(&self, change: &Modification) -> Result<()> {
        if Arc::strong_count(&self.handle) > 1 {
            return Err(self.in_use());
        }
        self.handle.reset(change)
    }

    pub(super) fn in_use(&self) -> Error {
        Error::in_use(self.handle.describe(), "a queue, or another handle, of it")
    }

    /// Returns the modification that moves the queue pair from RESET to INIT.
    pub(super) fn initial(&self) -> Modification {
        let kind = self.handle.kind();
        initial(kind, &self.address, self.access, self.pkey_index)
    }

    /// Returns the two modifications that connect the queue pair to `remote`. The first
    /// modification moves the queue pair from INIT to RTR, and the second moves the queue pair from
    /// RTR to RTS.
    pub(super) fn connecting(
        &self,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<[Modification; 2]> {
        let kind = self.handle.kind();
        if !kind.is_connected() {
            let reason = format!("a {kind} queue pair has no peer: activate it");
            return Err(Error::invalid("queue pair", reason));
        }
        Ok([
            connect::ready_to_receive(kind, &self.address, &self.local, remote, options)?,
            connect::ready_to_send(kind, &self.local, remote, options)?,
        ])
    }

    /// Returns the two modifications that make a queue pair without a peer ready to send and
    /// receive. The first modification moves the queue pair from INIT to RTR, and the second moves
    /// the queue pair from RTR to RTS.
    pub(super) fn activating(&self, options: &DatagramOptions) -> Result<[Modification; 2]> {
        let kind = self.handle.kind();
        if kind.is_connected() {
            let reason = format!("a {kind} queue pair has a peer: connect it");
            return Err(Error::invalid("queue pair", reason));
        }
        Ok([
            datagram::ready_to_receive(kind, options),
            datagram::ready_to_send(kind, options)?,
        ])
    }

    /// Converts a queue pair in RTS to a [`QueuePair`], which can send and receive. `remote` is the
    /// endpoint of the peer, or `None` if the queue pair has no peer.
    pub(super) fn into_queue_pair(self, remote: Option<Endpoint>) -> QueuePair {
        QueuePair::new(Self { remote, ..self })
    }
}
