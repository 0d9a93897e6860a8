//! The published record of a queue pair. Other processes of the host read it to access memory
//! through the queue pair.

use super::QueuePair;
use super::object::Inner;
use crate::context::Refusal;
use crate::proto::{AccessFlags, Service, State};
use crate::same_host;

/// The record of a queue pair that other processes of the host read, and the values from which
/// these processes detect a changed connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Publication {
    /// Present content of the queue pair's published record; `None` if the queue pair is not
    /// published.
    record: Option<same_host::QueuePair>,
    /// Set if other processes may be using a record that is published now or was published before,
    /// so that a reset or destruction must wait for them.
    may_be_used: bool,
    /// Number of times that the queue pair has become ready to receive. By this number, peer
    /// processes detect that a connection has ended.
    generation: u32,
    /// Packet sequence number that the queue pair expected when it became ready to receive.
    first: u32,
}

impl QueuePair {
    /// Returns whether the queue pair has the transport service reliable or unreliable connection.
    /// Other processes of the host can access memory only through such queue pairs.
    pub(super) fn is_connection(&self) -> bool {
        matches!(
            self.service(),
            Service::ReliableConnection | Service::UnreliableConnection
        )
    }

    /// Updates the published record of the queue pair, which other processes of the host read.
    /// Publishes, replaces or retracts the record, depending on the queue pair's locked state
    /// `inner`.
    pub(super) fn publish(&self, inner: &mut Inner) {
        let Some(host_peers) = self.device().host_peers() else {
            return;
        };
        let record = self.record(inner);
        if record == inner.publication.record {
            return;
        }
        if inner.publication.record.is_some() {
            host_peers.retract_queue_pair(self.number());
        }
        if let Some(record) = &record {
            host_peers.publish_queue_pair(record);
        }
        inner.publication.record = record;
        inner.publication.may_be_used = true;
    }

    /// Retracts the queue pair's published record, which other processes of the host read, and
    /// waits until no other process uses the record any more. The caller must call this function
    /// before it resets or destroys the queue pair.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if another process does not finish an access in time. The record is then
    /// published again.
    pub(crate) fn withdraw_and_wait(&self) -> Result<(), Refusal> {
        let Some(host_peers) = self.device().host_peers() else {
            return Ok(());
        };
        // The wait is also needed if the record was retracted before: a queue pair that enters the
        // error state does not wait.
        {
            let publication = &mut self.inner.lock().publication;
            if !std::mem::take(&mut publication.may_be_used) {
                return Ok(());
            }
            if publication.record.take().is_some() {
                host_peers.retract_queue_pair(self.number());
            }
        }
        let result = host_peers.wait_for_copying_peers();
        if result.is_err() {
            self.republish();
        }
        result
    }

    /// Publishes the queue pair's record for other processes again. Called if
    /// [`withdraw_and_wait`](Self::withdraw_and_wait) has retracted the record, but the queue pair
    /// is then not reset or destroyed.
    pub(crate) fn republish(&self) {
        let mut inner = self.inner.lock();
        inner.publication.may_be_used = true;
        self.publish(&mut inner);
    }

    fn record(&self, inner: &Inner) -> Option<same_host::QueuePair> {
        let attributes = inner.transport.attributes();
        let takes = matches!(
            inner.transport.state(),
            State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained
        );
        if !takes || !self.is_connection() {
            return None;
        }
        let path = attributes.path?;
        let mut access = attributes.access;
        if attributes.max_accepted == 0 {
            access -= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        }
        Some(same_host::QueuePair {
            number: self.number(),
            peer: attributes.destination,
            own_gid: self.device().gid(path.source)?,
            peer_gid: path.destination,
            is_unreliable: self.service() == Service::UnreliableConnection,
            access,
            domain: self.domain()?.number(),
            first: inner.publication.first,
            generation: inner.publication.generation,
        })
    }
}

impl Publication {
    /// Records that the queue pair has become ready to receive. `first` is the packet sequence
    /// number that the queue pair expects first.
    pub(super) fn connect(&mut self, first: u32) {
        self.generation = self.generation.wrapping_add(1);
        self.first = first;
    }
}
