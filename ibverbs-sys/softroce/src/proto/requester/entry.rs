use std::time::Duration;

use crate::proto::endpoint::{Endpoint, MAX_MESSAGE};
use crate::proto::{
    Completion, CompletionStatus, Host, LocalFault, Memory, Payload, SendOperation, SendRequest,
    Sequence, Service, Withdrawal, Work,
};

/// A request in the send queue, with its progress.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: SendRequest,
    pub(super) progress: Progress,
    /// Result of [`Host::is_mappable`]. Valid once the request has started.
    pub(super) is_mappable: bool,
    /// Set if the last part was sent as a description, whose bytes the peer copies.
    pub(super) is_offered: bool,
    /// Set if the message must not be sent as a description, nor written directly to the peer's memory.
    pub(super) is_declined: bool,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// Nothing has been done for the request.
    Waiting,
    /// The request has its sequence numbers: of its packets, or for a read of the response's packets.
    Started { first: Sequence, packets: u32 },
    /// The request needed no peer, and has been executed.
    Done,
    /// The request will fail once all earlier requests have completed.
    Failed(CompletionStatus),
}

impl Entry {
    #[inline]
    pub(super) fn new(request: SendRequest) -> Self {
        Self {
            request,
            progress: Progress::Waiting,
            is_mappable: false,
            is_offered: false,
            is_declined: false,
        }
    }

    /// Returns whether the request is a read. Its response takes the sequence numbers, and each read request packet covers a
    /// run of them.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.request.operation, SendOperation::Read { .. })
    }

    /// Returns whether the request is a read or an atomic, which only a response with data can complete.
    pub(super) fn awaits_data(&self) -> bool {
        matches!(
            self.request.operation,
            SendOperation::Read { .. }
                | SendOperation::CompareSwap { .. }
                | SendOperation::FetchAdd { .. }
        )
    }

    /// Returns the number of sequence numbers that packet `packet` of `packets` takes. A read request packet takes the numbers
    /// up to the end of its run; runs have `run` numbers.
    pub(super) fn covers(&self, packet: u32, packets: u32, run: u32) -> u32 {
        if self.is_read() {
            (run - packet % run).min(packets - packet)
        } else {
            1
        }
    }

    /// Executes a request that needs no peer, or assigns sequence numbers from `next` on to any other request.
    ///
    /// # Errors
    /// The time after which the caller must call this again, if the key of the request is still in use. The request is then
    /// still [waiting](Progress::Waiting).
    #[inline]
    pub(super) fn start(
        &mut self,
        next: Sequence,
        endpoint: &Endpoint,
        memory: &impl Host,
    ) -> Result<(), Duration> {
        let local = match &self.request.operation {
            SendOperation::Bind(binding) => match memory.withdraw_window(binding) {
                Withdrawal::Complete => memory.bind(binding),
                Withdrawal::Pending { again } => return Err(again),
                Withdrawal::Refused => Err(LocalFault::Bind),
            },
            SendOperation::LocalInvalidate { key } => match memory.withdraw(*key) {
                Withdrawal::Complete => memory.invalidate(*key),
                Withdrawal::Pending { again } => return Err(again),
                Withdrawal::Refused => Err(LocalFault::Bind),
            },
            // IBTA C10-93.1.1: a datagram that is longer than a packet is not sent, and completes without error.
            SendOperation::Datagram { .. } if self.request.length > endpoint.mtu() => Ok(()),
            _ => {
                self.is_mappable = memory.is_mappable(&self.request);
                self.progress = match self.check(endpoint) {
                    Ok(packets) => Progress::Started {
                        first: next,
                        packets,
                    },
                    Err(status) => Progress::Failed(status),
                };
                return Ok(());
            }
        };
        self.progress = match local {
            Ok(()) => Progress::Done,
            // This is also the status of a failed invalidation: IBTA 11.6.2 has one memory management operation error.
            Err(_) => Progress::Failed(CompletionStatus::MemoryWindowBind),
        };
        Ok(())
    }

    /// Publishes the key again that was withdrawn for this request.
    pub(super) fn give_up(&self, memory: &impl Memory) {
        match &self.request.operation {
            SendOperation::Bind(binding) => memory.keep(binding.window),
            SendOperation::LocalInvalidate { key } => memory.keep(*key),
            _ => {}
        }
    }

    /// Returns the number of sequence numbers that the request takes. Fails if the service does not support the operation, or
    /// the length is invalid.
    #[inline]
    fn check(&self, endpoint: &Endpoint) -> Result<u32, CompletionStatus> {
        use SendOperation as O;
        let request = &self.request;
        let has = match (endpoint.service, &request.operation) {
            (Service::UnreliableDatagram, O::Datagram { .. }) => true,
            (Service::UnreliableConnection, O::Send { invalidate, .. }) => invalidate.is_none(),
            (Service::UnreliableConnection, O::Write { .. }) => true,
            (
                Service::ReliableConnection | Service::XrcInitiator,
                O::Send { .. } | O::Write { .. },
            ) => true,
            (
                Service::ReliableConnection | Service::XrcInitiator,
                O::Read { .. } | O::CompareSwap { .. } | O::FetchAdd { .. },
            ) => {
                endpoint.attributes.max_initiated > 0
                    && matches!(request.payload, Payload::Gathered(_))
            }
            _ => false,
        };
        if !has {
            return Err(CompletionStatus::LocalQueuePairOperation);
        }
        let length = request.length;
        match request.operation {
            O::CompareSwap { .. } | O::FetchAdd { .. } if length < 8 => {
                Err(CompletionStatus::LocalLength)
            }
            O::CompareSwap { .. } | O::FetchAdd { .. } => Ok(1),
            _ if length > MAX_MESSAGE => Err(CompletionStatus::LocalLength),
            _ => Ok(endpoint.packets(length)),
        }
    }

    /// Returns the completion of the request with this status.
    #[inline]
    pub(super) fn completion(&self, status: CompletionStatus) -> Completion {
        let request = &self.request;
        let (work, length) = match &request.operation {
            SendOperation::Send { .. } | SendOperation::Datagram { .. } => {
                (Work::Send, request.length)
            }
            SendOperation::Write { .. } => (Work::Write, request.length),
            SendOperation::Read { .. } => (Work::Read, request.length),
            SendOperation::CompareSwap { .. } => (Work::CompareSwap, 8),
            SendOperation::FetchAdd { .. } => (Work::FetchAdd, 8),
            SendOperation::Bind(_) => (Work::Bind, 0),
            SendOperation::LocalInvalidate { .. } => (Work::LocalInvalidate, 0),
        };
        Completion {
            length,
            ..Completion::new(request.id, status, work)
        }
    }
}
