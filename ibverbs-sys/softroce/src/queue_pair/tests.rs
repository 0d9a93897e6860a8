//! Tests of queue pairs with real queues and memory, and a simulated wire.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ibverbs_sys::{ibv_event_type, ibv_mtu, ibv_qp_attr, ibv_qp_cap, ibv_qp_state};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::device::tests::TestDevice;
use super::error::ModifyError;
use super::transition::{Mask, rule};
use super::{
    Adapter, CreateError, Creation, Draft, Handle, Modification, Outgoing, PostError, QueuePair,
    number_of,
};
use crate::completion::{CompletionQueue, CompletionQueueAttributes, Entry};
use crate::context::{Context, Element, HasUsage, ProtectionDomain, Refusal, Subject};
use crate::memory::{DeviceMemory, RegionAttributes, Span};
use crate::proto::{
    AccessFlags, Arrival, CompletionOpcode, CompletionStatus, GatherList, Inline, Path,
    ReceiveRequest, Remote, Segment, SendOperation, SendRequest, Service, State, Time,
};
use crate::receive::{SharedReceiveQueue, XrcBinding};
use crate::wire::{Packet, Run};
use crate::xrc::{XrcDomain, XrcDomains};

/// GID of the test device at index 0.
const OWN_GID: Ipv6Addr = Ipv4Addr::new(127, 1, 2, 3).to_ipv6_mapped();

const SEND: SendOperation = SendOperation::Send {
    immediate: None,
    invalidate: None,
};

/// A test setup: a device with one object of each kind.
struct Bench {
    device: Arc<TestDevice>,
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    send_queue: Arc<CompletionQueue>,
    receive_queue: Arc<CompletionQueue>,
    xrc: Arc<XrcDomain>,
    /// Key of a region of 4096 bytes with all access rights.
    key: u32,
}

/// Packets in flight. Each is delivered to the queue pair whose number the packet contains.
#[derive(Default)]
struct Wire(VecDeque<Vec<u8>>);

impl Outgoing for Wire {
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool {
        let mut packet = Vec::new();
        let sent = write(&mut packet).is_some();
        if sent {
            self.0.push_back(packet);
        }
        sent
    }

    fn flush(&mut self) {}
}

fn bench(entries: u32) -> Bench {
    let device = Arc::new(TestDevice::default());
    let context = Context::new().unwrap();
    let domain = ProtectionDomain::new();
    let deadlines = Arc::default();
    let queue = || {
        let attributes = CompletionQueueAttributes {
            capacity: entries,
            channel: None,
            ignore_overrun: false,
            timestamps: true,
        };
        let queue = CompletionQueue::new(&context, &deadlines, attributes).unwrap();
        queue.element().identify(1);
        queue
    };
    let memory = DeviceMemory::new(4096).unwrap();
    let region = RegionAttributes {
        domain: domain.id(),
        span: Span::device(&memory, 0, 4096).unwrap(),
        start: 0,
        access: AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC,
    };
    Bench {
        key: device.memory.register(region).unwrap(),
        send_queue: queue(),
        receive_queue: queue(),
        xrc: XrcDomains::default().open(None, true, false).unwrap(),
        device,
        domain,
        context,
    }
}

impl Bench {
    fn handle(&self) -> Handle {
        let element = Element::new();
        element.identify(2);
        Handle {
            context: Arc::clone(&self.context),
            element,
        }
    }

    fn creation(&self, service: Service) -> Creation<'_> {
        let xrc = matches!(service, Service::XrcInitiator | Service::XrcTarget);
        Creation {
            handle: self.handle(),
            service,
            domain: Some(&self.domain),
            send_queue: Some(&self.send_queue),
            receive_queue: Some(&self.receive_queue),
            shared_queue: None,
            xrc: xrc.then_some(&self.xrc),
            capabilities: ibv_qp_cap {
                max_send_wr: 3,
                max_recv_wr: 3,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 64,
            },
            signal_all: true,
        }
    }

    fn make(&self, number: u32, creation: Creation<'_>) -> Result<Arc<QueuePair>, CreateError> {
        let device: Arc<dyn Adapter> = self.device.clone();
        QueuePair::new(number, &device, creation)
    }

    fn queue_pair(&self, number: u32, service: Service) -> Arc<QueuePair> {
        self.make(number, self.creation(service)).unwrap()
    }

    fn shared_queue(&self, xrc: bool) -> Arc<SharedReceiveQueue> {
        let binding = xrc.then(|| XrcBinding {
            domain: self.xrc.id(),
            completion_queue: Arc::clone(&self.receive_queue),
        });
        let place = (&self.context, &self.domain);
        let make = |number| SharedReceiveQueue::new(number, place, 4, 1, binding);
        self.device.shared_queues.insert(make).unwrap()
    }

    /// Delivers all packets in order, and the packets that are sent in response, until no packet is
    /// left.
    fn run(&self, wire: &mut Wire, queue_pairs: &[&Arc<QueuePair>]) {
        let now = Time::from_nanos(1);
        for queue_pair in queue_pairs {
            queue_pair.transmit(|| now, wire);
        }
        let mut packets = 0;
        while let Some(bytes) = wire.0.pop_front() {
            packets += 1;
            assert!(packets < 1000, "they never come to an end");
            let packet = Packet::parse(&bytes).unwrap();
            let number = packet.header.bth.destination;
            let to = queue_pairs.iter().find(|to| to.number() == number).unwrap();
            to.receive(now, &arrival(OWN_GID), &Run::of_packet(packet));
            to.transmit(|| now, wire);
        }
    }

    fn completions(
        &self,
        queue: &CompletionQueue,
    ) -> Vec<(u64, CompletionStatus, CompletionOpcode)> {
        let mut all = Vec::new();
        let entry = |entry: &Entry| {
            let completion = &entry.completion;
            all.push((completion.id, completion.status, completion.opcode));
        };
        queue.poll(usize::MAX, entry);
        all
    }

    fn sent(&self) -> Vec<(u64, CompletionStatus, CompletionOpcode)> {
        self.completions(&self.send_queue)
    }

    fn received(&self) -> Vec<(u64, CompletionStatus, CompletionOpcode)> {
        self.completions(&self.receive_queue)
    }

    /// Fetches the pending asynchronous events of queue pairs and completion queues, and returns
    /// their types.
    fn events(&self) -> Vec<ibv_event_type> {
        let mut events = Vec::new();
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        while poll(
            &mut [PollFd::new(&self.context, PollFlags::IN)],
            Some(&at_once),
        ) == Ok(1)
        {
            let event = self.context.next_event().unwrap();
            if let Subject::Element(element) = &event.subject {
                self.context.acknowledge(element.address());
            }
            events.push(event.kind);
        }
        events
    }
}

fn arrival(source: Ipv6Addr) -> Arrival {
    Arrival {
        local: 0,
        source,
        destination: OWN_GID,
        route: [0; 40],
        slot: None,
        private: false,
    }
}

fn attributes(peer: u32, to: State) -> ibv_qp_attr {
    let mut values = ibv_qp_attr {
        qp_state: number_of(to),
        path_mtu: ibv_mtu::IBV_MTU_1024,
        qkey: 0x11,
        rq_psn: 0xff_fffe,
        sq_psn: 0xff_fffe,
        dest_qp_num: peer,
        qp_access_flags: 0b1111,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 12,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ..ibv_qp_attr::default()
    };
    values.ah_attr.is_global = 1;
    values.ah_attr.port_num = 1;
    values.ah_attr.grh.hop_limit = 64;
    values
}

fn enter(queue_pair: &QueuePair, peer: u32, to: State) -> Result<State, ModifyError> {
    let required = rule(queue_pair.service(), queue_pair.state(), to)
        .map_or(Mask::empty(), |rule| rule.required);
    modify(queue_pair, Mask::STATE | required, &attributes(peer, to))
}

fn modify(queue_pair: &QueuePair, mask: Mask, values: &ibv_qp_attr) -> Result<State, ModifyError> {
    queue_pair.modify(&Modification {
        mask: mask.bits(),
        values,
        destination: OWN_GID,
    })
}

/// Moves a queue pair from the state RESET to the state `to`, state by state. `peer` is the number
/// of its peer.
fn move_to_state(queue_pair: &QueuePair, peer: u32, to: State) {
    let way = [
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::SendQueueDrained,
    ];
    for state in way {
        assert_eq!(enter(queue_pair, peer, state), Ok(state));
        if state == to {
            return;
        }
    }
}

fn request(queue_pair: &QueuePair, id: u64, operation: SendOperation) -> SendRequest {
    let mut draft = Draft::new(id, 0, operation);
    draft.inline(Inline::from_slice(b"some bytes"));
    draft.xrc_srq(1);
    draft.finish(queue_pair.rules()).unwrap()
}

fn post(queue_pair: &QueuePair, id: u64) -> Result<(), PostError> {
    queue_pair.sender().post(request(queue_pair, id, SEND))
}

fn room(bench: &Bench, id: u64) -> ReceiveRequest {
    let segment = Segment {
        address: 1024,
        length: 64,
        key: bench.key,
    };
    ReceiveRequest {
        id,
        segments: GatherList::from_slice(&[segment]),
        length: 64,
    }
}

const OK: CompletionStatus = CompletionStatus::Success;
const FLUSHED: CompletionStatus = CompletionStatus::Flushed;

#[test]
fn each_queue_pair_type_requires_its_attributes() {
    use Service::{
        ReliableConnection, UnreliableConnection, UnreliableDatagram, XrcInitiator, XrcTarget,
    };
    let bench = bench(8);
    let without = |service, take: fn(&mut Creation<'_>)| {
        let mut creation = bench.creation(service);
        take(&mut creation);
        bench.make(7, creation).err().map(CreateError::errno)
    };
    let connected = [ReliableConnection, UnreliableConnection, UnreliableDatagram];
    for service in connected {
        assert_eq!(without(service, |_| ()), None);
        assert_eq!(
            without(service, |c| c.receive_queue = None),
            Some(libc::EINVAL)
        );
    }
    for service in [ReliableConnection, UnreliableDatagram, XrcInitiator] {
        assert_eq!(without(service, |c| c.domain = None), Some(libc::EINVAL));
        assert_eq!(
            without(service, |c| c.send_queue = None),
            Some(libc::EINVAL)
        );
    }
    assert_eq!(without(XrcInitiator, |c| c.receive_queue = None), None);
    assert_eq!(without(XrcTarget, |c| c.xrc = None), Some(libc::EINVAL));
    let bare = |c: &mut Creation<'_>| {
        (c.domain, c.send_queue, c.receive_queue) = (None, None, None);
    };
    assert_eq!(without(XrcTarget, bare), None);
}

#[test]
fn shared_receive_queues_are_accepted_for_reliable_connections_and_datagrams() {
    let bench = bench(8);
    let (plain, xrc) = (bench.shared_queue(false), bench.shared_queue(true));
    let with = |service, queue| {
        let mut creation = bench.creation(service);
        creation.shared_queue = Some(queue);
        bench.make(7, creation)
    };
    let made = with(Service::ReliableConnection, &plain).unwrap();
    assert_eq!(made.capabilities().max_recv_wr, 0, "it has no such queue");
    assert_eq!(plain.close(), Err(Refusal::Busy));
    assert!(with(Service::UnreliableDatagram, &plain).is_ok());
    assert!(with(Service::UnreliableConnection, &plain).is_err());
    assert!(with(Service::ReliableConnection, &xrc).is_err());
    move_to_state(&made, 7, State::Init);
    let refused = made.receiver().post(room(&bench, 1));
    assert_eq!(refused, Err(PostError::NoQueue));
    made.close();
    assert_eq!(plain.close(), Ok(()));
}

#[test]
fn capabilities_are_limited_and_granted_as_requested() {
    type Change = fn(&mut ibv_qp_cap);
    let bench = bench(8);
    let with = |change: Change| {
        let mut creation = bench.creation(Service::ReliableConnection);
        change(&mut creation.capabilities);
        bench.make(7, creation).map(|made| made.capabilities())
    };
    let changes: [(Change, Change); 5] = [
        (|c| c.max_send_wr = 1 << 14, |c| c.max_send_wr += 1 << 14),
        (|c| c.max_recv_wr = 1 << 14, |c| c.max_recv_wr += 1 << 14),
        (|c| c.max_send_sge = 32, |c| c.max_send_sge = 33),
        (|c| c.max_recv_sge = 32, |c| c.max_recv_sge = u32::MAX),
        (|c| c.max_inline_data = 1024, |c| c.max_inline_data = 1025),
    ];
    for (fits, does_not) in changes {
        let mut asked = bench.creation(Service::ReliableConnection).capabilities;
        fits(&mut asked);
        let made = with(fits).unwrap();
        assert_eq!(
            (made.max_send_wr, made.max_recv_wr, made.max_inline_data),
            (asked.max_send_wr, asked.max_recv_wr, asked.max_inline_data)
        );
        assert_eq!(with(does_not).unwrap_err().errno(), libc::EINVAL);
    }
}

#[test]
fn messages_are_transferred_between_queue_pairs() {
    for service in [Service::ReliableConnection, Service::UnreliableConnection] {
        let bench = bench(8);
        let (one, two) = (bench.queue_pair(7, service), bench.queue_pair(8, service));
        move_to_state(&one, 8, State::ReadyToSend);
        move_to_state(&two, 7, State::ReadyToSend);
        let mut wire = Wire::default();
        for id in 0..3 {
            two.receiver().post(room(&bench, 10 + id)).unwrap();
            post(&one, id).unwrap();
        }
        bench.run(&mut wire, &[&one, &two]);
        let sent: Vec<_> = (0..3).map(|id| (id, OK, CompletionOpcode::Send)).collect();
        let received: Vec<_> = (10..13)
            .map(|id| (id, OK, CompletionOpcode::Receive))
            .collect();
        assert_eq!((bench.sent(), bench.received()), (sent, received));
        // Sequence numbers wrap to zero, and the query returns the current ones.
        assert_eq!((one.query().sq_psn, two.query().rq_psn), (1, 1));
    }
}

#[test]
fn a_queue_pair_can_be_its_own_peer() {
    let bench = bench(8);
    let itself = bench.queue_pair(7, Service::ReliableConnection);
    move_to_state(&itself, 7, State::ReadyToSend);
    itself.receiver().post(room(&bench, 1)).unwrap();
    post(&itself, 2).unwrap();
    let remote = Remote {
        address: 8,
        key: bench.key,
    };
    let write = SendOperation::Write {
        remote,
        immediate: None,
    };
    let write = request(&itself, 3, write);
    itself.sender().post(write).unwrap();
    bench.run(&mut Wire::default(), &[&itself]);
    assert_eq!(bench.received(), [(1, OK, CompletionOpcode::Receive)]);
    assert_eq!(
        bench.sent(),
        [
            (2, OK, CompletionOpcode::Send),
            (3, OK, CompletionOpcode::Write)
        ]
    );
}

#[test]
fn the_state_determines_the_accepted_requests() {
    let bench = bench(32);
    let one = bench.queue_pair(7, Service::ReliableConnection);
    assert_eq!(post(&one, 0), Err(PostError::State(State::Reset)));
    let early = one.receiver().post(room(&bench, 0));
    assert_eq!(early, Err(PostError::State(State::Reset)));
    for state in [State::Init, State::ReadyToReceive] {
        enter(&one, 8, state).unwrap();
        assert_eq!(post(&one, 0), Err(PostError::State(state)));
        one.receiver().post(room(&bench, 0)).unwrap();
    }
    for state in [State::ReadyToSend, State::SendQueueDrained] {
        enter(&one, 8, state).unwrap();
        post(&one, 1).unwrap();
        assert!(bench.sent().is_empty());
    }
    enter(&one, 8, State::Error).unwrap();
    post(&one, 2).unwrap();
    one.receiver().post(room(&bench, 3)).unwrap();
    let flushed = |id, opcode| (id, FLUSHED, opcode);
    let sends = [1, 1, 2].map(|id| flushed(id, CompletionOpcode::Send));
    let receives = [0, 0, 3].map(|id| flushed(id, CompletionOpcode::Receive));
    assert_eq!(bench.sent(), sends);
    assert_eq!(bench.received(), receives);
}

#[test]
fn queues_have_the_requested_capacities() {
    let bench = bench(32);
    let one = bench.queue_pair(7, Service::ReliableConnection);
    move_to_state(&one, 8, State::ReadyToSend);
    for id in 0..3 {
        post(&one, id).unwrap();
        one.receiver().post(room(&bench, id)).unwrap();
    }
    assert_eq!(post(&one, 3), Err(PostError::Full));
    assert_eq!(PostError::Full.errno(), libc::ENOMEM);
    let more = one.receiver().post(room(&bench, 3));
    assert_eq!(more, Err(PostError::Full));

    // A batch is posted completely or not at all. In an error state there is always room.
    let two = bench.queue_pair(8, Service::ReliableConnection);
    move_to_state(&two, 7, State::ReadyToSend);
    let batch = |count| (0..count).map(|id| request(&two, id, SEND)).collect();
    let (mut four, mut three): (Vec<_>, Vec<_>) = (batch(4), batch(3));
    assert_eq!(two.sender().post_all(&mut four), Err(PostError::Full));
    assert_eq!(two.sender().post_all(&mut three), Ok(()));
    enter(&two, 7, State::Error).unwrap();
    assert_eq!(two.sender().post_all(&mut four), Ok(()));
    assert_eq!(bench.sent().len(), 7);
}

#[test]
fn the_path_mtu_stays_when_the_mtu_of_the_interface_changes() {
    let bench = bench(8);
    let one = bench.queue_pair(7, Service::ReliableConnection);
    move_to_state(&one, 8, State::ReadyToReceive);
    bench.device.has_low_mtu.store(true, Ordering::Relaxed);
    enter(&one, 8, State::ReadyToSend).unwrap();
    assert_eq!(one.query().path_mtu, ibv_mtu::IBV_MTU_1024);
    let two = bench.queue_pair(8, Service::ReliableConnection);
    move_to_state(&two, 7, State::ReadyToReceive);
    assert_eq!(two.query().path_mtu, ibv_mtu::IBV_MTU_512);
}

#[test]
fn a_query_returns_the_attributes_that_were_set_until_reset() {
    let bench = bench(8);
    let one = bench.queue_pair(7, Service::ReliableConnection);
    move_to_state(&one, 8, State::ReadyToSend);
    let told = one.query();
    assert_eq!(told.qp_state, ibv_qp_state::IBV_QPS_RTS);
    assert_eq!(told.cur_qp_state, ibv_qp_state::IBV_QPS_RTS);
    let values = attributes(8, State::ReadyToSend);
    assert_eq!(told.path_mtu, values.path_mtu);
    assert_eq!((told.sq_psn, told.rq_psn), (values.sq_psn, values.rq_psn));
    assert_eq!((told.dest_qp_num, told.qp_access_flags), (8, 0b1111));
    assert_eq!((told.port_num, told.pkey_index), (1, 0));
    assert_eq!((told.timeout, told.retry_cnt, told.rnr_retry), (14, 7, 7));
    assert_eq!((told.max_rd_atomic, told.max_dest_rd_atomic), (4, 4));
    assert_eq!((told.min_rnr_timer, told.ah_attr.grh.hop_limit), (12, 64));
    assert_eq!((told.cap.max_send_wr, told.cap.max_inline_data), (3, 64));

    one.receiver().post(room(&bench, 1)).unwrap();
    post(&one, 2).unwrap();
    enter(&one, 8, State::Reset).unwrap();
    let told = one.query();
    assert_eq!(told.qp_state, ibv_qp_state::IBV_QPS_RESET);
    assert_eq!((told.dest_qp_num, told.port_num, told.timeout), (0, 0, 0));
    assert_eq!(told.cap.max_send_wr, 3);
    // Requests from before the reset must not complete, and the queue pair must be usable again.
    enter(&one, 8, State::Init).unwrap();
    enter(&one, 8, State::Error).unwrap();
    assert!(bench.sent().is_empty() && bench.received().is_empty());
}

#[test]
fn a_refused_modification_changes_nothing() {
    let bench = bench(8);
    let one = bench.queue_pair(7, Service::ReliableConnection);
    move_to_state(&one, 8, State::Init);
    let mut wrong = attributes(9, State::ReadyToReceive);
    wrong.min_rnr_timer = 32;
    let mask = Mask::STATE
        | rule(one.service(), State::Init, State::ReadyToReceive)
            .unwrap()
            .required;
    assert!(modify(&one, mask, &wrong).is_err());
    let told = one.query();
    assert_eq!(told.qp_state, ibv_qp_state::IBV_QPS_INIT);
    assert_eq!(
        (told.dest_qp_num, told.min_rnr_timer, told.rq_psn),
        (0, 0, 0)
    );
}

#[test]
fn the_drained_event_is_raised_only_if_requested() {
    for asked in [false, true] {
        let bench = bench(8);
        let service = Service::ReliableConnection;
        let (one, two) = (bench.queue_pair(7, service), bench.queue_pair(8, service));
        move_to_state(&one, 8, State::ReadyToSend);
        move_to_state(&two, 7, State::ReadyToSend);
        two.receiver().post(room(&bench, 1)).unwrap();
        post(&one, 2).unwrap();
        let mut wire = Wire::default();
        one.transmit(|| Time::from_nanos(1), &mut wire);

        let mut values = attributes(8, State::SendQueueDrained);
        values.en_sqd_async_notify = 1;
        let notify = if asked {
            Mask::NOTIFY_DRAINED
        } else {
            Mask::empty()
        };
        modify(&one, Mask::STATE | notify, &values).unwrap();
        assert_eq!(one.query().sq_draining, 1);
        let resumed = enter(&one, 8, State::ReadyToSend);
        assert_eq!(resumed, Err(ModifyError::Draining));
        assert!(bench.events().is_empty());
        bench.run(&mut wire, &[&one, &two]);
        assert_eq!(one.query().sq_draining, 0);
        let event = ibv_event_type::IBV_EVENT_SQ_DRAINED;
        assert_eq!(bench.events(), if asked { vec![event] } else { vec![] });

        // A request that is posted while the send queue drains must be sent once the queue pair is
        // ready to send again.
        two.receiver().post(room(&bench, 3)).unwrap();
        post(&one, 4).unwrap();
        bench.run(&mut wire, &[&one, &two]);
        assert_eq!(bench.sent(), [(2, OK, CompletionOpcode::Send)]);
        enter(&one, 8, State::ReadyToSend).unwrap();
        bench.run(&mut wire, &[&one, &two]);
        assert_eq!(bench.sent(), [(4, OK, CompletionOpcode::Send)]);
    }
}

#[test]
fn a_connection_accepts_packets_only_from_its_peer() {
    let bench = bench(8);
    let service = Service::ReliableConnection;
    let (one, two) = (bench.queue_pair(7, service), bench.queue_pair(8, service));
    move_to_state(&one, 8, State::ReadyToSend);
    move_to_state(&two, 7, State::ReadyToSend);
    two.receiver().post(room(&bench, 1)).unwrap();
    post(&one, 2).unwrap();
    let (now, mut wire) = (Time::from_nanos(1), Wire::default());
    one.transmit(|| now, &mut wire);
    let bytes = wire.0.pop_front().unwrap();
    let packet = Packet::parse(&bytes).unwrap();
    let stranger = Ipv4Addr::new(127, 9, 9, 9).to_ipv6_mapped();
    two.receive(now, &arrival(stranger), &Run::of_packet(packet));
    two.receive(
        now,
        &Arrival {
            local: 1,
            ..arrival(OWN_GID)
        },
        &Run::of_packet(packet),
    );
    assert!(bench.received().is_empty());
    two.receive(now, &arrival(OWN_GID), &Run::of_packet(packet));
    assert_eq!(bench.received(), [(1, OK, CompletionOpcode::Receive)]);
}

#[test]
fn a_lost_completion_is_an_error_of_the_queue_pair() {
    let bench = bench(1);
    let service = Service::ReliableConnection;
    let (one, two) = (bench.queue_pair(7, service), bench.queue_pair(8, service));
    move_to_state(&one, 8, State::ReadyToSend);
    move_to_state(&two, 7, State::ReadyToSend);
    for id in 0..2 {
        two.receiver().post(room(&bench, id)).unwrap();
        post(&one, id).unwrap();
    }
    bench.run(&mut Wire::default(), &[&one, &two]);
    assert_eq!(two.state(), State::Error);
    let events = bench.events();
    assert!(events.contains(&ibv_event_type::IBV_EVENT_CQ_ERR));
    assert!(events.contains(&ibv_event_type::IBV_EVENT_QP_FATAL));
    assert_eq!(bench.received(), [(0, OK, CompletionOpcode::Receive)]);
}

#[test]
fn a_destroyed_queue_pair_handles_no_packets() {
    let bench = bench(8);
    let service = Service::ReliableConnection;
    let (one, two) = (bench.queue_pair(7, service), bench.queue_pair(8, service));
    move_to_state(&one, 8, State::ReadyToSend);
    move_to_state(&two, 7, State::ReadyToSend);
    two.receiver().post(room(&bench, 1)).unwrap();
    two.receiver().post(room(&bench, 2)).unwrap();
    post(&one, 3).unwrap();
    let mut wire = Wire::default();
    bench.run(&mut wire, &[&one, &two]);
    post(&one, 4).unwrap();
    one.transmit(|| Time::from_nanos(1), &mut wire);
    assert_eq!(bench.domain.usage().close(), Err(Refusal::Busy));

    two.close();
    // A thread of the device, or its timers, may still refer to a destroyed queue pair.
    let bytes = wire.0.pop_front().unwrap();
    let now = Time::from_nanos(1);
    let packet = Packet::parse(&bytes).unwrap();
    two.receive(now, &arrival(OWN_GID), &Run::of_packet(packet));
    two.handle_timeout(now);
    two.transmit(|| now, &mut wire);
    assert!(wire.0.is_empty() && two.next_timeout().is_none());
    assert!(bench.received().is_empty(), "its completions are gone too");
    assert_eq!(bench.receive_queue.usage().close(), Err(Refusal::Busy));
    one.close();
    for usage in [
        bench.domain.usage(),
        bench.send_queue.usage(),
        bench.receive_queue.usage(),
    ] {
        assert_eq!(usage.close(), Ok(()));
    }
    assert!(bench.events().is_empty());
}

#[test]
fn xrc_targets_consume_receives_of_queues_in_their_domain() {
    let bench = bench(8);
    let queue = bench.shared_queue(true);
    assert_eq!(queue.number(), 1);
    queue.post(room(&bench, 1)).unwrap();
    let initiator = bench.queue_pair(7, Service::XrcInitiator);
    let target = bench.queue_pair(8, Service::XrcTarget);
    move_to_state(&initiator, 8, State::ReadyToSend);
    move_to_state(&target, 7, State::ReadyToReceive);
    assert_eq!(target.xrc_domain(), Some(bench.xrc.id()));
    let remote = Remote {
        address: 16,
        key: bench.key,
    };
    let write = SendOperation::Write {
        remote,
        immediate: None,
    };
    let write = request(&initiator, 2, write);
    initiator.sender().post(write).unwrap();
    post(&initiator, 3).unwrap();
    bench.run(&mut Wire::default(), &[&initiator, &target]);
    assert_eq!(bench.received(), [(1, OK, CompletionOpcode::Receive)]);
    assert_eq!(
        bench.sent(),
        [
            (2, OK, CompletionOpcode::Write),
            (3, OK, CompletionOpcode::Send)
        ]
    );
    let none = target.receiver().post(room(&bench, 1));
    assert_eq!(none, Err(PostError::NoQueue));
}

#[test]
fn the_keys_of_an_xrc_request_are_checked_in_the_domain_of_its_queue() {
    let mut bench = bench(8);
    let first = bench.shared_queue(true);
    let (key, domain) = (bench.key, Arc::clone(&bench.domain));
    bench.domain = ProtectionDomain::new();
    let second = bench.shared_queue(true);
    assert_eq!((first.number(), second.number()), (1, 2));
    bench.domain = domain;
    let ends = |queue, service: fn(Remote) -> SendOperation| {
        let initiator = bench.queue_pair(7, Service::XrcInitiator);
        let target = bench.queue_pair(8, Service::XrcTarget);
        move_to_state(&initiator, 8, State::ReadyToSend);
        move_to_state(&target, 7, State::ReadyToReceive);
        let mut draft = Draft::new(1, 0, service(Remote { address: 0, key }));
        draft.xrc_srq(queue);
        let segment = Segment {
            address: 512,
            length: 8,
            key,
        };
        draft.gather([segment].into_iter());
        let request = draft.finish(initiator.rules()).unwrap();
        initiator.sender().post(request).unwrap();
        bench.run(&mut Wire::default(), &[&initiator, &target]);
        bench.sent()[0].1
    };
    let write = |remote| SendOperation::Write {
        remote,
        immediate: None,
    };
    let read = |remote| SendOperation::Read { remote };
    for operation in [write, read] as [fn(Remote) -> SendOperation; 2] {
        assert_eq!(ends(1, operation), OK);
        assert_eq!(ends(2, operation), CompletionStatus::RemoteAccess);
        assert_eq!(ends(3, operation), CompletionStatus::RemoteInvalidRequest);
    }
}

#[test]
fn a_queue_of_another_xrc_domain_does_not_exist() {
    let bench = bench(8);
    let other = XrcDomains::default().open(None, true, false).unwrap();
    let queue = bench.shared_queue(true);
    queue.post(room(&bench, 1)).unwrap();
    let mut creation = bench.creation(Service::XrcTarget);
    creation.xrc = Some(&other);
    let target = bench.make(8, creation).unwrap();
    let initiator = bench.queue_pair(7, Service::XrcInitiator);
    move_to_state(&initiator, 8, State::ReadyToSend);
    move_to_state(&target, 7, State::ReadyToReceive);
    post(&initiator, 2).unwrap();
    bench.run(&mut Wire::default(), &[&initiator, &target]);
    assert!(bench.received().is_empty());
    let ends: Vec<_> = bench.sent().iter().map(|(_, status, _)| *status).collect();
    assert_eq!(ends, [CompletionStatus::RemoteInvalidRequest]);
}

#[test]
fn all_openers_of_an_xrc_target_get_its_events_and_the_last_close_destroys_the_target() {
    let bench = bench(8);
    let first = bench.handle();
    let mut creation = bench.creation(Service::XrcTarget);
    creation.handle = first.clone();
    let target = bench.make(8, creation).unwrap();
    let second = bench.handle();
    assert!(target.open(second.clone()));
    move_to_state(&target, 7, State::ReadyToReceive);
    enter(&target, 7, State::Error).unwrap();
    let event = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED;
    assert_eq!(bench.events(), [event, event]);
    assert!(!target.release(&first.element));
    assert!(target.release(&second.element));
    assert!(!target.open(bench.handle()), "nobody revives it");
}

#[test]
fn a_window_is_bound_by_a_request() {
    use crate::memory::WindowKind;
    use crate::proto::WindowBinding;
    let bench = bench(8);
    let binding = |window| WindowBinding {
        window,
        key: window,
        region: bench.key,
        address: 0,
        length: 64,
        access: AccessFlags::REMOTE_READ,
    };
    let window = bench
        .device
        .memory
        .allocate_window(bench.domain.id(), WindowKind::Type1)
        .unwrap();
    let one = bench.queue_pair(7, Service::ReliableConnection);
    move_to_state(&one, 8, State::ReadyToSend);
    let datagrams = bench.queue_pair(9, Service::UnreliableDatagram);
    let refused = datagrams.post_bind(1, 0, binding(window));
    assert_eq!(refused, Err(PostError::Operation));
    one.post_bind(5, 0, binding(window)).unwrap();
    one.transmit(|| Time::from_nanos(1), &mut Wire::default());
    // The region does not permit binding windows to it.
    let failed = CompletionStatus::MemoryWindowBind;
    assert_eq!(bench.sent(), [(5, failed, CompletionOpcode::Bind)]);
}
