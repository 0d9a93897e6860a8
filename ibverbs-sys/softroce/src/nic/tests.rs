//! Tests of two NICs in one process with queue pairs over real sockets. The messages have no bytes,
//! and carry their number as immediate data.

mod host;
mod strangers;

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::{
    ibv_access_flags, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_state,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

mod withdrawal;

use super::{Nic, ReceivingThread, guid};
use crate::address;
use crate::completion::{
    Arming, CompletionChannel, CompletionQueue, CompletionQueueAttributes, Entry, Moderation,
};
use crate::config::{Config, Scheduled};
use crate::context::{Context, Element, ProtectionDomain};
use crate::engine::ReceiveAttempt;
use crate::fault::NetworkFaults;
use crate::proto::{
    Completion, CompletionOpcode, CompletionStatus, Counter, GatherList, Path, ReceiveRequest,
    SendOperation, Service, State,
};
use crate::queue_pair::{self, Address, Creation, Draft, Handle, Modification, QueuePair};

/// Timeout of waits in tests. A wait exceeds it only if a packet, completion or wakeup was lost.
const LOST_TIMEOUT: Duration = Duration::from_secs(60);

const QUEUE_KEY: u32 = 7;

/// A NIC with one queue pair and its completion queue.
struct Host {
    nic: Arc<Nic>,
    queue: Arc<CompletionQueue>,
    queue_pair: Arc<QueuePair>,
    gid: u8,
}

fn open(config: Config) -> Arc<Nic> {
    let faults = Arc::new(config.faults());
    let config = Config {
        interfaces: Some(Vec::new()),
        ..config
    };
    Nic::with(&config, Arc::default(), faults).unwrap()
}

impl Host {
    fn new(nic: &Arc<Nic>, service: Service, gid: u8) -> Self {
        let context = Context::new().unwrap();
        let domain = ProtectionDomain::new();
        let attributes = CompletionQueueAttributes {
            capacity: 4096,
            channel: None,
            ignore_overrun: false,
            timestamps: true,
        };
        let queue = CompletionQueue::new(&context, &nic.deadlines, attributes).unwrap();
        let device: Arc<dyn queue_pair::Adapter> = Arc::<Nic>::clone(nic);
        let queue_pair = nic
            .queue_pairs
            .insert(|number| {
                let creation = Creation {
                    handle: Handle {
                        context: Arc::clone(&context),
                        element: Element::new(),
                    },
                    service,
                    domain: Some(&domain),
                    send_queue: Some(&queue),
                    receive_queue: Some(&queue),
                    shared_queue: None,
                    xrc: None,
                    capabilities: ibv_qp_cap {
                        max_send_wr: 1024,
                        max_recv_wr: 1024,
                        max_send_sge: 1,
                        max_recv_sge: 1,
                        max_inline_data: 0,
                    },
                    signal_all: true,
                };
                QueuePair::new(number, &device, creation)
            })
            .unwrap();
        Self {
            nic: Arc::clone(nic),
            queue,
            queue_pair,
            gid,
        }
    }

    fn address(&self) -> Ipv6Addr {
        self.nic.gid(self.gid.into()).unwrap()
    }

    fn modify(&self, values: &ibv_qp_attr, destination: Ipv6Addr, mask: &[ibv_qp_attr_mask]) {
        let mask = mask.iter().fold(0, |mask, bit| mask | bit.0);
        self.queue_pair
            .modify(&Modification {
                mask,
                values,
                destination,
            })
            .unwrap();
    }

    /// Moves the queue pair to RTS, connected to the queue pair of `peer`. After a timeout of 34
    /// ms, lost packets are sent again. Eight such timeouts are longer than a busy machine keeps a
    /// thread from running.
    fn connect(&self, peer: &Self) {
        self.connect_with(peer, 13);
    }

    /// Moves the queue pair to RTS, connected to the queue pair of `peer`, with the given
    /// acknowledgement timeout code.
    fn connect_with(&self, peer: &Self, timeout: u8) {
        type Bit = ibv_qp_attr_mask;
        let mut values = ibv_qp_attr {
            port_num: 1,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            qkey: QUEUE_KEY,
            dest_qp_num: peer.queue_pair.number(),
            qp_access_flags: ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
            min_rnr_timer: 1,
            timeout,
            retry_cnt: 7,
            rnr_retry: 7,
            ..ibv_qp_attr::default()
        };
        values.ah_attr.is_global = 1;
        values.ah_attr.port_num = 1;
        values.ah_attr.grh.sgid_index = self.gid;
        values.ah_attr.grh.hop_limit = 64;
        let datagram = self.queue_pair.service() == Service::UnreliableDatagram;
        let of_service = |datagrams: &[Bit], connection: &[Bit]| {
            [
                &[Bit::IBV_QP_STATE][..],
                if datagram { datagrams } else { connection },
            ]
            .concat()
        };
        values.qp_state = ibv_qp_state::IBV_QPS_INIT;
        let init = of_service(
            &[Bit::IBV_QP_PKEY_INDEX, Bit::IBV_QP_PORT, Bit::IBV_QP_QKEY],
            &[
                Bit::IBV_QP_PKEY_INDEX,
                Bit::IBV_QP_PORT,
                Bit::IBV_QP_ACCESS_FLAGS,
            ],
        );
        self.modify(&values, peer.address(), &init);
        values.qp_state = ibv_qp_state::IBV_QPS_RTR;
        let receive = of_service(
            &[],
            &[
                Bit::IBV_QP_AV,
                Bit::IBV_QP_PATH_MTU,
                Bit::IBV_QP_DEST_QPN,
                Bit::IBV_QP_RQ_PSN,
                Bit::IBV_QP_MAX_DEST_RD_ATOMIC,
                Bit::IBV_QP_MIN_RNR_TIMER,
            ],
        );
        self.modify(&values, peer.address(), &receive);
        values.qp_state = ibv_qp_state::IBV_QPS_RTS;
        let send = of_service(
            &[Bit::IBV_QP_SQ_PSN],
            &[
                Bit::IBV_QP_TIMEOUT,
                Bit::IBV_QP_RETRY_CNT,
                Bit::IBV_QP_RNR_RETRY,
                Bit::IBV_QP_SQ_PSN,
                Bit::IBV_QP_MAX_QP_RD_ATOMIC,
            ],
        );
        self.modify(&values, peer.address(), &send);
        assert_eq!(self.queue_pair.state(), State::ReadyToSend);
    }

    fn post_receives(&self, count: u64) {
        let mut receiver = self.queue_pair.receiver();
        for id in 0..count {
            let request = ReceiveRequest {
                id,
                segments: GatherList::new(),
                length: 0,
            };
            receiver.post(request).unwrap();
        }
    }

    /// Sends an empty message with `number` as its immediate data. A datagram is sent to the
    /// address `to`.
    fn send(&self, number: u32, to: Option<Address>) {
        let immediate = Some(number.to_be_bytes());
        let operation = SendOperation::Send {
            immediate,
            invalidate: None,
        };
        let mut draft = Draft::new(number.into(), 0, operation);
        if let Some(to) = to {
            draft.address(to);
        }
        let request = draft.finish(self.queue_pair.rules()).unwrap();
        self.queue_pair.sender().post(request).unwrap();
        self.nic.transmit(&self.queue_pair);
    }

    /// Polls until `count` completions have arrived, and returns them. Calls `between` whenever a
    /// poll finds none.
    fn completions(&self, count: usize, between: impl Fn()) -> Vec<Completion> {
        let (mut completions, end) = (Vec::new(), Instant::now() + LOST_TIMEOUT);
        while completions.len() < count {
            let before = completions.len();
            self.queue
                .poll(16, |entry| completions.push(entry.completion));
            if completions.len() == before {
                assert!(Instant::now() < end, "{before} of {count} completions came");
                between();
            }
        }
        assert!(
            completions
                .iter()
                .all(|done| done.status == CompletionStatus::Success)
        );
        completions
    }
}

fn numbers(completions: &[Completion]) -> Vec<u32> {
    completions
        .iter()
        .filter_map(|done| done.immediate.map(u32::from_be_bytes))
        .collect()
}

fn connected(gid: u8, service: Service) -> (Host, Host) {
    let (a, b) = (open(Config::default()), open(Config::default()));
    let (a, b) = (Host::new(&a, service, gid), Host::new(&b, service, gid));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

/// Sleeps for a while, so that only the engine receives, as when the program sleeps or computes.
fn nobody_polls() {
    thread::sleep(Duration::from_micros(100));
}

#[test]
fn messages_are_transferred_over_both_gids_without_polling() {
    for gid in 0..2 {
        let (a, b) = connected(gid, Service::ReliableConnection);
        b.post_receives(100);
        for number in 0..100 {
            a.send(number, None);
        }
        assert!(
            numbers(&b.completions(100, nobody_polls))
                .into_iter()
                .eq(0..100)
        );
        assert_eq!(a.completions(100, nobody_polls).len(), 100);
    }
}

#[test]
fn messages_are_transferred_while_both_sides_poll() {
    let (a, b) = connected(0, Service::ReliableConnection);
    for number in 0..1000 {
        let (from, to) = if number % 2 == 0 { (&a, &b) } else { (&b, &a) };
        to.post_receives(1);
        from.send(number, None);
        let poll = || {
            a.nic.progress();
            b.nic.progress();
        };
        assert_eq!(numbers(&to.completions(1, poll)), [number]);
        from.completions(1, poll);
    }
}

#[test]
fn a_queue_pair_that_is_connected_to_itself_receives_its_messages() {
    let nic = open(Config::default());
    let host = Host::new(&nic, Service::ReliableConnection, 1);
    host.connect(&host);
    host.post_receives(10);
    for number in 0..10 {
        host.send(number, None);
    }
    assert!(
        numbers(&host.completions(20, nobody_polls))
            .into_iter()
            .eq(0..10)
    );
}

#[test]
fn a_delayed_acknowledgement_is_sent_without_a_message_of_the_program() {
    let (a, b) = (open(Config::default()), open(Config::default()));
    let [a, b] = [&a, &b].map(|nic| Host::new(nic, Service::ReliableConnection, 0));
    // With timeout code 0, no packet is ever sent again.
    a.connect_with(&b, 0);
    b.connect_with(&a, 0);
    let engine_is_away = || {
        b.nic.progress();
        b.nic.engine.get().is_some_and(|e| e.is_unwatched())
    };
    for number in 0..100 {
        b.post_receives(1);
        // At first only the polling thread receives.
        let end = Instant::now() + Duration::from_millis(5);
        while !engine_is_away() && Instant::now() < end {}
        a.send(number, None);
        let poll = || {
            b.nic.progress();
        };
        assert_eq!(numbers(&b.completions(1, poll)), [number]);
        a.completions(1, nobody_polls);
    }
}

#[test]
fn an_acknowledgement_is_sent_with_the_next_message_of_the_program() {
    let (a, b) = connected(0, Service::ReliableConnection);
    let poll = || {
        a.nic.progress();
        b.nic.progress();
    };
    let (mut together, mut number, end) = (0, 0, Instant::now() + LOST_TIMEOUT);
    while together < 3 {
        assert!(Instant::now() < end, "{together} of {number} answers");
        number += 1;
        let (from, to) = if number % 2 == 0 { (&a, &b) } else { (&b, &a) };
        to.post_receives(1);
        from.send(number, None);
        assert_eq!(numbers(&to.completions(1, poll)), [number]);
        let waits = to.nic.receiver.lock().responders.len() == 1;
        together += u32::from(waits && to.queue_pair.must_acknowledge());
        from.completions(1, poll);
    }
}

#[test]
fn the_due_flag_is_cleared_if_no_acknowledgement_is_left() {
    let (a, _b) = connected(0, Service::ReliableConnection);
    // This state arises if an earlier attempt delayed a response, which was then sent with a
    // message of the program.
    let _receiver = a.nic.receiver.lock();
    a.nic.owes_answers.store(true, Ordering::SeqCst);
    let mut responders = vec![Arc::clone(&a.queue_pair)];
    a.nic.send_undelayed_responses(a.nic.now(), &mut responders);
    assert!(responders.is_empty());
    // If the flag stayed set, the engine would never sleep again.
    assert!(!a.nic.owes_answers.load(Ordering::SeqCst));
}

#[test]
fn timers_alone_send_lost_packets_again() {
    let (a, b) = connected(0, Service::ReliableConnection);
    let faults = NetworkFaults {
        loss: 0.05,
        duplicate: 0.05,
        seed: 9,
        ..NetworkFaults::default()
    };
    a.nic.faults.set_network(faults);
    b.nic.faults.set_network(faults);
    b.post_receives(100);
    for number in 0..100 {
        a.send(number, None);
    }
    assert!(
        numbers(&b.completions(100, nobody_polls))
            .into_iter()
            .eq(0..100)
    );
    a.completions(100, nobody_polls);
    assert!(a.nic.counters.value(Counter::Retransmitted) > 0);
}

#[test]
fn timers_alone_retry_a_receiver_that_is_not_ready() {
    let (a, b) = connected(1, Service::ReliableConnection);
    a.send(5, None);
    let end = Instant::now() + LOST_TIMEOUT;
    while b.nic.counters.value(Counter::SentRnr) < 3 {
        assert!(Instant::now() < end);
        nobody_polls();
    }
    b.post_receives(1);
    assert_eq!(numbers(&b.completions(1, nobody_polls)), [5]);
    a.completions(1, nobody_polls);
}

#[test]
fn timers_alone_send_delayed_packets() {
    let (a, b) = connected(0, Service::ReliableConnection);
    let latency = Duration::from_millis(1);
    a.nic.faults.set_network(NetworkFaults {
        latency,
        ..NetworkFaults::default()
    });
    b.post_receives(5);
    for number in 0..5 {
        a.send(number, None);
    }
    assert!(
        numbers(&b.completions(5, nobody_polls))
            .into_iter()
            .eq(0..5)
    );
    a.completions(5, nobody_polls);
}

#[test]
fn every_member_of_a_group_receives_its_datagrams() {
    let group: Ipv6Addr = "ff0e::ffff:239.192.7.3".parse().unwrap();
    for gid in 0..2 {
        let (a, b) = connected(gid, Service::UnreliableDatagram);
        let second = Host::new(&b.nic, Service::UnreliableDatagram, gid);
        second.connect(&a);
        for member in [&b, &second] {
            let join = |group| member.nic.network.join(group);
            member
                .nic
                .groups
                .attach(group, &member.queue_pair, join)
                .unwrap();
            member.post_receives(1);
        }
        let path = Path {
            source: gid,
            destination: group,
            traffic_class: 0,
            hop_limit: 1,
            flow_label: 0,
        };
        let destination = address::MULTICAST;
        a.send(
            3,
            Some(Address {
                path,
                destination,
                queue_key: QUEUE_KEY,
            }),
        );
        for member in [&b, &second] {
            // A receive for a datagram needs 40 bytes more for the GRH, which these receives lack.
            let end = Instant::now() + LOST_TIMEOUT;
            let mut ended = Vec::new();
            while ended.is_empty() {
                assert!(Instant::now() < end);
                member
                    .queue
                    .poll(1, |entry| ended.push(entry.completion.status));
                nobody_polls();
            }
            assert_eq!(ended, [CompletionStatus::LocalLength]);
        }
        // The address is that of a multicast group, but the number is that of a single queue pair.
        let destination = b.queue_pair.number();
        a.send(
            4,
            Some(Address {
                path,
                destination,
                queue_key: QUEUE_KEY,
            }),
        );
        let end = Instant::now() + LOST_TIMEOUT;
        while b.nic.counters.value(Counter::Unaddressed) == 0 {
            assert!(Instant::now() < end);
            nobody_polls();
        }
    }
}

#[test]
fn scheduled_events_take_the_link_down_and_up() {
    let millisecond = Duration::from_millis(1);
    let schedule = vec![
        (millisecond * 2, Scheduled::Link { up: true }),
        (millisecond, Scheduled::Link { up: false }),
        (Duration::ZERO, Scheduled::Link { up: false }),
        (Duration::from_secs(1000), Scheduled::Link { up: false }),
    ];
    let nic = open(Config {
        schedule,
        ..Config::default()
    });
    let end = Instant::now() + LOST_TIMEOUT;
    while nic.schedule.lock().len() > 1 {
        assert!(Instant::now() < end);
        nobody_polls();
    }
    nic.timers.cancel(super::SCHEDULE, &nic.schedule_alarm);
    assert!(nic.link_is_up());
}

#[test]
fn a_moderated_event_is_raised_in_time_without_polling() {
    let nic = open(Config::default());
    let channel = CompletionChannel::new().unwrap();
    let attributes = CompletionQueueAttributes {
        capacity: 8,
        channel: Some(Arc::clone(&channel)),
        ignore_overrun: false,
        timestamps: true,
    };
    let context = Context::new().unwrap();
    let queue = CompletionQueue::new(&context, &nic.deadlines, attributes).unwrap();
    queue.moderate(Moderation {
        count: 100,
        period: Duration::from_millis(1),
    });
    queue.arm(Arming::Any);
    let completion = Completion::new(1, CompletionStatus::Success, CompletionOpcode::Send);
    let entry = Entry {
        completion,
        queue_pair: 2,
        timestamp: nic.now().as_nanos(),
        partition_index: 0,
    };
    queue.push(entry).unwrap();
    let mut descriptors = [PollFd::new(&channel, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: LOST_TIMEOUT.as_secs() as _,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut descriptors, Some(&timeout)), Ok(1));
}

#[test]
fn progress_does_not_wait_for_other_threads() {
    let nic = open(Config::default());
    let receiver = nic.receiver.lock();
    assert!(!nic.progress());
    drop(receiver);
    let end = Instant::now() + LOST_TIMEOUT;
    while !nic.progress() {
        assert!(Instant::now() < end);
    }
}

/// Waits until `is_so` returns `true`. Fails with the message `what` if that takes too long.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LOST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        nobody_polls();
    }
}

#[test]
fn arrived_packets_are_handled_before_a_late_timer() {
    let (a, b) = connected(0, Service::ReliableConnection);
    // While the test holds the lock, the engine cannot receive.
    let receiver = a.nic.receiver.lock();
    a.post_receives(16);
    b.post_receives(10);
    for number in 0..16 {
        b.send(number, None);
    }
    for number in 0..10 {
        a.send(number, None);
    }
    b.completions(10, nobody_polls);
    let sent = || b.nic.counters.value(Counter::SentPackets);
    until("the answer is sent", || sent() > 16);
    // When the timeout expires, the response is in the socket, behind so many packets that one
    // batch does not reach it.
    let late = a.queue_pair.next_timeout().unwrap() + Duration::from_millis(1);
    until("the time is over", || a.nic.now() > late);
    assert!(!a.nic.progress());
    drop(receiver);
    a.completions(26, nobody_polls);
    assert_eq!(a.nic.counters.value(Counter::AcknowledgementTimeout), 0);
}

/// Sends `count` datagrams from one NIC to another while the receiver of the other is locked, so
/// that its engine cannot receive them. Calls `before_release` before the lock is released. Returns
/// both NICs.
fn flooded(count: u32, before_release: impl FnOnce(&Nic)) -> (Host, Host) {
    let (a, b) = connected(0, Service::UnreliableDatagram);
    let path = Path {
        source: 0,
        destination: b.address(),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    let destination = b.queue_pair.number();
    let receiver = b.nic.receiver.lock();
    for number in 0..count {
        let to = Address {
            path,
            destination,
            queue_key: QUEUE_KEY,
        };
        a.send(number, Some(to));
    }
    let refused = || b.nic.refused.load(Ordering::SeqCst);
    until("the engine comes", refused);
    before_release(&b.nic);
    drop(receiver);
    (a, b)
}

#[test]
fn packets_that_arrive_while_the_engine_is_refused_are_fetched() {
    let (_a, b) = flooded(100, |_| {});
    b.nic.progress();
    let received = || b.nic.counters.value(Counter::ReceivedPackets);
    until("all are fetched", || received() == 100);
}

#[test]
fn a_poll_returns_in_bounded_time_under_constant_load() {
    // The result must not depend on whether a timer has expired.
    for late in [false, true] {
        let (_a, b) = flooded(200, |nic| {
            if late {
                nic.timers
                    .schedule(super::MODERATION_TIMER, &nic.deadlines_alarm, nic.now());
            }
        });
        let looked = b
            .nic
            .receive_and_run_timers(b.nic.now(), ReceivingThread::Engine);
        // A batch has 8 messages, and the first batch does not count as received in place of the
        // engine.
        let most = 8 * (super::receiver::MAX_BATCHES_FOR_ENGINE + 1);
        assert!(
            matches!(looked, ReceiveAttempt::Contended)
                || matches!(looked, ReceiveAttempt::Done { fetched } if fetched <= most),
            "{looked:?}"
        );
        let received = || b.nic.counters.value(Counter::ReceivedPackets);
        until("the engine fetches the others", || received() == 200);
        let noted = || b.nic.timers.earliest().is_some();
        until("the timer runs", || !noted());
    }
}

#[test]
fn a_nic_reports_its_identity() {
    let nic = open(Config::default());
    assert_eq!(nic.gids().count(), 2);
    assert_eq!(nic.interface(2), 0);
    // The GUID is locally administered, and not that of a group.
    assert_eq!(guid() >> 56 & 3, 2);
    assert_eq!(guid() as u32, std::process::id());
}

#[test]
fn timers_alone_detect_a_missing_peer() {
    let (a, b) = connected(0, Service::ReliableConnection);
    b.nic.faults.set_link(false);
    a.send(1, None);
    let end = Instant::now() + LOST_TIMEOUT;
    let mut ended = Vec::new();
    while ended.is_empty() {
        assert!(Instant::now() < end);
        a.queue.poll(1, |entry| ended.push(entry.completion.status));
        nobody_polls();
    }
    assert_eq!(ended, [CompletionStatus::RetryExceeded]);
}
