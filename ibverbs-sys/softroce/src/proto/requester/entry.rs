use std::time::Duration;

use crate::proto::endpoint::{Endpoint, MAX_MESSAGE};
use crate::proto::{
    Completion, CompletionStatus, Host, LocalFault, Memory, Payload, SendOperation, SendRequest,
    Sequence, Service, Withdrawal, Work,
};

/// A request in the send queue.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: SendRequest,
    pub(super) progress: Progress,
    /// Answer of [`Host::is_mappable`]. Known once the request has started.
    pub(super) is_mappable: bool,
    /// Set if the last part went without its bytes, which the peer copies.
    pub(super) is_offered: bool,
    /// Set if only packets may carry the message.
    pub(super) is_declined: bool,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// Nothing was done for it.
    Waiting,
    /// The request has its sequence numbers: of its packets, and for a read those of the response.
    Started { first: Sequence, packets: u32 },
    /// The work of a request that stays on this side is done.
    Done,
    /// The request will fail once all before it have ended.
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

    /// Returns whether the request is a read: its response has as many packets as sequence numbers, and the request
    /// covers a run of them.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.request.operation, SendOperation::Read { .. })
    }

    /// Returns whether the request is a read or an atomic: only data answers it.
    pub(super) fn awaits_data(&self) -> bool {
        matches!(
            self.request.operation,
            SendOperation::Read { .. }
                | SendOperation::CompareSwap { .. }
                | SendOperation::FetchAdd { .. }
        )
    }

    /// Returns the number of sequence numbers that packet `packet` of `packets` takes: for a read, those up to the end
    /// of its run of `run`.
    pub(super) fn covers(&self, packet: u32, packets: u32, run: u32) -> u32 {
        if self.is_read() {
            (run - packet % run).min(packets - packet)
        } else {
            1
        }
    }

    /// Does the work of the request that stays on this side, or gives the request its sequence numbers from `next` on.
    /// Otherwise the request is still [waiting](Progress::Waiting), and the caller calls this again after the returned
    /// time.
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
            // IBTA C10-93.1.1: of a datagram that is longer than a packet nothing is sent, and that is no error.
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
            // Also of an invalidation: IBTA 11.6.2 has one memory management operation error.
            Err(_) => Progress::Failed(CompletionStatus::MemoryWindowBind),
        };
        Ok(())
    }

    /// Publishes a key again that was withdrawn for this request.
    pub(super) fn give_up(&self, memory: &impl Memory) {
        match &self.request.operation {
            SendOperation::Bind(binding) => memory.keep(binding.window),
            SendOperation::LocalInvalidate { key } => memory.keep(*key),
            _ => {}
        }
    }

    /// Returns the number of sequence numbers that the request takes. Fails if the service does not have the operation,
    /// or the length is wrong.
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
