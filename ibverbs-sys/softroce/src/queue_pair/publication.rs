//! The record of a queue pair that other processes of the host read: they reach its memory by it without its program.

use super::QueuePair;
use super::object::Inner;
use crate::context::Refusal;
use crate::proto::{AccessFlags, Service, State};
use crate::same_host;

/// State of the record that other processes read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Publication {
    /// The record that is published at present.
    record: Option<same_host::QueuePair>,
    /// Set if other processes may use a record that is or was published.
    may_be_used: bool,
    /// Number of times that the queue pair became ready.
    generation: u32,
    /// The sequence number that was expected then.
    first: u32,
}

impl QueuePair {
    /// Returns whether other processes can reach memory by the queue pair.
    pub(super) fn is_connection(&self) -> bool {
        matches!(
            self.service(),
            Service::ReliableConnection | Service::UnreliableConnection
        )
    }

    /// Publishes the present record to other processes, after anything has changed.
    pub(super) fn publish(&self, inner: &mut Inner) {
        let Some(neighbourhood) = self.device().neighbourhood() else {
            return;
        };
        let record = self.record(inner);
        if record == inner.publication.record {
            return;
        }
        if inner.publication.record.is_some() {
            neighbourhood.retract_queue_pair(self.number());
        }
        if let Some(record) = &record {
            neighbourhood.publish_queue_pair(record);
        }
        inner.publication.record = record;
        inner.publication.may_be_used = true;
    }

    /// Retracts the record, and waits until no other process uses it any more: before the queue pair is reset or destroyed.
    ///
    /// # Errors
    /// Busy, if a use does not end. Then the record is published again.
    pub(crate) fn vacate(&self) -> Result<(), Refusal> {
        let Some(neighbourhood) = self.device().neighbourhood() else {
            return Ok(());
        };
        // Also where nothing is published at the moment: a queue pair that failed did not wait.
        {
            let publication = &mut self.inner.lock().publication;
            if !std::mem::take(&mut publication.may_be_used) {
                return Ok(());
            }
            if publication.record.take().is_some() {
                neighbourhood.retract_queue_pair(self.number());
            }
        }
        let result = neighbourhood.wait_for_visitors();
        if result.is_err() {
            self.stay();
        }
        result
    }

    /// Publishes the record again, after the queue pair was to be reset or destroyed and was not.
    pub(crate) fn stay(&self) {
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
    /// Notes that the queue pair becomes ready, and expects this sequence number first.
    pub(super) fn connect(&mut self, first: u32) {
        self.generation = self.generation.wrapping_add(1);
        self.first = first;
    }
}
