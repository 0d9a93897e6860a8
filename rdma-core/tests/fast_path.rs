//! Requests on the fast path, and the same requests on queue pairs on which all requests take the
//! general path. Checks that both paths accept and refuse the same requests and transfer the same
//! bytes.

mod common;

use common::{Pair, bytes, carry_out, exposed, pattern, receive, succeed};
use rdma_core::address::{AddressVector, DatagramHeader, Destination};
use rdma_core::queue_pair::InlineData;
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, DatagramOptions, Error, PostError, ProtectionDomain,
    QueuePair, QueuePairBuilder, SendRequest, Transport,
};

const INLINE: u32 = 32;
const ELEMENTS: u32 = 3;
const QKEY: u32 = 0x1111_2222;

const CONNECTED: [Transport; 2] = [Transport::ReliableConnected, Transport::UnreliableConnected];

/// Returns the settings for two kinds of queue pairs: those that post by `ibv_post_send`, and those
/// that post by `ibv_wr_*`, for which there is no fast path.
fn ways(kind: Transport) -> [impl Fn(QueuePairBuilder) -> QueuePairBuilder; 2] {
    [false, true].map(|extended| {
        move |builder: QueuePairBuilder| {
            let builder = builder.transport(kind).elements(ELEMENTS);
            let builder = builder.inline_data(INLINE);
            if extended {
                builder.extended_posting()
            } else {
                builder
            }
        }
    })
}

fn pairs(kind: Transport) -> [Pair; 2] {
    ways(kind).map(|way| Pair::with(way, &ConnectOptions::default()))
}

/// The result of a request: the message that the peer received and its immediate data, or the
/// error.
type Outcome = Result<(Vec<u8>, Option<u32>), String>;

/// Posts a request with inline data, and returns its result.
fn inline<D: InlineData>(pair: &Pair, request: SendRequest<D>) -> Outcome {
    let mut sends = pair.left.send_queue::<Buffer>();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(128).unwrap()).unwrap();
    match sends.post_inline(request) {
        Ok(()) => {
            let (received, memory) = receive(&pair.right, &mut receives);
            let sent = succeed(pair.left.send_completions());
            assert_eq!(sends.complete(&sent).count(), 0, "no memory was kept");
            assert_eq!(sends.in_flight(), 0);
            Ok((memory[..received.len()].to_vec(), received.immediate()))
        }
        Err(PostError { error, .. }) => {
            assert_eq!(sends.in_flight(), 0);
            Err(error.to_string())
        }
    }
}

/// Calls `outcome` with a new queue pair of each kind, asserts that the results are equal, and
/// returns the result.
#[track_caller]
fn alike(kind: Transport, outcome: impl Fn(&Pair) -> Outcome) -> Outcome {
    let [fast_path, general] = pairs(kind).map(|pair| outcome(&pair));
    assert_eq!(fast_path, general, "{kind}");
    fast_path
}

#[test]
fn data_that_is_copied_is_sent_alike() {
    for kind in CONNECTED {
        let data = bytes(INLINE as usize, 3);
        for len in [0, 1, 31, 32] {
            let piece = &data[..len];
            let sent = alike(kind, |pair| inline(pair, SendRequest::send(piece)));
            assert_eq!(sent, Ok((piece.to_vec(), None)));
            let sent = alike(kind, |pair| {
                inline(pair, SendRequest::send_with_immediate(piece, len as u32))
            });
            assert_eq!(sent, Ok((piece.to_vec(), Some(len as u32))));
            let sent = alike(kind, |pair| {
                inline(pair, SendRequest::send(piece).solicited())
            });
            assert_eq!(sent, Ok((piece.to_vec(), None)));
        }
        // The device may support more inline data than was requested.
        let sent = alike(kind, |pair| {
            let too_long = bytes(pair.left.inline_limit() + 1, 3);
            inline(pair, SendRequest::send(&too_long[..]))
        });
        sent.unwrap_err();
        // Several slices, some of them empty, and then more slices than a request can have.
        let sent = alike(kind, |pair| {
            inline(pair, SendRequest::send([&data[..5], &[], &data[5..9]]))
        });
        assert_eq!(sent.unwrap().0, data[..9]);
        let sent = alike(kind, |pair| {
            inline(pair, SendRequest::send([&data[..1]; 3]))
        });
        assert_eq!(sent.unwrap().0, [data[0]; 3]);
        let sent = alike(kind, |pair| {
            inline(pair, SendRequest::send([&data[..1]; 20]))
        });
        sent.unwrap_err();
        let sent = alike(kind, |pair| {
            inline(pair, SendRequest::send(&data[..4]).remote_shared_queue(1))
        });
        sent.unwrap_err();
    }
}

#[test]
fn data_that_is_copied_is_written_alike() {
    for kind in CONNECTED {
        for len in [0, 8, 32] {
            let written = pairs(kind).map(|pair| {
                let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
                let data = bytes(len, 5);
                let write = SendRequest::write_with_immediate(&data[..], there.remote(), 6);
                let written = inline(&pair, write.solicited()).map(|(_, immediate)| immediate);
                assert_eq!(written, Ok(Some(6)));
                let too_long = bytes(pair.left.inline_limit() + 1, 1);
                inline(&pair, SendRequest::write(&too_long[..], there.remote())).unwrap_err();
                there.revoke().unwrap().to_vec()
            });
            assert_eq!(written[0], written[1]);
            assert_eq!(written[0][..len], bytes(len, 5));
            assert_eq!(written[0][len..], vec![0; 64 - len]);
        }
    }
}

#[test]
fn data_that_is_copied_comes_in_order_among_other_requests_and_in_batches() {
    for kind in CONNECTED {
        for pair in pairs(kind) {
            let mut sends = pair.left.send_queue::<Buffer>();
            let mut receives = pair.right.receive_queue();
            for round in 0..20 {
                for _ in 0..6 {
                    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
                }
                let data: Vec<_> = (0..6).map(|seed| bytes(8, round + seed)).collect();
                sends
                    .post_inline(SendRequest::send(&data[0][..]).unsignaled())
                    .unwrap();
                let message = pattern(&pair.domain, 8, round + 1);
                sends.post(SendRequest::send(message).unsignaled()).unwrap();
                let mut batch = sends.batch();
                for index in [2, 4] {
                    let piece = &data[index][..];
                    batch
                        .push_inline(SendRequest::send(piece).unsignaled())
                        .unwrap();
                    let message = pattern(&pair.domain, 8, round + index as u8 + 1);
                    batch.push(SendRequest::send(message)).unwrap();
                }
                assert_eq!(batch.post().unwrap(), 4);
                let mut retired = Vec::new();
                while sends.in_flight() > 0 {
                    let sent = succeed(pair.left.send_completions());
                    retired.extend(sends.complete(&sent).map(|memory| memory.to_vec()));
                }
                assert_eq!(retired, [1, 3, 5].map(|seed| bytes(8, round + seed)));
                for expected in data {
                    assert_eq!(receive(&pair.right, &mut receives).1[..], expected);
                }
            }
        }
    }
}

#[test]
fn unreliable_connections_refuse_what_they_cannot_carry_out() {
    for pair in pairs(Transport::UnreliableConnected) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue::<Buffer>();
        let concurrent = pair.left.concurrent_send_queue::<Buffer>();
        let requests: [fn(Buffer, rdma_core::RemoteMemory) -> SendRequest<Buffer>; 3] = [
            SendRequest::read,
            |memory, to| SendRequest::fetch_and_add(memory, to, 1),
            |memory, to| SendRequest::compare_and_swap(memory, to, 0, 1),
        ];
        for request in requests {
            let memory = || pattern(&pair.domain, 8, 9);
            let refused = sends.post(request(memory(), there.remote()));
            let slot = concurrent.reserve().unwrap();
            let refused_too = concurrent.post(slot, request(memory(), there.remote()));
            for refused in [refused.unwrap_err(), refused_too.unwrap_err()] {
                let PostError { error, memory } = refused;
                assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
                assert_eq!(memory[..], bytes(8, 9), "it comes back");
            }
        }
        let write = SendRequest::write(pattern(&pair.domain, 8, 1), there.remote());
        carry_out(&pair.left, &mut sends, write);
        pair.check();
        assert_eq!(there.revoke().unwrap()[..], bytes(8, 1));
    }
}

/// Creates a datagram queue pair. Returns it with the destination of datagrams to it.
fn datagrams(
    domain: &ProtectionDomain,
    way: impl Fn(QueuePairBuilder) -> QueuePairBuilder,
) -> (QueuePair, Destination) {
    // The queue pair sends to itself, so the next completion of each of its two queues is checked.
    let queue = || domain.context().completion_queue(64).build().unwrap();
    let builder = way(domain.queue_pair()).send_completions(&queue());
    let prepared = builder.receive_completions(&queue()).build().unwrap();
    let queue_pair = prepared.activate(&DatagramOptions::new(QKEY)).unwrap();
    let here = queue_pair.address();
    let vector = AddressVector::new(here, here.gid, here.lid);
    let destination = Destination {
        handle: domain.address_handle(&vector).unwrap(),
        queue_pair: queue_pair.number(),
        qkey: QKEY,
    };
    (queue_pair, destination)
}

#[test]
fn datagrams_are_sent_and_refused_alike() {
    let elsewhere = common::context().protection_domain().unwrap();
    let [_, foreign] = ways(Transport::Datagram).map(|way| datagrams(&elsewhere, way).1);
    let outcomes = ways(Transport::Datagram).map(|way| {
        let domain = common::context().protection_domain().unwrap();
        let (queue_pair, to_itself) = datagrams(&domain, way);
        let mut receives = queue_pair.receive_queue();
        let there = exposed(&domain, 8, AccessFlags::REMOTE).remote();
        let halves = |seed| pattern(&domain, 16, seed).split_at(7);
        let mut outcomes: Vec<Outcome> = Vec::new();
        for request in [
            SendRequest::send(halves(0)).to(&to_itself),
            SendRequest::send_with_immediate(halves(1), 77).to(&to_itself),
            SendRequest::send(halves(2)).to(&to_itself).inline(),
            SendRequest::send(halves(3)).to(&to_itself).solicited(),
            SendRequest::send(halves(4)),
            SendRequest::send(halves(5)).to(&foreign),
            SendRequest::write(halves(6), there).to(&to_itself),
            SendRequest::read(halves(7), there).to(&to_itself),
            SendRequest::send(pattern(&domain, 64, 8).split_at(1))
                .to(&to_itself)
                .inline(),
            SendRequest::send(halves(9))
                .to(&to_itself)
                .remote_shared_queue(1),
            SendRequest::send(pattern(&elsewhere, 16, 10).split_at(7)).to(&to_itself),
            SendRequest::send(pattern(&domain, 16, 11).split_at(0)).to(&to_itself),
        ] {
            let mut sends = queue_pair.send_queue();
            let space = domain.allocate(DatagramHeader::LEN + 64).unwrap();
            if receives.in_flight() == 0 {
                receives.post(space).unwrap();
            }
            outcomes.push(match sends.post(request) {
                Ok(()) => {
                    let sent = succeed(queue_pair.send_completions());
                    let (left, right) = sends.complete(&sent).next().expect("the memory");
                    let (received, memory) = receive(&queue_pair, &mut receives);
                    let message = memory[DatagramHeader::LEN..received.len()].to_vec();
                    assert_eq!(message, [&left[..], &right[..]].concat());
                    Ok((message, received.immediate()))
                }
                Err(refused) => {
                    assert_eq!(sends.in_flight(), 0);
                    Err(refused.error.to_string())
                }
            });
        }
        outcomes
    });
    let [fast_path, general] = outcomes;
    assert_eq!(fast_path, general);
    let sent: Vec<_> = fast_path.iter().map(Result::is_ok).collect();
    let (yes, no) = (true, false);
    assert_eq!(
        sent,
        [yes, yes, yes, yes, no, no, no, no, no, no, no, yes],
        "{fast_path:?}"
    );
}

/// Posts more datagrams than the queue can hold at the same time, most of them unsignaled.
#[test]
fn datagrams_that_are_unsignaled_go_on_and_keep_their_order() {
    for way in ways(Transport::Datagram) {
        let domain = common::context().protection_domain().unwrap();
        let (queue_pair, to) = datagrams(&domain, |builder| way(builder).send_requests(4));
        let mut receives = queue_pair.receive_queue();
        let mut sends = queue_pair.send_queue();
        for round in 0..50 {
            for _ in 0..4 {
                let space = domain.allocate(DatagramHeader::LEN + 8).unwrap();
                receives.post(space).unwrap();
            }
            for seed in 0..4 {
                let message = pattern(&domain, 8, round + seed);
                let request = SendRequest::send(message).to(&to).unsignaled();
                sends.post(request).unwrap();
            }
            let full = SendRequest::send(pattern(&domain, 8, 0)).to(&to);
            let refused = sends.post(full).unwrap_err();
            assert!(matches!(refused.error, Error::QueueFull { .. }));
            let sent = succeed(queue_pair.send_completions());
            let memory: Vec<_> = sends
                .complete(&sent)
                .map(|memory| memory.to_vec())
                .collect();
            let expected: Vec<_> = (0..4).map(|seed| bytes(8, round + seed)).collect();
            assert_eq!(memory, expected);
            for message in expected {
                let (_, memory) = receive(&queue_pair, &mut receives);
                assert_eq!(memory[DatagramHeader::LEN..], message);
            }
        }
        assert_eq!(sends.in_flight(), 0);
    }
}

/// Checks that receives with one element take the fast path, and receives with an empty element the
/// general path.
#[test]
fn receives_of_shared_and_concurrent_queues_get_alike_messages() {
    let domain = common::context().protection_domain().unwrap();
    let queue = domain.shared_receive_queue(8).elements(2).build().unwrap();
    let shared = Pair::in_domain(
        &domain,
        |builder| builder.shared_receive_queue(&queue),
        &ConnectOptions::default(),
    );
    let own = Pair::in_domain(&domain, |builder| builder, &ConnectOptions::default());
    let concurrent = own.right.concurrent_receive_queue();
    for (index, at) in (0..).zip([8, 0, 3, 16]) {
        let space = || domain.allocate(16).unwrap().split_at(at);
        queue.post(space()).unwrap();
        concurrent.post(space()).unwrap();
        for pair in [&shared, &own] {
            let mut sends = pair.left.send_queue();
            let message = SendRequest::send(pattern(&domain, 16, index));
            carry_out(&pair.left, &mut sends, message);
        }
        let received = succeed(shared.right.receive_completions());
        let (left, right) = queue.complete(&received).unwrap();
        assert_eq!([&left[..], &right[..]].concat(), bytes(16, index));
        let received = succeed(own.right.receive_completions());
        let (left, right) = concurrent.complete(&received).unwrap();
        assert_eq!([&left[..], &right[..]].concat(), bytes(16, index));
    }
}
