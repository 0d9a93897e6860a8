//! The order of a send queue: signaling, fences, inline data, and a full queue.

mod common;

use common::{Pair, bytes, carry_out, completion, exposed, pattern, receive, succeed};
use rdma_core::{AccessFlags, ConnectOptions, Error, SendRequest, WorkOpcode};

/// Returns a pair that can send 64 bytes inline.
fn inlining() -> Pair {
    Pair::with(
        |builder| builder.inline_data(64),
        &ConnectOptions::default(),
    )
}

#[test]
fn a_signaled_request_retires_the_unsignaled_before_it_in_order() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    for seed in 0..10 {
        let request = SendRequest::write(pattern(&pair.domain, 8, seed), target.remote());
        let signaled = seed == 5 || seed == 9;
        let request = if signaled {
            request
        } else {
            request.unsignaled()
        };
        sends.post(request).unwrap();
    }
    assert_eq!(sends.in_flight(), 10);
    for seeds in [0..=5, 6..=9] {
        let completion = succeed(pair.left.send_completions());
        let retired: Vec<_> = sends
            .complete(&completion)
            .map(|memory| memory.to_vec())
            .collect();
        let expected: Vec<_> = seeds.map(|seed| bytes(8, seed)).collect();
        assert_eq!(retired, expected);
    }
    assert_eq!(sends.in_flight(), 0);
    let mut room = [Default::default(); 4];
    assert!(
        pair.left
            .send_completions()
            .poll(&mut room)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn what_is_not_taken_from_the_retired_is_dropped() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let frozen = pattern(&pair.domain, 8, 1).freeze();
    let mut sends = pair.left.send_queue();
    for _ in 0..3 {
        let request = SendRequest::write(frozen.clone(), target.remote());
        sends.post(request.unsignaled()).unwrap();
    }
    sends
        .post(SendRequest::write(frozen.clone(), target.remote()))
        .unwrap();
    let completion = succeed(pair.left.send_completions());
    drop(sends.complete(&completion).next());
    assert_eq!(sends.in_flight(), 0);
    assert!(frozen.thaw().is_ok(), "no request keeps it");
}

#[test]
fn forgetting_the_retired_keeps_their_memory() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    for seed in 0..3 {
        let request = SendRequest::write(pattern(&pair.domain, 8, seed), target.remote());
        sends
            .post(if seed < 2 {
                request.unsignaled()
            } else {
                request
            })
            .unwrap();
    }
    let completion = succeed(pair.left.send_completions());
    let mut retired = sends.complete(&completion);
    assert!(retired.next().is_some());
    std::mem::forget(retired);
    assert_eq!(sends.in_flight(), 2);
    assert_eq!(
        sends.complete(&completion).count(),
        2,
        "asked again, they come"
    );
    assert_eq!(sends.complete(&completion).count(), 0, "and once only");
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let pair = Pair::with(
        |builder| builder.send_requests(4),
        &ConnectOptions::default(),
    );
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    assert_eq!((sends.capacity(), pair.left.send_capacity()), (4, 4));
    let write = |seed| SendRequest::write(pattern(&pair.domain, 8, seed), target.remote());
    for round in 0..20 {
        for seed in 0..4 {
            sends.post(write(seed)).unwrap();
        }
        let refused = sends.post(write(round)).unwrap_err();
        let full = Error::QueueFull {
            queue: "send",
            capacity: 4,
        };
        assert_eq!(refused.error, full);
        assert_eq!(refused.memory[..], bytes(8, round), "the memory comes back");
        for _ in 0..4 {
            let completion = succeed(pair.left.send_completions());
            assert_eq!(sends.complete(&completion).count(), 1);
        }
    }
}

#[test]
fn a_full_receive_queue_refuses_and_recovers() {
    let pair = Pair::with(
        |builder| builder.receive_requests(2),
        &ConnectOptions::default(),
    );
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for seed in 0..10 {
        for _ in 0..2 {
            receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        }
        let refused = receives.post(pair.domain.allocate(8).unwrap()).unwrap_err();
        let full = Error::QueueFull {
            queue: "receive",
            capacity: 2,
        };
        assert_eq!(refused.error, full);
        for _ in 0..2 {
            carry_out(
                &pair.left,
                &mut sends,
                SendRequest::send(pattern(&pair.domain, 8, seed)),
            );
            assert_eq!(receive(&pair.right, &mut receives).1[..], bytes(8, seed));
        }
    }
}

#[test]
fn two_send_queues_of_one_queue_pair_keep_their_own() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let (mut one, mut other) = (pair.left.send_queue(), pair.left.send_queue());
    one.post(SendRequest::write(
        pattern(&pair.domain, 8, 1),
        target.remote(),
    ))
    .unwrap();
    other
        .post(SendRequest::write(
            pattern(&pair.domain, 8, 2),
            target.remote(),
        ))
        .unwrap();
    let first = succeed(pair.left.send_completions());
    let second = succeed(pair.left.send_completions());
    assert_eq!(one.complete(&second).count(), 0);
    assert_eq!(other.complete(&first).count(), 0);
    assert_eq!(one.complete(&first).next().unwrap()[..], bytes(8, 1));
    assert_eq!(other.complete(&second).next().unwrap()[..], bytes(8, 2));
}

#[test]
fn a_fenced_request_sees_what_the_read_before_it_brought() {
    let pair = Pair::new();
    let (source, relay, target) = (
        exposed(&pair.domain, 8, AccessFlags::REMOTE),
        exposed(&pair.domain, 8, AccessFlags::REMOTE),
        exposed(&pair.domain, 8, AccessFlags::REMOTE),
    );
    let mut sends = pair.left.send_queue();
    for value in 1..=50_u64 {
        source.store_u64(0, value).unwrap();
        let read = SendRequest::read(relay.clone(), source.remote());
        sends.post(read.unsignaled()).unwrap();
        let write = SendRequest::write(relay.clone(), target.remote());
        sends.post(write.fence()).unwrap();
        let completion = succeed(pair.left.send_completions());
        assert_eq!(completion.opcode(), WorkOpcode::Write);
        assert_eq!(sends.complete(&completion).count(), 2);
        assert_eq!(target.load_u64(0).unwrap(), value);
    }
}

#[test]
fn inline_data_is_sent_and_written() {
    let pair = inlining();
    assert!(pair.left.inline_limit() >= 64);
    let target = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(64).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    let halves = || pattern(&pair.domain, 64, 3).split_at(20);
    carry_out(&pair.left, &mut sends, SendRequest::send(halves()).inline());
    assert_eq!(receive(&pair.right, &mut receives).1[..], bytes(64, 3));
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(halves(), target.remote()).inline(),
    );
    let mut content = [0; 64];
    target.read_at(0, &mut content).unwrap();
    assert_eq!(content[..], bytes(64, 3));
}

#[test]
fn more_inline_data_than_agreed_is_refused() {
    let pair = inlining();
    let limit = pair.left.inline_limit();
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, limit + 1, 1);
    let refused = sends.post(SendRequest::send(source).inline()).unwrap_err();
    assert!(
        matches!(refused.error, Error::InvalidArgument { .. }),
        "{refused:?}"
    );
    assert_eq!(sends.in_flight(), 0);
}

#[test]
fn inline_data_whose_lengths_overflow_is_refused() {
    let pair = Pair::with(
        |builder| builder.inline_data(64).elements(16),
        &ConnectOptions::default(),
    );
    // Sixteen times 256 MiB are 4 GiB, which is 0 in the 32 bits with which drivers count.
    let frozen = pair.domain.allocate(256 << 20).unwrap().freeze();
    let mut sends = pair.left.send_queue();
    let pieces = [(); 16].map(|()| frozen.clone());
    let refused = sends.post(SendRequest::send(pieces).inline()).unwrap_err();
    assert!(
        matches!(refused.error, Error::InvalidArgument { .. }),
        "{refused:?}"
    );
}

#[test]
fn a_read_cannot_be_inline() {
    let pair = inlining();
    let source = exposed(&pair.domain, 16, AccessFlags::REMOTE);
    let mut victim = pair.domain.allocate(16).unwrap();
    victim.fill(0xaa);
    // If a driver copied these bytes into the request, the device would interpret them as the
    // scatter/gather element of the request.
    let mut forged = pair.domain.allocate(16).unwrap();
    forged[..8].copy_from_slice(&(victim.as_ptr() as u64).to_ne_bytes());
    forged[8..12].copy_from_slice(&16_u32.to_ne_bytes());
    let mut sends = pair.left.send_queue();
    let request = SendRequest::read(forged, source.remote()).inline();
    let refused = sends.post(request).unwrap_err();
    assert!(
        matches!(refused.error, Error::InvalidArgument { .. }),
        "{refused:?}"
    );
    assert!(victim.iter().all(|&byte| byte == 0xaa));
    let counter = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let room = pair.domain.allocate(8).unwrap();
    let request = SendRequest::fetch_and_add(room, counter.remote(), 1).inline();
    assert!(sends.post(request).is_err());
    assert_eq!(sends.in_flight(), 0);
    pair.check();
}

#[test]
fn failed_unsignaled_requests_have_completions() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let gone = target.remote();
    drop(target);
    let mut sends = pair.left.send_queue();
    let request = SendRequest::write(pattern(&pair.domain, 8, 1), gone);
    sends.post(request.unsignaled()).unwrap();
    let failed = completion(pair.left.send_completions());
    assert!(failed.result().is_err());
    assert_eq!(sends.complete(&failed).count(), 1);
}
