//! Creates, connects and uses queue pairs of all types.

mod common;

use common::{Pair, bytes, completion, context, exposed, pattern, receive, succeed};
use ibverbs_sys as sys;
use rdma_core::queue_pair::{
    Arrival, DataOrder, EnhancedEstablishment, QueuePairCreateFlags, RateLimit, SendOperations,
};
use rdma_core::{
    AccessFlags, CompletionQueue, ConnectOptions, DatagramOptions, Error, ProtectionDomain,
    QueuePairState, SendRequest, Transport,
};

/// Returns the connection options of these tests.
fn options() -> ConnectOptions {
    ConnectOptions::default()
}

#[test]
fn reliable_and_unreliable_connections_carry_messages() {
    for kind in [Transport::ReliableConnected, Transport::UnreliableConnected] {
        let pair = Pair::with(|builder| builder.transport(kind), &options());
        assert_eq!(pair.left.kind(), kind);
        assert_eq!(pair.left.state(), Ok(QueuePairState::ReadyToSend));
        assert_eq!(pair.left.remote(), Some(pair.right.local()));
        pair.check();
    }
}

#[test]
fn a_pair_made_for_extended_posting_takes_plain_requests_too() {
    for kind in [Transport::ReliableConnected, Transport::UnreliableConnected] {
        let pair = Pair::with(
            |builder| builder.transport(kind).extended_posting(),
            &options(),
        );
        assert_eq!(pair.left.operations(), SendOperations::of(kind));
        pair.check();
    }
    let few = SendOperations::SEND | SendOperations::WRITE;
    let pair = Pair::with(|builder| builder.operations(few), &options());
    assert_eq!(pair.left.operations(), few);
    pair.check();
}

#[test]
fn datagrams_are_received_after_activation() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain
        .queue_pair()
        .transport(Transport::Datagram)
        .build()
        .unwrap();
    let pair = prepared.activate(&DatagramOptions::new(7)).unwrap();
    assert_eq!(pair.state(), Ok(QueuePairState::ReadyToSend));
    assert_eq!(pair.remote(), None);
}

#[test]
fn each_type_has_its_own_transitions() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let refused = prepared.activate(&DatagramOptions::default()).unwrap_err();
    assert!(
        matches!(refused, Error::InvalidArgument { .. }),
        "{refused}"
    );
    let prepared = domain
        .queue_pair()
        .transport(Transport::Datagram)
        .build()
        .unwrap();
    let remote = prepared.endpoint();
    let refused = prepared.connect(&remote, &options()).unwrap_err();
    assert!(
        matches!(refused, Error::InvalidArgument { .. }),
        "{refused}"
    );
}

#[test]
fn a_queue_pair_that_signals_all_completes_unsignaled_requests() {
    let pair = Pair::with(|builder| builder.signal_all(), &options());
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for seed in 0..3 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        let request = SendRequest::send(pattern(&pair.domain, 8, seed)).unsignaled();
        sends.post(request).unwrap();
        let sent = succeed(pair.left.send_completions());
        assert_eq!(sends.complete(&sent).count(), 1);
        let received = receive(&pair.right, &mut receives);
        assert_eq!(received.1[..], bytes(8, seed));
    }
}

/// Creates a queue pair in C, without the builder of this crate.
fn made_in_c(domain: &ProtectionDomain, completions: &CompletionQueue) -> *mut sys::ibv_qp {
    // SAFETY: a struct of zero bytes is a valid value of this C struct.
    let mut attributes: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    attributes.send_cq = completions.as_raw();
    attributes.recv_cq = completions.as_raw();
    attributes.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
    attributes.cap.max_send_wr = 8;
    attributes.cap.max_recv_wr = 8;
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_recv_sge = 1;
    // SAFETY: the domain and the completion queue outlive the queue pair, because the crate takes
    // ownership of it together with them.
    let raw = unsafe { sys::ibv_create_qp(domain.as_raw(), &mut attributes) };
    assert!(!raw.is_null());
    raw
}

#[test]
fn a_queue_pair_made_elsewhere_is_taken_over_in_its_state() {
    let domain = context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    let take = |raw| {
        let builder = domain.queue_pair().send_completions(&completions);
        // SAFETY: the queue pair was created from these two objects, and no other code uses it.
        unsafe { builder.from_raw(raw) }.unwrap()
    };
    let left = take(made_in_c(&domain, &completions));
    let right = take(made_in_c(&domain, &completions));
    assert_eq!(left.kind(), Transport::ReliableConnected);
    assert_eq!(left.state(), Ok(QueuePairState::Reset));
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    for (near, far) in [(&left, &to_right), (&right, &to_left)] {
        near.to_init().unwrap();
        near.to_rtr(far, &options()).unwrap();
        near.to_rts(far, &options()).unwrap();
    }
    let left = left.connected(&to_right).unwrap();
    let right = right.connected(&to_left).unwrap();
    assert!(left.capacities().send_requests >= 8);
    let mut receives = right.receive_queue();
    receives.post(domain.allocate(8).unwrap()).unwrap();
    let mut sends = left.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 8, 7)))
        .unwrap();
    let mut received = None;
    for _ in 0..2 {
        let completion = succeed(&completions);
        let _ = sends.complete(&completion).count();
        received = received.or(receives.complete(&completion));
    }
    assert_eq!(received.expect("the message")[..], bytes(8, 7));
}

#[test]
fn a_queue_pair_is_not_taken_over_without_its_completion_queues() {
    let domain = context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    let raw = made_in_c(&domain, &completions);
    // SAFETY: no other code uses the queue pair; the function must detect the missing objects.
    let refused = unsafe { domain.queue_pair().from_raw(raw) }.unwrap_err();
    assert!(
        matches!(refused, Error::InvalidArgument { .. }),
        "{refused}"
    );
}

#[test]
fn a_raw_packet_queue_pair_works_or_is_unsupported() {
    let domain = context().protection_domain().unwrap();
    let builder = domain.queue_pair().transport(Transport::RawPacket);
    match builder.build() {
        Ok(prepared) => {
            let pair = prepared.activate(&DatagramOptions::default()).unwrap();
            assert_eq!(pair.state(), Ok(QueuePairState::ReadyToSend));
        }
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            let name = domain.context().name();
            let text = format!("device {name} does not support raw packet queue pairs");
            assert_eq!(error.to_string(), text);
        }
    }
}

#[test]
fn optional_properties_work_or_are_unsupported() {
    let domain = context().protection_domain().unwrap();
    let flags = QueuePairCreateFlags::BLOCK_MULTICAST_LOOPBACK;
    let special = [
        domain.queue_pair().create_flags(flags),
        domain.queue_pair().source_number(0x77),
        domain.queue_pair().segmentation_header(64),
        domain.queue_pair().operations(SendOperations::SEGMENTATION),
    ];
    for builder in special {
        if let Err(error) = builder.clone().build() {
            assert!(error.is_unsupported(), "{builder:?}: {error}");
            assert!(error.to_string().starts_with("ibv_create_qp_ex on device "));
        }
    }
}

#[test]
fn sizes_above_the_limits_are_refused_with_the_request() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let most = context.attributes().unwrap().max_work_requests();
    let too_many = u32::try_from(most).unwrap().saturating_add(1);
    let completions = context.completion_queue(16).build().unwrap();
    let builder = domain.queue_pair().send_completions(&completions);
    let refused = builder.send_requests(too_many).build().unwrap_err();
    let text = refused.to_string();
    assert!(text.starts_with("ibv_create_qp on device"), "{text}");
    assert!(
        text.contains(&format!("send_requests: {too_many}")),
        "{text}"
    );
}

#[test]
fn enhancements_are_agreed_on_or_unsupported() {
    let pair = Pair::new();
    let prepared = pair.domain.queue_pair().build().unwrap();
    match prepared.query_ece() {
        Ok(ours) => prepared.set_ece(ours.common(ours)).unwrap(),
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            let refused = prepared.set_ece(EnhancedEstablishment::default());
            assert!(refused.unwrap_err().is_unsupported());
            assert!(pair.left.query_ece().unwrap_err().is_unsupported());
        }
    }
}

#[test]
fn the_rate_is_limited_or_that_is_unsupported() {
    let pair = Pair::new();
    let limit = RateLimit {
        kilobits: 1_000_000,
        ..RateLimit::default()
    };
    if let Err(error) = pair.left.limit_rate(limit) {
        assert!(error.is_unsupported(), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("ibv_modify_qp_rate_limit on"), "{text}");
        pair.check();
    }
}

#[test]
fn the_order_of_data_is_known_for_each_arrival() {
    let pair = Pair::new();
    for arrival in [Arrival::Send, Arrival::Write, Arrival::Read] {
        let order = pair.left.data_order(arrival);
        // The guarantees are known for one device only.
        if pair.domain.context().device().is_emulated() && cfg!(target_arch = "x86_64") {
            assert_eq!(
                order,
                DataOrder::WHOLE_MESSAGE | DataOrder::ALIGNED_128_BYTES
            );
        }
    }
}

#[test]
fn an_unreliable_connection_writes_and_does_not_read() {
    let pair = Pair::with(
        |builder| builder.transport(Transport::UnreliableConnected),
        &options(),
    );
    let writable = exposed(&pair.domain, 64, AccessFlags::REMOTE_WRITE);
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, 9);
    let request = SendRequest::write_with_immediate(source, writable.remote(), 0x1234_5678);
    sends.post(request).unwrap();
    let sent = succeed(pair.left.send_completions());
    assert_eq!(sends.complete(&sent).count(), 1);
    let (received, _) = receive(&pair.right, &mut receives);
    assert_eq!(received.immediate(), Some(0x1234_5678));
    let revoked = writable.revoke().unwrap();
    assert_eq!(revoked[..], bytes(64, 9));
    let readable = exposed(&pair.domain, 8, AccessFlags::REMOTE_READ);
    let remote = readable.remote();
    let room = pair.domain.allocate(8).unwrap();
    let refused = match sends.post(SendRequest::read(room, remote)) {
        Err(refused) => refused.memory.len() == 8,
        // A device may accept the request and complete it with an error.
        Ok(()) => completion(pair.left.send_completions()).result().is_err(),
    };
    assert!(refused);
}
