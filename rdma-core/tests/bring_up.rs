//! State transitions of queue pairs step by step, queries, and resets.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Pair, bytes, completion, context, eventually, nobody, pattern, receive, succeed};
use rdma_core::queue_pair::{ManualQueuePair, Modification};
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, DatagramOptions, Error, FrozenBuffer, Mtu,
    ProtectionDomain, QueuePair, QueuePairState, Refused, SendRequest, Transport,
};

const CONNECTED: [Transport; 2] = [Transport::ReliableConnected, Transport::UnreliableConnected];

fn manual(domain: &ProtectionDomain, kind: Transport) -> ManualQueuePair {
    domain.queue_pair().transport(kind).create().unwrap()
}

#[test]
fn single_steps_lead_from_reset_to_rts() {
    let domain = context().protection_domain().unwrap();
    for kind in CONNECTED {
        let ends = [manual(&domain, kind), manual(&domain, kind)];
        let options = ConnectOptions::default();
        for (near, far) in [(0, 1), (1, 0)] {
            let (near, remote) = (&ends[near], ends[far].endpoint());
            assert_eq!(near.state(), Ok(QueuePairState::Reset));
            near.to_init().unwrap();
            assert_eq!(near.state(), Ok(QueuePairState::Init));
            near.to_rtr(&remote, &options).unwrap();
            assert_eq!(near.state(), Ok(QueuePairState::ReadyToReceive));
            near.to_rts(&remote, &options).unwrap();
            assert_eq!(near.state(), Ok(QueuePairState::ReadyToSend));
        }
        let remotes = [ends[1].endpoint(), ends[0].endpoint()];
        let [left, right] = ends;
        let left = left.connected(&remotes[0]).unwrap();
        let right = right.connected(&remotes[1]).unwrap();
        let domain = domain.clone();
        Pair {
            domain,
            left,
            right,
        }
        .check();
    }
}

#[test]
fn a_datagram_queue_pair_goes_through_the_same_states() {
    let domain = context().protection_domain().unwrap();
    let pair = manual(&domain, Transport::Datagram);
    pair.to_init().unwrap();
    for step in pair.activation(&DatagramOptions::new(0x1234)).unwrap() {
        pair.modify(&step).unwrap();
    }
    assert_eq!(pair.attributes().unwrap().qkey(), 0x1234);
    let pair = pair.activated().unwrap();
    pair.modify(&Modification::new().qkey(0x4321)).unwrap();
    assert_eq!(pair.attributes().unwrap().qkey(), 0x4321);
}

#[test]
fn a_queue_pair_becomes_one_with_queues_in_its_state_only() {
    let domain = context().protection_domain().unwrap();
    let in_reset = || manual(&domain, Transport::ReliableConnected);
    let refused = in_reset().prepared().unwrap_err();
    assert!(refused.to_string().contains("RESET"), "{refused}");
    let pair = in_reset();
    let remote = pair.endpoint();
    assert!(pair.connected(&remote).is_err());
    assert!(in_reset().activated().is_err());
    let pair = in_reset();
    pair.to_init().unwrap();
    let prepared = pair.prepared().unwrap();
    let queue = prepared.receive_queue::<Buffer>();
    let pair = prepared.manual();
    let refused = pair.to_reset().unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    drop(queue);
    pair.to_reset().unwrap();
    assert_eq!(pair.state(), Ok(QueuePairState::Reset));
}

#[test]
fn the_query_returns_the_attributes_that_were_set() {
    let options = ConnectOptions::default()
        .mtu(Mtu::Mtu512)
        .ack_timeout_exponent(15)
        .retries(5)
        .rnr_retries(6)
        .min_rnr_timer(13)
        .traffic_class(32)
        .hop_limit(17);
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let configure = |builder: rdma_core::QueuePairBuilder| {
        builder
            .access(access)
            .incoming_reads(3)
            .outgoing_reads(2)
            .send_requests(20)
            .receive_requests(30)
            .send_elements(2)
            .receive_elements(3)
            .inline_data(32)
            .signal_all()
    };
    let pair = Pair::with(configure, &options);
    let all = pair.left.attributes().unwrap();
    assert_eq!(all.state(), QueuePairState::ReadyToSend);
    assert_eq!(all.kind(), Transport::ReliableConnected);
    assert_eq!(all.path_mtu(), Some(Mtu::Mtu512));
    assert_eq!(all.destination(), pair.right.number());
    assert_eq!(all.ack_timeout_exponent(), 15);
    assert_eq!((all.retries(), all.rnr_retries()), (5, 6));
    assert_eq!(all.min_rnr_timer(), 13);
    // Linux's Soft-RoCE rounds up to powers of two.
    assert!(matches!(all.incoming_reads(), 3 | 4));
    assert_eq!(all.outgoing_reads(), 2);
    assert!(all.access().contains(access));
    assert!(!all.access().contains(AccessFlags::REMOTE_ATOMIC));
    assert_eq!(all.port(), pair.left.address().port);
    assert_eq!(all.pkey_index(), 0);
    let vector = all.address();
    assert_eq!(vector.gid, Some(pair.right.address().gid));
    assert_eq!(vector.gid_index, pair.left.address().gid_index);
    assert_eq!(vector.traffic_class, 32);
    // On Ethernet, Linux replaces the hop limit by that of the route.
    assert!(matches!(vector.hop_limit, 17 | 64), "{vector:?}");
    assert!(!all.is_draining());
    // Devices may round the capacities up, and report the result.
    let granted = pair.left.capacities();
    assert!(granted.send_requests >= 20 && granted.receive_requests >= 30);
    assert!(granted.send_elements >= 2 && granted.receive_elements >= 3);
    assert!(granted.inline_data >= 32);
    assert_eq!(pair.left.inline_limit(), granted.inline_data as usize);
    assert!(pair.left.signals_all() && all.signals_all());
    assert!(format!("{all:?}").contains("ReadyToSend"));
}

#[test]
fn attributes_change_in_rts() {
    let pair = Pair::new();
    let change = Modification::new().min_rnr_timer(20);
    pair.left.modify(&change).unwrap();
    assert_eq!(pair.left.attributes().unwrap().min_rnr_timer(), 20);
    let none = AccessFlags::REMOTE_READ;
    let change = Modification::to(QueuePairState::ReadyToSend).access(none);
    pair.left.modify(&change).unwrap();
    let access = pair.left.attributes().unwrap().access();
    assert_eq!(access & AccessFlags::REMOTE, none);
    pair.check();
}

#[test]
fn a_paused_queue_pair_sends_nothing_until_it_is_resumed() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    for _ in 0..2 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    let mut sends = pair.left.send_queue();
    pair.left.drain_sends(Duration::from_secs(60)).unwrap();
    assert_eq!(pair.left.state(), Ok(QueuePairState::SendQueueDrain));
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    for _ in 0..50 {
        let mut room = [Default::default()];
        assert!(
            pair.left
                .send_completions()
                .poll(&mut room)
                .unwrap()
                .is_empty()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    // An attribute that may change only in SQD.
    let change = Modification::to(QueuePairState::SendQueueDrain).retries(4);
    pair.left.modify(&change).unwrap();
    pair.left.resume().unwrap();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 2)))
        .unwrap();
    for seed in [1, 2] {
        let sent = succeed(pair.left.send_completions());
        assert_eq!(sends.complete(&sent).count(), 1);
        assert_eq!(receive(&pair.right, &mut receives).1[..], bytes(8, seed));
    }
    assert_eq!(pair.left.attributes().unwrap().retries(), 4);
}

#[test]
fn a_drain_of_unanswered_sends_times_out() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let remote = nobody(prepared.endpoint());
    // An exponent of 0 means that the queue pair never gives up by itself.
    let options = ConnectOptions::default().ack_timeout_exponent(0);
    let pair = prepared.connect(&remote, &options).unwrap();
    let mut sends = pair.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 8, 1)))
        .unwrap();
    let refused = pair.drain_sends(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(refused, Error::TimedOut { .. }), "{refused}");
    assert!(pair.attributes().unwrap().is_draining());
    pair.fail().unwrap();
    let flushed = completion(pair.send_completions());
    assert_eq!(sends.complete(&flushed).count(), 1);
}

/// Returns a queue pair whose requests in flight are never answered, and their memory.
fn stuck(domain: &ProtectionDomain) -> (QueuePair, FrozenBuffer) {
    let prepared = domain.queue_pair().build().unwrap();
    let remote = nobody(prepared.endpoint());
    let options = ConnectOptions::default().ack_timeout_exponent(0);
    let pair = prepared.connect(&remote, &options).unwrap();
    let memory = pattern(domain, 8, 1).freeze();
    let mut sends = pair.send_queue();
    for _ in 0..3 {
        sends.post(SendRequest::send(memory.clone())).unwrap();
    }
    (pair, memory)
}

#[test]
fn a_reset_frees_what_was_in_flight_and_the_queue_pair_works_again() {
    let domain = context().protection_domain().unwrap();
    let (pair, memory) = stuck(&domain);
    let memory = memory.thaw().expect_err("three requests use it");
    let number = pair.number();
    let before = pair.local().packet_sequence;
    let left = pair.reset().unwrap();
    assert!(memory.thaw().is_ok(), "the device has forgotten them");
    assert_eq!(
        (left.number(), left.state()),
        (number, Ok(QueuePairState::Reset))
    );
    let right = manual(&domain, Transport::ReliableConnected);
    assert_ne!(left.endpoint().packet_sequence, before, "1 in 2^24");
    let ends = [left.endpoint(), right.endpoint()];
    let up = |pair: ManualQueuePair, remote| {
        pair.to_init().unwrap();
        pair.prepared()
            .unwrap()
            .connect(remote, &Default::default())
    };
    let left = up(left, &ends[1]).unwrap();
    let right = up(right, &ends[0]).unwrap();
    Pair {
        domain,
        left,
        right,
    }
    .check();
}

#[test]
fn a_queue_pair_with_queues_is_not_reset() {
    let pair = Pair::new();
    let Pair { left, domain, .. } = pair;
    let clone = left.clone();
    let Refused {
        value: left,
        error: refused,
    } = left.reset().unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    drop(clone);
    let mut queue = left.receive_queue();
    queue.post(domain.allocate(8).unwrap()).unwrap();
    let Refused {
        value: left,
        error: refused,
    } = left.reset().unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    assert_eq!(left.state(), Ok(QueuePairState::ReadyToSend));
    let to_reset = Modification::to(QueuePairState::Reset);
    let refused = left.modify(&to_reset).unwrap_err();
    assert!(
        matches!(refused, Error::InvalidArgument { .. }),
        "{refused}"
    );
    drop(queue);
    let reset = left.reset().unwrap();
    assert_eq!(reset.state(), Ok(QueuePairState::Reset));
}

#[test]
fn a_completion_of_before_the_reset_completes_nothing_after_it() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    let memory = Arc::new(pattern(&pair.domain, 8, 1).freeze());
    sends.post(SendRequest::send((*memory).clone())).unwrap();
    let late = succeed(pair.left.send_completions());
    drop(sends);
    let reset = pair.left.reset().unwrap();
    reset.to_init().unwrap();
    let prepared = reset.prepared().unwrap();
    let remote = nobody(prepared.endpoint());
    let left = prepared.connect(&remote, &Default::default()).unwrap();
    let mut sends = left.send_queue();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 2)))
        .unwrap();
    assert_eq!(sends.complete(&late).count(), 0);
    assert_eq!(sends.in_flight(), 1);
}

#[test]
fn an_unacknowledged_queue_pair_recovers_from_a_failed_request() {
    let pair = Pair::with(
        |builder| builder.transport(Transport::UnreliableConnected),
        &ConnectOptions::default(),
    );
    post_with_a_wrong_key(&pair.left);
    let failed = completion(pair.left.send_completions());
    assert!(failed.result().is_err());
    let state = eventually("an end of RTS", || {
        let state = pair.left.state().unwrap();
        (state != QueuePairState::ReadyToSend).then_some(state)
    });
    if state == QueuePairState::Error {
        // Linux's Soft-RoCE moves the queue pair to the error state, where the specification (IBTA
        // volume 1, 10.3.1.6) requires SQE. No transition leads from the error state to RTS.
        let refused = pair.left.recover().unwrap_err();
        assert!(
            matches!(refused, Error::InvalidArgument { .. }),
            "{refused}"
        );
        let back = Modification::to(QueuePairState::ReadyToSend);
        let refused = pair.left.modify(&back).unwrap_err();
        assert!(
            matches!(refused, Error::RefusedModification(_)),
            "{refused}"
        );
        return;
    }
    assert_eq!(state, QueuePairState::SendQueueError);
    pair.left.recover().unwrap();
    assert_eq!(pair.left.state(), Ok(QueuePairState::ReadyToSend));
    pair.check();
}

/// Posts a request with a local key that no region has, which the queues of this crate never do.
fn post_with_a_wrong_key(pair: &QueuePair) {
    use ibverbs_sys as sys;
    let mut element = sys::ibv_sge {
        addr: 0x1000,
        length: 8,
        lkey: 0xffff_fff0,
    };
    // SAFETY: every byte pattern is a value of this C struct. The objects that the request points
    // to outlive the call, and the device refuses the memory.
    unsafe {
        let mut wr: sys::ibv_send_wr = std::mem::zeroed();
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
        wr.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0 as _;
        wr.sg_list = &mut element;
        wr.num_sge = 1;
        let mut bad = std::ptr::null_mut();
        assert_eq!(sys::ibv_post_send(pair.as_raw(), &mut wr, &mut bad), 0);
    }
}
