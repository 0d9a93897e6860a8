use std::time::Duration;

use crate::proto::endpoint::{Endpoint, MAX_MESSAGE};
use crate::proto::{
    Completion, CompletionOpcode, CompletionStatus, Host, LocalFault, Memory, Payload,
    SendOperation, SendRequest, Sequence, Service, Withdrawal,
};

/// A request in the send queue, with its progress.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) request: SendRequest,
    pub(super) progress: Progress,
    /// Set if another process can map the memory of the message ([`Host::is_mappable`] returned
    /// `true`). Valid after the request has started.
    pub(super) is_mappable: bool,
    /// Set if this side sent only a description of the last transferred bytes, and the peer copies
    /// the bytes itself.
    pub(super) is_offered: bool,
    /// Set if this side must send the bytes of the message, instead of sending a description or
    /// writing them directly to the peer's memory.
    pub(super) is_declined: bool,
}

/// Progress of a request in the send queue, from posting to its completion.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// The request has not been started, and has no sequence numbers.
    Waiting,
    /// The request has sequence numbers: one for each packet, or, for a read, one for each packet
    /// of the response.
    Started { first: Sequence, packets: u32 },
    /// The request has completed without the peer: a local operation, or a datagram that is too
    /// long to be sent.
    Done,
    /// The request has failed, and completes once all earlier requests have completed.
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

    /// Returns whether the request is an RDMA read. A read has a sequence number for each packet of
    /// its response, so a single read request packet can have several sequence numbers.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.request.operation, SendOperation::Read { .. })
    }

    /// Returns whether the request is a send.
    pub(super) fn is_send(&self) -> bool {
        matches!(self.request.operation, SendOperation::Send { .. })
    }

    /// Returns whether the request is a compare-and-swap or a fetch-and-add, whose response has the
    /// previous value.
    pub(super) fn is_atomic(&self) -> bool {
        matches!(
            self.request.operation,
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. }
        )
    }

    /// Returns whether the request awaits an empty response (a read response packet without data),
    /// as an atomic write and a flush do.
    pub(super) fn awaits_empty(&self) -> bool {
        matches!(
            self.request.operation,
            SendOperation::AtomicWrite { .. } | SendOperation::Flush(_)
        )
    }

    /// Returns whether the request completes only with a response of its own, as a read, an atomic
    /// operation, an atomic write and a flush do.
    pub(super) fn awaits_data(&self) -> bool {
        self.is_read() || self.is_atomic() || self.awaits_empty()
    }

    /// Returns the number of sequence numbers that one packet of the request uses: the number of
    /// response packets for a read request packet, and 1 for any other packet. `packet` is the
    /// index of the packet's first number among the `packets` numbers of the request. A read
    /// request packet requests the response packets up to the next multiple of `run`.
    pub(super) fn covers(&self, packet: u32, packets: u32, run: u32) -> u32 {
        if self.is_read() {
            (run - packet % run).min(packets - packet)
        } else {
            1
        }
    }

    /// Starts the request. Executes a local operation immediately. Checks any other request, and
    /// assigns sequence numbers from `next` on to the request. Afterwards, `progress` contains the
    /// result. An invalid request has [failed](Progress::Failed), and a datagram that is longer
    /// than a packet is [done](Progress::Done).
    ///
    /// # Errors
    /// Returns the delay after which the caller must call `start` again, if other processes still
    /// use the memory key that the request replaces or invalidates. The request is then still
    /// [waiting](Progress::Waiting).
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
                Withdrawal::Pending { delay } => return Err(delay),
                Withdrawal::Refused => Err(LocalFault::Bind),
            },
            SendOperation::LocalInvalidate { key } => match memory.withdraw(*key) {
                Withdrawal::Complete => memory.invalidate(*key),
                Withdrawal::Pending { delay } => return Err(delay),
                Withdrawal::Refused => Err(LocalFault::Bind),
            },
            // IBTA C10-93.1.1: a datagram that is longer than a packet is not sent, and completes
            // without error.
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
            // This is also the status of a failed invalidation: IBTA 11.6.2 has one memory
            // management operation error.
            Err(_) => Progress::Failed(CompletionStatus::MemoryWindowBind),
        };
        Ok(())
    }

    /// Permits other processes to use a memory key again, if this request is a binding or an
    /// invalidation of the key. For this request, the key was withdrawn from other processes. Does
    /// nothing for any other request. Called when the queue pair is reset or enters an error state,
    /// so that the request will not be executed.
    pub(super) fn publish_withdrawn(&self, memory: &impl Memory) {
        match &self.request.operation {
            SendOperation::Bind(binding) => memory.restore_window(binding.window),
            SendOperation::LocalInvalidate { key } => memory.restore_window(*key),
            _ => {}
        }
    }

    /// Returns the number of sequence numbers that this send request needs. Checks that the
    /// transport service of the queue pair supports the operation, and checks the length.
    ///
    /// # Errors
    /// Returns the status with which the request must complete, if a check fails.
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
                O::Read { .. }
                | O::CompareSwap { .. }
                | O::FetchAdd { .. }
                | O::AtomicWrite { .. }
                | O::Flush(_),
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
            O::CompareSwap { .. } | O::FetchAdd { .. } | O::AtomicWrite { .. } | O::Flush(_) => {
                Ok(1)
            }
            _ if length > MAX_MESSAGE => Err(CompletionStatus::LocalLength),
            _ => Ok(endpoint.packets(length)),
        }
    }

    /// Creates the completion that reports the end of this request to the program, with the status
    /// `status`.
    #[inline]
    pub(super) fn completion(&self, status: CompletionStatus) -> Completion {
        let request = &self.request;
        let (opcode, length) = match &request.operation {
            SendOperation::Send { .. } | SendOperation::Datagram { .. } => {
                (CompletionOpcode::Send, request.length)
            }
            SendOperation::Write { .. } => (CompletionOpcode::Write, request.length),
            SendOperation::Read { .. } => (CompletionOpcode::Read, request.length),
            SendOperation::CompareSwap { .. } => (CompletionOpcode::CompareSwap, 8),
            SendOperation::FetchAdd { .. } => (CompletionOpcode::FetchAdd, 8),
            SendOperation::AtomicWrite { .. } => (CompletionOpcode::AtomicWrite, 8),
            SendOperation::Flush(flush) => (CompletionOpcode::Flush, flush.length),
            SendOperation::Bind(_) => (CompletionOpcode::Bind, 0),
            SendOperation::LocalInvalidate { .. } => (CompletionOpcode::LocalInvalidate, 0),
        };
        Completion {
            length,
            ..Completion::new(request.id, status, opcode)
        }
    }
}
