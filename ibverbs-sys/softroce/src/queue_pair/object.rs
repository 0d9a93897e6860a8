use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use ibverbs_sys::{ibv_mig_state, ibv_qp_attr, ibv_qp_cap};

use super::create::Creation;
use super::device::{Adapter, Outgoing};
use super::draft::Rules;
use super::error::{CreateError, ModifyError};
use super::handles::{Handle, Handles};
use super::host::{Environment, HostState, Receives, UsedObjects};
use super::in_process::LocalPeer;
use super::modify::{Modification, PresentState, check, mtu_number, number_of};
use super::publication::Publication;
use super::same_host::LinkedPeer;
use super::transition::Mask;
use crate::context::{Context, DomainId, Element, HasUsage, InUse, Refusal, Usage};
use crate::counters::Tally;
use crate::proto::{self, Arrival, Attributes, Counter, Event, Host, Path, Service, State, Time};
use crate::receive::ReceiveQueue;
use crate::spin::Mutex;
use crate::timers::Alarm;
use crate::wire::Run;

/// A queue pair (`ibv_qp`): a send queue, a receive queue, and the transport that executes their
/// requests.
///
/// A single lock protects all mutable state. The lock is taken before the locks of receive queues
/// and completion queues. Only a thread that moves messages between two queue pairs of this process
/// holds the locks of both, in the order that the module `in_process` defines.
///
/// When the queue pair is destroyed, it immediately releases the objects that it uses. Functions
/// that are called later through remaining references do nothing.
pub struct QueuePair {
    number: u32,
    rules: Rules,
    signal_all: bool,
    device: Arc<dyn Adapter>,
    handles: Handles,
    usage: Usage,
    alarm: Alarm,
    domain: Option<DomainId>,
    xrc: Option<DomainId>,
    pub(super) inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) transport: proto::QueuePair,
    /// Values of the queue pair's attributes as the program has set them, for `ibv_query_qp`.
    as_set: ibv_qp_attr,
    /// Objects that the queue pair uses; `None` after its destruction.
    pub(super) objects: Option<UsedObjects>,
    pub(super) host_state: HostState,
    /// Number that changes with each modification by the program. The cached `link` and
    /// `linked_peer` are valid only for the version in which they were found.
    pub(super) version: u64,
    /// Cached destination in this process, in which messages are executed directly.
    pub(super) link: Option<Box<LocalPeer>>,
    /// Cached peer in another process that shares memory with this process.
    pub(super) linked_peer: Option<LinkedPeer>,
    /// The record of this queue pair that other processes read.
    pub(super) publication: Publication,
    /// Counters of the messages of this queue pair. The device's counters include their values.
    pub(super) tally: Tally,
}

impl QueuePair {
    /// Creates a queue pair with the number `number` on the NIC `device`, in the RESET state.
    /// `creation` has the values of `ibv_create_qp`: transport service, sizes, and the protection
    /// domain and the queues that the queue pair uses. Fails if the values are not valid for the
    /// device.
    pub(crate) fn new(
        number: u32,
        device: &Arc<dyn Adapter>,
        creation: Creation<'_>,
    ) -> Result<Arc<Self>, CreateError> {
        let capabilities = creation.check()?;
        let hold = |what| move |_: Refusal| CreateError::Gone(what);
        let receives = match (creation.service, creation.shared_queue) {
            (Service::XrcInitiator | Service::XrcTarget, _) => Receives::Named,
            (_, Some(queue)) => {
                Receives::Shared(InUse::new(queue).map_err(hold("the shared receive queue"))?)
            }
            (_, None) => {
                let queue = ReceiveQueue::new(capabilities.max_recv_wr, capabilities.max_recv_sge);
                Receives::Own(RefCell::new(queue))
            }
        };
        let target = creation.service == Service::XrcTarget;
        let initiator = creation.service == Service::XrcInitiator;
        let objects = UsedObjects {
            domain: (creation.domain.filter(|_| !target))
                .map(InUse::new)
                .transpose()
                .map_err(hold("the protection domain"))?,
            send_queue: (creation.send_queue.filter(|_| !target))
                .map(InUse::new)
                .transpose()
                .map_err(hold("the send queue's completion queue"))?,
            receive_queue: (creation.receive_queue.filter(|_| !target && !initiator))
                .map(InUse::new)
                .transpose()
                .map_err(hold("the receive queue's completion queue"))?,
            receives,
            xrc: (creation.xrc.filter(|_| target))
                .map(InUse::new)
                .transpose()
                .map_err(hold("the XRC domain"))?,
            named: Default::default(),
        };
        let this = Self {
            number,
            rules: Rules {
                service: creation.service,
                capabilities,
            },
            signal_all: creation.signal_all,
            device: Arc::clone(device),
            handles: Handles::new(creation.handle),
            usage: Usage::default(),
            alarm: Alarm::new(),
            domain: objects.domain.as_ref().map(|domain| domain.id()),
            xrc: objects.xrc.as_ref().map(|domain| domain.id()),
            inner: Mutex::new(Inner {
                transport: proto::QueuePair::new(number, creation.service),
                as_set: ibv_qp_attr::default(),
                objects: Some(objects),
                host_state: HostState::default(),
                version: 0,
                link: None,
                linked_peer: None,
                publication: Publication::default(),
                tally: device.tally(),
            }),
        };
        this.reset(&mut this.inner.lock());
        Ok(Arc::new(this))
    }

    /// Returns the queue pair number, which identifies the queue pair in packets.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the transport service of the queue pair.
    pub fn service(&self) -> Service {
        self.rules.service
    }

    /// Returns the current state of the queue pair. The state may also change without a call by the
    /// program, after an error.
    pub fn state(&self) -> State {
        self.inner.lock().transport.state()
    }

    /// Returns whether the queue pair can send and has send requests that are not completed.
    pub(crate) fn has_outstanding_requests(&self) -> bool {
        let transport = &self.inner.lock().transport;
        transport.state() == State::ReadyToSend && transport.outstanding() > 0
    }

    /// Returns the path to the peer (the connected queue pair), and the peer's queue pair number.
    /// Returns `None` for a datagram queue pair (UD). Also returns `None` before the program has
    /// set the path of the connection.
    pub(crate) fn peer(&self) -> Option<(Path, u32)> {
        self.peer_of(&self.inner.lock())
    }

    /// Returns the rules that determine which requests the program may post to the queue pair.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the capabilities of the queue pair, which were set at its creation.
    pub(crate) fn capabilities(&self) -> ibv_qp_cap {
        self.rules.capabilities
    }

    /// Returns whether every send request generates a completion, even a request that is not marked
    /// as signaled.
    pub(crate) fn signal_all(&self) -> bool {
        self.signal_all
    }

    /// Returns the ID of the XRC domain of an XRC target, or `None` for other types.
    pub(crate) fn xrc_domain(&self) -> Option<DomainId> {
        self.xrc
    }

    /// Returns the ID of the protection domain, or `None` for an XRC target.
    pub(crate) fn domain(&self) -> Option<DomainId> {
        self.domain
    }

    /// Modifies the queue pair as `wanted` requests (`ibv_modify_qp`): sets attributes, and enters
    /// a state. Changes nothing if a check fails. Returns the state after the modification.
    pub(crate) fn modify(&self, wanted: &Modification<'_>) -> Result<State, ModifyError> {
        let mut inner = self.inner.lock();
        let mut plan = check(self.present(&inner), wanted, &*self.device)?;
        if plan.enter == Some(State::Reset) {
            drop(inner);
            self.withdraw_and_wait().map_err(|_| ModifyError::Visited)?;
            inner = self.inner.lock();
            plan = check(self.present(&inner), wanted, &*self.device)?;
        }
        let state = inner.transport.state();
        let peer = self.peer_of(&inner);
        inner.version += 1;
        let attributes = inner.transport.attributes_mut();
        plan.apply(wanted.values, attributes);
        let source = attributes.path.map_or(0, |path| path.source);
        let sets_path = plan.set.contains(Mask::PATH_MTU) || plan.set.contains(Mask::ADDRESS);
        if sets_path && attributes.path.is_some() {
            // Both sides use the MTU of the network between them, even if the program has not asked
            // for it. Other modifications keep the MTU: a message may be in transfer.
            attributes.path_mtu = attributes.path_mtu.min(self.device.mtu_of(source));
        }
        let windows = self.device.windows(source, attributes.path_mtu);
        (attributes.window, attributes.max_window) = (*windows.start(), *windows.end());
        attributes.max_kept = attributes.max_window;
        let path_mtu = attributes.path_mtu;
        plan.store(wanted.values, &mut inner.as_set);
        inner.as_set.path_mtu = mtu_number(path_mtu);
        match plan.enter {
            Some(State::Reset) => {
                self.enter(&mut inner, State::Reset);
                self.reset(&mut inner);
            }
            Some(State::SendQueueDrained) if state != State::SendQueueDrained => {
                inner.host_state.draining = true;
                inner.host_state.notify_drained = plan.set.contains(Mask::NOTIFY_DRAINED)
                    && wanted.values.en_sqd_async_notify != 0;
                self.enter(&mut inner, State::SendQueueDrained);
            }
            Some(to) if to != state => self.enter(&mut inner, to),
            _ => {}
        }
        let now = inner.transport.state();
        if now == State::ReadyToReceive && state != now {
            let first = inner.transport.receive_sequence();
            inner.publication.connect(first.value());
        }
        self.publish(&mut inner);
        let new_peer = self.peer_of(&inner);
        drop(inner);
        if new_peer != peer {
            self.change_peer(peer, new_peer);
        }
        if now == State::ReadyToReceive && state != now {
            if self.service() == Service::UnreliableDatagram {
                self.device.receive_everywhere();
            }
            self.check_path_mtu(&self.inner.lock());
        }
        Ok(now)
    }

    fn present(&self, inner: &Inner) -> PresentState {
        let state = inner.transport.state();
        PresentState {
            service: self.rules.service,
            state,
            draining: inner.host_state.draining && state == State::SendQueueDrained,
            port: inner.as_set.port_num,
        }
    }

    /// Returns the attributes that the program has set, with the current state, sequence numbers
    /// and capabilities (`ibv_query_qp`).
    pub(crate) fn query(&self) -> ibv_qp_attr {
        let inner = self.inner.lock();
        let state = inner.transport.state();
        let draining = state == State::SendQueueDrained && inner.host_state.draining;
        ibv_qp_attr {
            qp_state: number_of(state),
            cur_qp_state: number_of(state),
            path_mig_state: ibv_mig_state::IBV_MIG_MIGRATED,
            rq_psn: inner.transport.receive_sequence().value(),
            sq_psn: inner.transport.send_sequence().value(),
            cap: self.rules.capabilities,
            sq_draining: u8::from(draining),
            ..inner.as_set
        }
    }

    /// Handles one received packet or several packets of the same message (`run`). `arrival`
    /// describes their sender and destination. Afterwards the caller must transmit the responses.
    pub fn receive(&self, now: Time, arrival: &Arrival, run: &Run<'_>) {
        let mut inner = self.inner.lock();
        #[cfg(any(test, feature = "sim"))]
        crate::fault::panics::pass(crate::fault::panics::PanicPoint::Receive);
        let connected = self.rules.service != Service::UnreliableDatagram;
        self.with(&mut inner, |transport, host| {
            // IBTA 9.6.1.4: a connection accepts only packets of its own path. A datagram is only
            // checked against its source queue pair number.
            let is_theirs = if connected {
                arrival.is_from_peer(transport.attributes())
            } else {
                let deth = run.first().header.deth;
                deth.is_none_or(|deth| arrival.may_own(deth.source))
            };
            if !is_theirs {
                host.count(Counter::Unaddressed, run.count() as u64);
                return;
            }
            transport.receive_run(now, arrival, run, host);
        });
    }

    /// Executes queued requests that need no packets, and passes all packets that may be sent now
    /// to `outgoing`. The packets are sent before the queue pair is unlocked, so packets of another
    /// thread cannot overtake them. Returns the time of the next timeout of the queue pair.
    pub(crate) fn transmit(
        &self,
        now: impl FnOnce() -> Time,
        outgoing: &mut impl Outgoing,
    ) -> Option<Time> {
        let mut inner = self.inner.lock();
        if !self.transmit_acknowledgement(&mut inner, outgoing) {
            self.execute_all_queued(&mut inner);
            self.transmit_queued(&mut inner, now, outgoing);
        }
        inner.transport.next_timeout()
    }

    /// Records that the peer process has freed space in the ring (message queue) that both
    /// processes share, so that this queue pair can try to send again. The queue pair waits again
    /// if another queue pair has already used the space. Does nothing if the memory is no longer
    /// shared.
    pub(crate) fn space_available(&self) {
        let mut inner = self.inner.lock();
        if (inner.linked_peer.as_ref()).is_some_and(|linked_peer| !linked_peer.link.is_dead()) {
            inner.transport.space_available();
        }
    }

    /// Returns whether the queue pair has nothing to transmit now. An acknowledgement that may be
    /// delayed does not count. Such an acknowledgement is sent later, together with a message of
    /// the program.
    pub(crate) fn may_delay_transmission(&self) -> bool {
        self.inner.lock().transport.may_delay_transmission()
    }

    /// Returns whether the queue pair has received messages that it has not acknowledged yet. If
    /// so, an acknowledgement must be transmitted, now or later.
    pub(crate) fn must_acknowledge(&self) -> bool {
        self.inner.lock().transport.must_acknowledge()
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must be called next, or
    /// `None` if no timeout is pending.
    pub fn next_timeout(&self) -> Option<Time> {
        self.inner.lock().transport.next_timeout()
    }

    /// Returns the timer of the queue pair. The NIC sets the timer to expire at the [next
    /// timeout](Self::next_timeout).
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Handles the timeouts that are due at `now`, for example by retransmission. Afterwards the
    /// caller must transmit the packets.
    pub fn handle_timeout(&self, now: Time) {
        let mut inner = self.inner.lock();
        let before = inner.transport.unanswered_timeouts();
        self.with(&mut inner, |transport, host| {
            transport.handle_timeout(now, host);
        });
        if inner.transport.unanswered_timeouts() > before {
            self.check_path_mtu(&inner);
        }
    }

    /// Begins a check that packets with the length of the path MTU reach the peer, if the peer is
    /// on another host. If such packets are lost, the user gets a message. `inner` is the locked
    /// state of this queue pair.
    fn check_path_mtu(&self, inner: &Inner) {
        let attributes = inner.transport.attributes();
        if let Some(path) = &attributes.path {
            let (number, mtu) = (attributes.destination, attributes.path_mtu);
            self.device.check_path_mtu(path, number, mtu);
        }
    }

    /// Moves the queue pair to the error state, which flushes all requests. Called when the device
    /// has failed.
    pub(crate) fn fail(&self) {
        let mut inner = self.inner.lock();
        if !matches!(inner.transport.state(), State::Reset | State::Error) {
            self.enter(&mut inner, State::Error);
        }
    }

    /// Adds a reference from an open device (`ibv_context`) to the queue pair. Returns `false` if
    /// the queue pair is being destroyed.
    pub(crate) fn open(&self, handle: Handle) -> bool {
        self.handles.add(handle)
    }

    /// Removes a reference from an open device (`ibv_context`) to this queue pair. `element`
    /// identifies the reference. Returns `true` if no reference is left. The caller must then
    /// destroy the queue pair.
    pub(crate) fn release(&self, element: &Arc<Element>) -> bool {
        self.handles.remove(element)
    }

    /// Removes all references from the open device `context`, which is being closed, to this queue
    /// pair. Returns `true` if references were removed and no reference is left. The caller must
    /// then destroy the queue pair.
    pub(crate) fn release_all(&self, context: &Arc<Context>) -> bool {
        self.handles.remove_all(context)
    }

    /// Destroys the queue pair: drops its requests, removes their completions from the completion
    /// queues, and releases the objects that it uses. Before the call, the caller must remove the
    /// queue pair from the NIC's table, and must end the access of other processes by
    /// [`withdraw_and_wait`](Self::withdraw_and_wait).
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        let peer = self.peer_of(&inner);
        self.enter(&mut inner, State::Reset);
        self.reset(&mut inner);
        inner.objects = None;
        self.publish(&mut inner);
        drop(inner);
        self.change_peer(peer, None);
        self.device.memory().release_queue_pair(self.number);
    }

    fn peer_of(&self, inner: &Inner) -> Option<(Path, u32)> {
        let attributes = inner.transport.attributes();
        let path = attributes.path?;
        (self.service() != Service::UnreliableDatagram).then_some((path, attributes.destination))
    }

    /// Makes the device accept packets of the peer `new`, and stop accepting packets of the peer
    /// `old`. A peer is given by its path and queue pair number. The caller must not hold the lock
    /// of the queue pair, because the device makes system calls.
    fn change_peer(&self, old: Option<(Path, u32)>, new: Option<(Path, u32)>) {
        if let Some((path, number)) = new {
            self.device.connect(&path, number);
        }
        if let Some((path, number)) = old {
            self.device.disconnect(&path, number);
        }
    }

    fn enter(&self, inner: &mut Inner, state: State) {
        let now = self.device.now();
        self.with(inner, |transport, host| transport.enter(state, now, host));
    }

    /// Resets the queue pair with the locked state `inner`: gives its attributes the values of a
    /// new queue pair, and removes the peer and the posted receives. Also removes the completions
    /// of the queue pair from the completion queues. Requires that the transport (protocol code) is
    /// already in the state RESET.
    fn reset(&self, inner: &mut Inner) {
        inner.version += 1;
        inner.link = None;
        inner.linked_peer = None;
        inner.host_state = HostState::default();
        inner.as_set = ibv_qp_attr {
            path_mtu: mtu_number(self.device.mtu()),
            ..ibv_qp_attr::default()
        };
        let windows = self.device.windows(0, self.device.mtu());
        *inner.transport.attributes_mut() = Attributes {
            path_mtu: self.device.mtu(),
            window: *windows.start(),
            max_window: *windows.end(),
            max_kept: *windows.end(),
            signal_all: self.signal_all,
            shared_receive: !matches!(
                inner.objects.as_ref().map(|objects| &objects.receives),
                Some(Receives::Own(_))
            ),
            ..Attributes::default()
        };
        let Some(objects) = &inner.objects else {
            return;
        };
        if let Receives::Own(queue) = &objects.receives {
            queue.borrow_mut().clear();
        }
        for queue in [&objects.send_queue, &objects.receive_queue]
            .into_iter()
            .flatten()
        {
            queue.discard(self.number);
        }
    }

    /// Calls `act` with the queue pair's transport (protocol code), and with access to the memory,
    /// completion queues and receives that the transport uses. `inner` is the locked state of the
    /// queue pair. Returns the result of `act`, or `None` if the queue pair was destroyed.
    pub(super) fn with<T>(
        &self,
        inner: &mut Inner,
        act: impl FnOnce(&mut proto::QueuePair, &mut Environment<'_>) -> T,
    ) -> Option<T> {
        let Inner {
            transport,
            objects,
            host_state,
            ..
        } = inner;
        let mut host = self.environment(objects.as_ref()?, host_state);
        let result = act(transport, &mut host);
        self.fail_if_overrun(transport, &mut host);
        // Peers must not use a failed queue pair. In the state SQE the program can restart the
        // queue pair, which is then published again.
        if matches!(transport.state(), State::Error | State::SendQueueError) {
            // This does not wait for peers that still access memory through the queue pair: a later
            // reset or destruction does.
            self.publish(inner);
        }
        Some(result)
    }

    /// Returns the environment that the transport (protocol code) needs for one call: access to the
    /// memory, the receives, the completion queues and the NIC. `objects` are the objects that the
    /// queue pair uses, and `host_state` stores the results of the call.
    pub(super) fn environment<'a>(
        &'a self,
        objects: &'a UsedObjects,
        host_state: &'a mut HostState,
    ) -> Environment<'a> {
        Environment {
            number: self.number,
            device: &*self.device,
            handles: &self.handles,
            objects,
            host_state,
            answering: false,
        }
    }

    /// Moves the queue pair to the error state if one of its completions was lost because the
    /// completion queue was full. Without the error, the program would wait for this completion
    /// forever (IBTA 11.6.3.2).
    pub(super) fn fail_if_overrun(
        &self,
        transport: &mut proto::QueuePair,
        host: &mut Environment<'_>,
    ) {
        if std::mem::take(&mut host.host_state.overrun)
            && !matches!(transport.state(), State::Reset | State::Error)
        {
            transport.enter(State::Error, self.device.now(), host);
            host.raise(Event::Fatal);
            host.host_state.overrun = false;
        }
    }

    /// Returns the NIC to which the queue pair belongs.
    pub(super) fn device(&self) -> &dyn Adapter {
        &*self.device
    }
}

impl HasUsage for QueuePair {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("service", &self.rules.service)
            .finish_non_exhaustive()
    }
}
