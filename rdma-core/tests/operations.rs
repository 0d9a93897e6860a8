//! Every operation, posted in both ways: by `ibv_post_send`, and by the functions `ibv_wr_*`.

mod common;

use std::sync::Arc;

use common::{Pair, bytes, carry_out, completion, exposed, pattern, receive, succeed};
use rdma_core::address::{AddressVector, DatagramHeader, Destination};
use rdma_core::memory::AtomicResult;
use rdma_core::queue_pair::{Placement, SendOperations};
use rdma_core::receive::XrcDomain;
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, DatagramOptions, Error, ProtectionDomain, QueuePair,
    QueuePairBuilder, SendRequest, Transport, WorkOpcode, WorkStatus,
};

const QKEY: u32 = 0x1234_5678;

fn inlining(builder: QueuePairBuilder) -> QueuePairBuilder {
    builder.inline_data(64)
}

/// Returns the settings for the two ways to post.
fn ways() -> [fn(QueuePairBuilder) -> QueuePairBuilder; 2] {
    [inlining, |builder| inlining(builder).extended_posting()]
}

fn pairs() -> [Pair; 2] {
    ways().map(|way| Pair::with(way, &ConnectOptions::default()))
}

#[test]
fn sends_deliver_their_data() {
    for pair in pairs() {
        let mut receives = pair.right.receive_queue();
        let mut sends = pair.left.send_queue();
        let halves = |seed| pattern(&pair.domain, 32, seed).split_at(10);
        let requests = [
            (SendRequest::send(halves(1)), None),
            (
                SendRequest::send_with_immediate(halves(1), 0x0102_0304),
                Some(0x0102_0304),
            ),
            (SendRequest::send(halves(1)).inline().solicited(), None),
            (
                SendRequest::send_with_immediate(halves(1), 7).inline(),
                Some(7),
            ),
        ];
        for (request, immediate) in requests {
            receives.post(pair.domain.allocate(32).unwrap()).unwrap();
            carry_out(&pair.left, &mut sends, request);
            let (received, memory) = receive(&pair.right, &mut receives);
            assert_eq!(received.opcode(), WorkOpcode::Receive);
            assert_eq!((received.immediate(), received.len()), (immediate, 32));
            assert_eq!(memory[..], bytes(32, 1));
        }
    }
}

#[test]
fn writes_reads_and_atomics_have_their_effects() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        let mut receives = pair.right.receive_queue();
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        let source = pattern(&pair.domain, 64, 1);
        let write = SendRequest::write_with_immediate(source, there.remote(), u32::MAX - 1);
        let source = carry_out(&pair.left, &mut sends, write);
        let (received, _) = receive(&pair.right, &mut receives);
        assert_eq!(received.opcode(), WorkOpcode::ReceiveWriteImmediate);
        assert_eq!(received.immediate(), Some(u32::MAX - 1));
        let (left, right) = source.split_at(24);
        let mut pieces = pair.left.send_queue();
        let read = SendRequest::read((right, left), there.remote());
        let (right, left) = carry_out(&pair.left, &mut pieces, read);
        assert_eq!(right[..], bytes(64, 1)[..40]);
        assert_eq!(left[..], bytes(64, 1)[40..]);

        there.store_u64(8, 5).unwrap();
        let word = there.remote().slice(8..16).unwrap();
        let mut atomics = pair.left.send_queue();
        let result = AtomicResult::new(&pair.domain).unwrap();
        let add = SendRequest::fetch_and_add(result, word, 10).fence();
        let result = carry_out(&pair.left, &mut atomics, add);
        assert_eq!((result.value(), there.load_u64(8).unwrap()), (5, 15));
        let swap = SendRequest::compare_and_swap(result, word, 15, u64::MAX);
        let result = carry_out(&pair.left, &mut atomics, swap);
        assert_eq!((result.value(), there.load_u64(8).unwrap()), (15, u64::MAX));
    }
}

#[test]
fn an_atomic_result_has_eight_bytes() {
    let domain = common::context().protection_domain().unwrap();
    let (eight, nine) = domain.allocate(17).unwrap().split_at(8);
    assert_eq!(AtomicResult::try_from(eight).unwrap().value(), 0);
    let error = AtomicResult::try_from(nine).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}

#[test]
fn data_that_is_copied_needs_no_registration_and_no_keeping() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let mut receives = pair.right.receive_queue();
        receives.post(pair.domain.allocate(64).unwrap()).unwrap();
        let mut sends = pair.left.send_queue::<Buffer>();
        {
            let words = [
                String::from("one "),
                String::from("two "),
                String::from("three"),
            ];
            let pieces: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            sends.post_inline(SendRequest::send(&pieces[..])).unwrap();
            let write = SendRequest::write([b"ab".as_slice(), b"", b"cd"], there.remote());
            sends.post_inline(write).unwrap();
            // A part of registered memory that the test keeps.
            let mut memory = pattern(&pair.domain, 8, 3);
            let place = there.remote().slice(8..).unwrap();
            let write = SendRequest::write(&memory[..], place);
            sends.post_inline(write).unwrap();
            memory.fill(0);
        }
        for _ in 0..3 {
            let completion = succeed(pair.left.send_completions());
            assert_eq!(sends.complete(&completion).count(), 0, "no memory was kept");
        }
        assert_eq!(sends.in_flight(), 0);
        let (received, memory) = receive(&pair.right, &mut receives);
        assert_eq!(memory[..received.len()], *b"one two three");
        let mut content = [0; 16];
        there.read_at(0, &mut content).unwrap();
        assert_eq!(content[..4], *b"abcd");
        assert_eq!(content[8..], bytes(8, 3));
    }
}

#[test]
fn more_data_than_can_be_copied_is_refused() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue::<Buffer>();
        let limit = pair.left.inline_limit();
        let data = vec![1; limit + 1];
        let refused = sends.post_inline(SendRequest::send(&data[..])).unwrap_err();
        assert!(
            matches!(refused.error, Error::InvalidArgument { .. }),
            "{refused:?}"
        );
        let pieces = vec![&data[..1]; 17];
        let refused = sends
            .post_inline(SendRequest::send(&pieces[..]))
            .unwrap_err();
        assert!(
            matches!(refused.error, Error::TooManyElements { elements: 17, .. }),
            "{refused:?}"
        );
        sends
            .post_inline(SendRequest::write(&data[..0], there.remote()))
            .unwrap();
        succeed(pair.left.send_completions());
    }
}

#[test]
fn an_empty_message_arrives() {
    for pair in pairs() {
        let mut receives = pair.right.receive_queue();
        let mut sends = pair.left.send_queue::<Buffer>();
        for _ in 0..2 {
            receives.post(()).unwrap();
            sends
                .post_inline(SendRequest::send_with_immediate((), 3))
                .unwrap();
            let sent = succeed(pair.left.send_completions());
            assert_eq!(sends.complete(&sent).count(), 0);
            let (received, ()) = receive(&pair.right, &mut receives);
            assert_eq!((received.len(), received.immediate()), (0, Some(3)));
        }
    }
}

fn datagrams(
    domain: &ProtectionDomain,
    way: fn(QueuePairBuilder) -> QueuePairBuilder,
) -> QueuePair {
    let prepared = way(domain.queue_pair().transport(Transport::Datagram));
    let prepared = prepared.build().unwrap();
    prepared.activate(&DatagramOptions::new(QKEY)).unwrap()
}

fn destination(domain: &ProtectionDomain, to: &QueuePair) -> Destination {
    let here = to.address();
    let vector = AddressVector::new(here, here.gid, here.lid);
    Destination {
        handle: domain.address_handle(&vector).unwrap(),
        queue_pair: to.number(),
        qkey: QKEY,
    }
}

#[test]
fn datagrams_arrive_at_their_destination() {
    for way in ways() {
        let domain = common::context().protection_domain().unwrap();
        let from = datagrams(&domain, way);
        let to = [datagrams(&domain, way), datagrams(&domain, way)];
        let mut sends = from.send_queue();
        let data = [[1; 4], [2; 4]];
        let mut batch = sends.batch();
        let mut queues = Vec::new();
        for (seed, to) in (1..).zip(&to) {
            let mut receives = to.receive_queue();
            for _ in 0..2 {
                receives.post(domain.allocate(64).unwrap()).unwrap();
            }
            queues.push(receives);
            let request = SendRequest::send_with_immediate(pattern(&domain, 16, seed), 5);
            // The handle is dropped before the request is posted; the request keeps the address
            // handle alive.
            batch.push(request.to(&destination(&domain, to))).unwrap();
            let inline =
                SendRequest::send(&data[usize::from(seed) - 1]).to(&destination(&domain, to));
            batch.push_inline(inline).unwrap();
        }
        assert_eq!(batch.post().unwrap(), 4);
        for _ in 0..4 {
            let sent = succeed(from.send_completions());
            drop(sends.complete(&sent));
        }
        for (seed, (to, mut receives)) in (1..).zip(to.iter().zip(queues)) {
            for _ in 0..2 {
                // Datagrams may overtake each other.
                let (received, memory) = receive(to, &mut receives);
                let message = &memory[DatagramHeader::LEN..received.len()];
                match received.immediate() {
                    Some(number) => assert_eq!((number, message), (5, &bytes(16, seed)[..])),
                    None => assert_eq!(message, [seed; 4]),
                }
            }
        }
    }
}

/// Without the check, a driver would dereference a null pointer or use a wrong address of the peer.
#[test]
fn requests_that_lack_what_the_queue_pair_needs_are_refused() {
    for way in ways() {
        let domain = common::context().protection_domain().unwrap();
        let datagrams = datagrams(&domain, way);
        let there = exposed(&domain, 8, AccessFlags::REMOTE);
        let destination = destination(&domain, &datagrams);
        let memory = || domain.allocate(8).unwrap();
        let mut sends = datagrams.send_queue();
        let refused = [
            SendRequest::send(memory()),
            SendRequest::send_with_immediate(memory(), 1),
            SendRequest::write(memory(), there.remote()).to(&destination),
            SendRequest::write(memory(), there.remote()),
            SendRequest::read(memory(), there.remote()).to(&destination),
            SendRequest::fetch_and_add(memory(), there.remote(), 1).to(&destination),
            SendRequest::send_with_invalidate(memory(), 1).to(&destination),
            SendRequest::send(memory()).remote_shared_queue(1),
        ];
        for request in refused {
            let text = format!("{request:?}");
            let mut batch = sends.batch();
            let refused = batch.push(request).unwrap_err();
            assert!(
                matches!(refused.error, Error::InvalidArgument { .. }),
                "{text}"
            );
        }
        let refused = sends.post_inline(SendRequest::send(&[1; 4])).unwrap_err();
        assert!(matches!(refused.error, Error::InvalidArgument { .. }));
        let refused = sends.post_inline(SendRequest::invalidate(1)).unwrap_err();
        assert!(matches!(refused.error, Error::InvalidArgument { .. }));
        let queue = datagrams.concurrent_send_queue();
        let slot = queue.reserve().unwrap();
        assert!(queue.post(slot, SendRequest::send(memory())).is_err());

        let pair = Pair::with(way, &ConnectOptions::default());
        let mut sends = pair.left.send_queue();
        for request in [
            SendRequest::send(memory()).to(&destination),
            SendRequest::send(memory()).remote_shared_queue(1),
        ] {
            let refused = sends.post(request).unwrap_err();
            assert!(matches!(refused.error, Error::InvalidArgument { .. }));
        }
        pair.check();
    }
}

#[test]
fn unreliable_connections_write_and_neither_read_nor_count() {
    for way in ways() {
        let configure =
            |builder: QueuePairBuilder| way(builder).transport(Transport::UnreliableConnected);
        let pair = Pair::with(configure, &ConnectOptions::default());
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        let write = SendRequest::write(pattern(&pair.domain, 8, 2), there.remote());
        let memory = carry_out(&pair.left, &mut sends, write);
        common::eventually("the write", || {
            let mut content = [0; 8];
            there.read_at(0, &mut content).unwrap();
            (content[..] == bytes(8, 2)).then_some(())
        });
        let refused = sends
            .post(SendRequest::read(memory, there.remote()))
            .unwrap_err();
        let add = SendRequest::fetch_and_add(refused.memory, there.remote(), 1);
        let refused = sends.post(add).unwrap_err();
        assert!(matches!(refused.error, Error::InvalidArgument { .. }));
    }
}

#[test]
fn an_xrc_initiator_posts_both_ways() {
    let context = common::context();
    let Some(xrc) = common::where_supported(XrcDomain::anonymous(&context)) else {
        return;
    };
    for way in ways() {
        let domain = context.protection_domain().unwrap();
        let initiator = way(domain.queue_pair().transport(Transport::XrcInitiator));
        let initiator = initiator.build().unwrap();
        let target = domain.queue_pair().transport(Transport::XrcTarget);
        let target = target.xrc_domain(&xrc).build().unwrap();
        let (to_initiator, to_target) = (initiator.endpoint(), target.endpoint());
        let options = ConnectOptions::default();
        let initiator = initiator.connect(&to_target, &options).unwrap();
        let target = target.connect(&to_initiator, &options).unwrap();
        let completions = context.completion_queue(8).build().unwrap();
        let queue = domain.shared_receive_queue(4).xrc(&xrc, &completions);
        let queue = queue.build().unwrap();
        queue.post(domain.allocate(8).unwrap()).unwrap();
        let mut sends = initiator.send_queue();
        let request = || SendRequest::send(pattern(&domain, 8, 4));
        let refused = sends.post(request()).unwrap_err();
        assert!(matches!(refused.error, Error::InvalidArgument { .. }));
        let request = request().remote_shared_queue(queue.number().unwrap());
        carry_out(&initiator, &mut sends, request);
        let received = succeed(&completions);
        assert_eq!(queue.complete(&received).unwrap()[..], bytes(8, 4));
        // Requests cannot be posted to an XRC target.
        let mut sends = target.send_queue();
        let refused = sends.post(SendRequest::send(())).unwrap_err();
        assert!(matches!(refused.error, Error::InvalidArgument { .. }));
    }
}

#[test]
fn invalidating_a_key_that_is_none_fails_the_request() {
    for pair in pairs() {
        let mut sends = pair.left.send_queue::<Buffer>();
        sends
            .post_inline(SendRequest::invalidate(0x00ab_cd00))
            .unwrap();
        let failed = completion(pair.left.send_completions());
        assert_ne!(failed.status(), WorkStatus::Success);
        assert_eq!(sends.complete(&failed).count(), 0);
        assert_eq!(sends.in_flight(), 0);
    }
}

#[test]
fn what_a_queue_pair_was_not_made_for_is_unsupported() {
    let configure = |builder: QueuePairBuilder| builder.operations(SendOperations::SEND);
    let pair = Pair::with(configure, &ConnectOptions::default());
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    let write = SendRequest::write(pattern(&pair.domain, 8, 2), there.remote());
    let refused = sends.post(write).unwrap_err();
    assert!(refused.error.is_unsupported(), "{refused:?}");
    pair.check();
}

/// Returns a pair whose left queue pair can post `extra` in addition to the usual operations;
/// `None` if the device does not support these operations.
fn pair_for(extra: SendOperations, access: AccessFlags) -> Option<Pair> {
    let domain = common::context().protection_domain().unwrap();
    let operations = SendOperations::of(Transport::ReliableConnected) | extra;
    let left = domain.queue_pair().operations(operations).build();
    let left = common::where_supported(left)?;
    let right = domain.queue_pair().access(access).build().unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let options = ConnectOptions::default();
    Some(Pair {
        left: left.connect(&to_right, &options).unwrap(),
        right: right.connect(&to_left, &options).unwrap(),
        domain,
    })
}

#[test]
fn an_atomic_write_replaces_a_word() {
    let Some(pair) = pair_for(SendOperations::ATOMIC_WRITE, AccessFlags::REMOTE) else {
        return;
    };
    let there = exposed(&pair.domain, 16, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue::<Buffer>();
    let place = there.slice(8..).unwrap().remote();
    sends
        .post_inline(SendRequest::atomic_write([7; 8], place))
        .unwrap();
    let done = succeed(pair.left.send_completions());
    assert_eq!(done.opcode(), WorkOpcode::AtomicWrite);
    sends.complete(&done).for_each(drop);
    let mut content = [0; 16];
    there.read_at(0, &mut content).unwrap();
    assert_eq!(content, [0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
}

#[test]
fn a_flush_completes_where_it_is_allowed() {
    let rights = AccessFlags::REMOTE | AccessFlags::FLUSH_GLOBAL;
    let Some(pair) = pair_for(SendOperations::FLUSH, rights) else {
        return;
    };
    let there = exposed(&pair.domain, 64, rights);
    let mut sends = pair.left.send_queue::<Buffer>();
    for request in [
        SendRequest::flush(there.remote(), Placement::Global),
        SendRequest::flush_region(there.remote(), Placement::Global),
    ] {
        sends.post_inline(request).unwrap();
        let done = succeed(pair.left.send_completions());
        assert_eq!(done.opcode(), WorkOpcode::Flush);
        sends.complete(&done).for_each(drop);
    }
    // The peer may write to this memory, but not flush it.
    let other = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    sends
        .post_inline(SendRequest::flush(other.remote(), Placement::Global))
        .unwrap();
    let refused = completion(pair.left.send_completions());
    assert_eq!(refused.status(), WorkStatus::RemoteAccess);
}

/// Checks that a queue pair that was not created for these operations refuses them. No device of
/// the tests supports segmentation.
#[test]
fn flushes_atomic_writes_and_segmentation_are_refused_where_they_are_unsupported() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue::<Buffer>();
        let requests = [
            SendRequest::atomic_write([1; 8], there.remote()),
            SendRequest::flush(there.remote(), Placement::Global),
            SendRequest::flush_region(there.remote(), Placement::Persistent),
        ];
        for request in requests {
            let refused = sends.post_inline(request).unwrap_err();
            assert!(refused.error.is_unsupported(), "{refused:?}");
        }
        pair.check();
    }
    let domain = common::context().protection_domain().unwrap();
    let extras = [
        (Transport::UnreliableConnected, SendOperations::ATOMIC_WRITE),
        (Transport::UnreliableConnected, SendOperations::FLUSH),
        (Transport::Datagram, SendOperations::SEGMENTATION),
    ];
    for (transport, extra) in extras {
        let operations = SendOperations::of(transport) | extra;
        let builder = domain.queue_pair().transport(transport);
        let error = builder.operations(operations).build().unwrap_err();
        assert!(error.is_unsupported(), "{extra:?}: {error}");
    }
    let datagrams = datagrams(&domain, |builder| inlining(builder).extended_posting());
    let request = SendRequest::segmented(domain.allocate(64).unwrap(), Arc::new([0; 40]), 16);
    let request = request.to(&destination(&domain, &datagrams));
    let refused = datagrams.send_queue().post(request).unwrap_err();
    assert!(refused.error.is_unsupported(), "{refused:?}");
}
