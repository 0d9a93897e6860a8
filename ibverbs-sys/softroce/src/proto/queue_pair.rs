use super::endpoint::Endpoint;
use super::receipt::Receipts;
use super::requester::{Failed, Requester, earlier, skipped};
use super::responder::Responder;
use super::{
    Arrival, Attributes, Completion, CompletionOpcode, CompletionStatus, Counter, Event, Host,
    Path, SendRequest, Sequence, Service, State, Time, datagram,
};
use crate::wire::{Opcode, Packet, Transport};

/// The transport of a queue pair: requester, responder, attributes and state.
///
/// The caller passes in the time, the packets and the [`Host`]. The caller also enforces the rules
/// that this type cannot check: the order of state transitions, the limit on outstanding requests,
/// and the source addresses of packets.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) endpoint: Endpoint,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) receipts: Receipts,
    /// Set once [`Event::CommunicationEstablished`] was raised, which happens once for a
    /// connection.
    established: bool,
    /// Set once [`Event::SendQueueDrained`] was raised. Cleared when the queue pair starts to drain
    /// again.
    drained: bool,
    /// Number of packets that were sent while the acknowledgement of received packets was delayed.
    /// When the number reaches [`MAX_DELAY_PACKETS`], the acknowledgement is sent next.
    pub(super) passed: u32,
}

/// Maximum number of packets that may be sent while an acknowledgement is delayed. Without this
/// limit, a queue pair that sends without a pause would not acknowledge the packets of its peer.
const MAX_DELAY_PACKETS: u32 = 8;

impl QueuePair {
    /// Creates a queue pair with the number `number` and the transport service `service`, in the
    /// RESET state.
    pub fn new(number: u32, service: Service) -> Self {
        let attributes = Attributes::default();
        Self {
            requester: Requester::new(attributes.send_sequence, &attributes),
            responder: Responder::new(attributes.receive_sequence),
            endpoint: Endpoint {
                number,
                service,
                state: State::Reset,
                attributes,
            },
            receipts: Receipts::default(),
            established: false,
            drained: false,
            passed: 0,
        }
    }

    /// Returns the number of the queue pair (24 bits).
    pub fn number(&self) -> u32 {
        self.endpoint.number
    }

    /// Returns the transport service of the queue pair.
    pub fn service(&self) -> Service {
        self.endpoint.service
    }

    /// Returns the queue pair's state.
    pub fn state(&self) -> State {
        self.endpoint.state
    }

    /// Returns the attributes of the queue pair.
    pub fn attributes(&self) -> &Attributes {
        &self.endpoint.attributes
    }

    /// Returns a mutable reference to the attributes. The attributes must be set before the
    /// [transition](Self::enter) to a state that uses them. The sequence numbers are initial
    /// values, which take effect at the transitions to ready to receive and ready to send. The
    /// limits on unacknowledged packets (`window`, `max_window`) take effect at the transition to
    /// ready to send.
    pub fn attributes_mut(&mut self) -> &mut Attributes {
        &mut self.endpoint.attributes
    }

    /// Returns the number of send requests that have not completed.
    pub fn outstanding(&self) -> usize {
        self.requester.outstanding()
    }

    /// Returns the sequence number of the next request's first packet.
    #[inline]
    pub fn send_sequence(&self) -> Sequence {
        match self.endpoint.state {
            State::Reset | State::Init | State::ReadyToReceive => {
                self.endpoint.attributes.send_sequence
            }
            _ => self.requester.next_sequence(),
        }
    }

    /// Returns the sequence number of the next new packet that is expected from the peer.
    pub fn receive_sequence(&self) -> Sequence {
        match self.endpoint.state {
            State::Reset | State::Init => self.endpoint.attributes.receive_sequence,
            _ => self.responder.expected(),
        }
    }

    /// Returns whether the queue pair is draining its send queue. The queue pair then has the state
    /// "send queue drained" (SQD), and started requests have not completed yet.
    pub fn is_draining(&self) -> bool {
        self.endpoint.state == State::SendQueueDrained && !self.drained
    }

    /// Moves the queue pair to the state `state`. The time is not used. Effects of the new state:
    /// - RESET: all requests are discarded without completions. The attributes return to their
    ///   defaults, except the attributes that were set when the queue pair was created.
    /// - ready to receive, ready to send: the sequence numbers of the attributes take effect.
    /// - send queue drained: no new request is started. Started requests continue, and an event is
    ///   raised when they have ended.
    /// - send queue error: send requests complete with the status "flushed".
    /// - error: send requests complete with the status "flushed". Receives also complete with this
    ///   status, unless they are in a shared receive queue.
    ///
    /// The caller must have checked that the transition is legal.
    pub fn enter(&mut self, state: State, _now: Time, host: &mut impl Host) {
        let before = self.endpoint.state;
        let attributes = &mut self.endpoint.attributes;
        match state {
            State::Reset => {
                *attributes = Attributes {
                    window: attributes.window,
                    max_window: attributes.max_window,
                    max_kept: attributes.max_kept,
                    signal_all: attributes.signal_all,
                    shared_receive: attributes.shared_receive,
                    ..Attributes::default()
                };
                self.requester.publish_withdrawn(host);
                self.responder.publish_held(host);
                self.requester = Requester::new(attributes.send_sequence, &*attributes);
                self.responder = Responder::new(attributes.receive_sequence);
                self.receipts = Receipts::default();
                self.established = false;
            }
            State::Init => {}
            State::ReadyToReceive => {
                self.responder = Responder::new(attributes.receive_sequence);
                self.established = false;
            }
            State::ReadyToSend => {
                if before == State::ReadyToReceive {
                    self.requester = Requester::new(attributes.send_sequence, &*attributes);
                }
            }
            State::SendQueueDrained => self.drained &= before == state,
            State::SendQueueError => self.requester.flush(&self.endpoint, host),
            State::Error => {
                self.enter_error(host);
                return;
            }
        }
        self.endpoint.state = state;
        self.report_drained(host);
    }

    /// Adds a send request to the send queue. In an error state, the request immediately completes
    /// with the status "flushed". The caller must have checked three conditions: the service and
    /// the state of the queue pair allow the operation, and no limit is exceeded.
    #[inline]
    pub fn post(&mut self, request: SendRequest, host: &mut impl Host) {
        self.queue(request);
        if matches!(self.endpoint.state, State::SendQueueError | State::Error) {
            self.requester.flush(&self.endpoint, host);
        }
    }

    /// Adds a send request to the send queue, even in an error state. In contrast,
    /// [`post`](Self::post) also completes the request with the status "flushed" in an error state.
    #[inline]
    pub fn queue(&mut self, request: SendRequest) {
        self.requester.post(request);
    }

    /// Returns whether the caller may delay the request that was posted last, to send later
    /// requests together with this request. If so, a response of the peer to earlier packets is
    /// expected soon. The caller need not call [`poll_transmit`](Self::poll_transmit) until that
    /// response arrives.
    pub fn may_wait(&self) -> bool {
        self.endpoint.state == State::ReadyToSend && self.requester.may_wait(&self.endpoint)
    }

    /// Records that the peer no longer exists. Requests that wait for a response then fail after
    /// the configured timeouts and retries, without extensions of the timeouts.
    pub fn set_peer_gone(&mut self) {
        self.requester.set_peer_gone();
    }

    /// Returns whether this queue pair has only an acknowledgement to send, and may delay it. The
    /// program may soon send a message in response, and the acknowledgement is then sent together
    /// with that message.
    pub fn may_delay_transmission(&self) -> bool {
        self.may_delay() && self.requester.is_silent()
    }

    /// Returns whether the queue pair has received packets that must be acknowledged and has not
    /// sent the acknowledgement yet.
    pub fn must_acknowledge(&self) -> bool {
        self.responder.must_acknowledge()
    }

    fn may_delay(&self) -> bool {
        self.endpoint.is_reliable()
            && self.endpoint.state == State::ReadyToSend
            && self.responder.may_delay()
    }

    /// Receives a packet. The caller must have checked the ICRC, and that the packet came from the
    /// peer's address.
    ///
    /// The caller must then call [`poll_transmit`](Self::poll_transmit), which returns the
    /// responses. This call should follow after all packets that arrived together, so that a single
    /// acknowledgement covers all of them.
    pub fn receive(
        &mut self,
        now: Time,
        arrival: &Arrival,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) {
        if !self.endpoint.is_addressed(packet) {
            host.count(Counter::Unaddressed, 1);
            return;
        }
        let bth = &packet.header.bth;
        if !self.accepts_packet(self.endpoint.number, bth.partition_key, host) {
            return;
        }
        let opcode = packet.header.bth.opcode;
        if opcode.transport == Transport::Manufacturer {
            if opcode == Opcode::SKIP {
                match skipped(&packet.header) {
                    Some((end, length)) if arrival.private => self.responder.skip_to(end, length),
                    _ => host.count(Counter::Unaddressed, 1),
                }
            } else if opcode == Opcode::GAPS {
                if self.may_send() {
                    self.requester.receive_gaps(now, &self.endpoint, packet);
                }
            } else if opcode.is_request() {
                self.receipts.asked(&self.endpoint, arrival, packet);
            } else {
                let sequence = Sequence::new(packet.header.bth.sequence);
                self.requester.receipt(sequence);
            }
            return;
        }
        if opcode.is_response() {
            if self.may_send() {
                let done = self.requester.receive(now, &self.endpoint, packet, host);
                self.handle_result(done, host);
            }
            return;
        }
        self.report_established(host);
        let done = match self.endpoint.service {
            Service::UnreliableDatagram => datagram::receive(&self.endpoint, arrival, packet, host),
            Service::UnreliableConnection => {
                self.responder
                    .receive_unreliable(&self.endpoint, packet, host)
            }
            _ => {
                self.responder.receive(&self.endpoint, packet, host);
                self.end_if_due(host);
                Ok(())
            }
        };
        if let Err(status) = done {
            self.fail_receive(status, host);
        }
    }

    /// Returns whether the queue pair accepts a packet with the queue pair number `destination` and
    /// the partition key `partition_key`. If not, counts the packet as dropped.
    pub(super) fn accepts_packet(
        &self,
        destination: u32,
        partition_key: u16,
        host: &mut impl Host,
    ) -> bool {
        let is_closed = matches!(
            self.endpoint.state,
            State::Reset | State::Init | State::Error
        );
        if is_closed || destination != self.endpoint.number {
            host.count(Counter::Unaddressed, 1);
            return false;
        }
        let is_of_partition = self.endpoint.is_of_partition(partition_key);
        if !is_of_partition {
            host.count(Counter::ReceiveDropped, 1);
        }
        is_of_partition
    }

    /// Appends the next packet to `out`, from the BTH to the pad, without the ICRC, and returns the
    /// path of the packet. Returns `None` if nothing can be sent now. The caller must repeat the
    /// call until the result is `None`.
    ///
    /// Responses are sent first, then retransmissions and new packets, as far as the window allows.
    /// An acknowledgement that [may be delayed](Self::may_delay_transmission) is sent last. The
    /// longer packets before the acknowledgement then have equal lengths, so the kernel can send
    /// all of these packets in one step.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Option<Path> {
        let path = self.endpoint.attributes.path;
        match self.endpoint.state {
            State::Reset | State::Init => return None,
            State::Error => {
                let path = path?;
                let said = self.responder.transmit_final_nak(&self.endpoint, out);
                return said.then_some(path);
            }
            _ => {}
        }
        let patient = self.may_delay() && self.passed < MAX_DELAY_PACKETS;
        if let (true, Some(path)) = (self.endpoint.is_reliable() && !patient, path) {
            if self.responder.poll_transmit(now, &self.endpoint, host, out) {
                self.passed = 0;
                return Some(path);
            }
            if self.end_if_due(host) {
                let said = self.responder.transmit_final_nak(&self.endpoint, out);
                return said.then_some(path);
            }
        }
        if let Some(path) = self.receipts.poll_transmit(&self.endpoint, out) {
            return Some(path);
        }
        if !matches!(
            self.endpoint.state,
            State::ReadyToSend | State::SendQueueDrained
        ) {
            return None;
        }
        let done = self.requester.poll_transmit(now, &self.endpoint, host, out);
        let mut sent = done.ok().flatten();
        if sent.is_some() {
            self.passed = if patient { self.passed + 1 } else { 0 };
        } else if self.may_delay() {
            // The acknowledgement is also sent before the queue pair fails.
            self.passed = 0;
            let said = self.responder.poll_transmit(now, &self.endpoint, host, out);
            sent = path.filter(|_| said);
        }
        self.handle_result(done.map(|_| ()), host);
        sent
    }

    /// Returns the earliest time at which the caller must call
    /// [`handle_timeout`](Self::handle_timeout) and then [`poll_transmit`](Self::poll_transmit).
    /// Returns `None` if no timeout is set.
    #[inline]
    pub fn next_timeout(&self) -> Option<Time> {
        earlier(self.requester.next_timeout(), self.responder.next_timeout())
    }

    /// Records at the time `now` that packets cannot be sent, because the peer's ring is full. The
    /// ring is the queue in shared memory from which the peer receives packets. The wait for free
    /// space has the same timeout and the same number of retries as the wait for a response.
    pub fn wait_for_space(&mut self, now: Time) {
        if self.endpoint.is_reliable() {
            self.requester.wait_for_space(now, &self.endpoint);
        }
    }

    /// Records that the peer's ring (queue in shared memory) has free space, after
    /// [`wait_for_space`](Self::wait_for_space). The timeout and the retries of the wait for free
    /// space begin again, because other senders can use the space first.
    pub fn space_available(&mut self) {
        self.requester.space_available();
    }

    /// Handles expired timeouts: schedules unanswered packets for retransmission, or fails the
    /// oldest request if no retry is left.
    pub fn handle_timeout(&mut self, now: Time, host: &mut impl Host) {
        self.responder.handle_timeout(now);
        let done = self.requester.handle_timeout(now, &self.endpoint, host);
        self.handle_result(done, host);
    }

    /// Returns the number of timeouts since the last response of the peer. If a call of
    /// [`handle_timeout`](Self::handle_timeout) increases the number, a response is overdue.
    pub fn unanswered_timeouts(&self) -> u8 {
        self.requester.unanswered_timeouts()
    }

    /// Handles `done`, the result of an operation of the requester (sending half of the queue
    /// pair). On success, raises [`Event::SendQueueDrained`] if the send queue has just been
    /// drained. On failure, completes the oldest request with the error, and moves the queue pair
    /// to the error state. With an unreliable service, the new state is the send queue error state
    /// instead, in which the queue pair continues to receive.
    #[inline]
    pub(super) fn handle_result(&mut self, done: Result<(), Failed>, host: &mut impl Host) {
        match done {
            Ok(()) => self.report_drained(host),
            Err(Failed(status)) => self.fail(status, host),
        }
    }

    /// Completes the oldest request with the error `status`, and moves the queue pair to an error
    /// state. With a reliable service, the new state is the error state. With an unreliable
    /// service, the new state is the send queue error state, in which the queue pair continues to
    /// receive.
    #[cold]
    fn fail(&mut self, status: CompletionStatus, host: &mut impl Host) {
        host.fails();
        self.requester.fail(status, host);
        if self.endpoint.is_reliable() {
            self.enter_error(host);
        } else {
            // The queue pair continues to receive (IBTA 10.3.1.6).
            self.requester.flush(&self.endpoint, host);
            self.endpoint.state = State::SendQueueError;
        }
    }

    /// Moves the queue pair to the error state if the peer has sent an invalid request and all
    /// earlier requests are answered. Returns whether the queue pair was moved.
    #[inline]
    pub(super) fn end_if_due(&mut self, host: &mut impl Host) -> bool {
        let due = self.responder.due_final_nak();
        if let Some(end) = due {
            self.responder.finish(end, host);
            self.enter_error(host);
        }
        due.is_some()
    }

    /// Completes the receive of the message in progress with the error `status`, and moves the
    /// queue pair to the error state. An error of the receive queue ends the connection (IBTA
    /// 9.9.3, class E, and 10.3.1.7).
    pub(super) fn fail_receive(&mut self, status: CompletionStatus, host: &mut impl Host) {
        self.responder.abort(status, host);
        self.enter_error(host);
    }

    /// Moves the queue pair to the error state. The send requests of the queue pair, and the
    /// receives of its own receive queue, complete with the status "flushed".
    pub(super) fn enter_error(&mut self, host: &mut impl Host) {
        let before = self.endpoint.state;
        host.fails();
        self.endpoint.state = State::Error;
        self.requester.flush(&self.endpoint, host);
        self.responder.flush(host);
        match self.endpoint.service {
            Service::XrcInitiator => {}
            service if service == Service::XrcTarget || self.endpoint.attributes.shared_receive => {
                if before != State::Error {
                    host.raise(Event::LastRequestReached);
                }
            }
            _ => {
                while let Some(receive) = host.next_receive(None) {
                    let completion = Completion::new(
                        receive.id,
                        CompletionStatus::Flushed,
                        CompletionOpcode::Receive,
                    );
                    host.complete_receive(completion, None);
                }
            }
        }
    }

    #[inline]
    pub(super) fn report_established(&mut self, host: &mut impl Host) {
        let connected = self.endpoint.service != Service::UnreliableDatagram;
        if connected && self.endpoint.state == State::ReadyToReceive && !self.established {
            self.established = true;
            host.raise(Event::CommunicationEstablished);
        }
    }

    #[inline]
    fn report_drained(&mut self, host: &mut impl Host) {
        let draining = self.endpoint.state == State::SendQueueDrained && !self.drained;
        if draining && self.requester.is_drained() {
            self.drained = true;
            host.raise(Event::SendQueueDrained);
        }
    }
}
