//! Checks that a peer that violates the protocol after a valid handshake is disconnected.

mod common;

use std::future::Future;
use std::io::ErrorKind;
use std::task::{Context, Waker};

use common::hostile::{Hostile, frame, kind};
use common::{assert_gone, bytes, check, join, layout, listen, pattern, poll_and_drop, run};
use rdma_async::{
    Error, LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaBuilder, RdmaListener, RdmaStream,
    RemoteMr,
};
use rdma_core::{AccessFlags, ExposedMemory, RemoteMemory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NONE: (u16, u16) = (0, 0);

fn plain(builder: RdmaBuilder) -> RdmaBuilder {
    builder.receive_depth(8).remote_memory_limit(1 << 20)
}

async fn victim(listener: &mut RdmaListener) -> (Hostile, Rdma) {
    let address = listener.local_address().unwrap();
    let (hostile, server) = tokio::join!(Hostile::connect(address), listener.accept());
    (hostile, server.unwrap())
}

fn token(len: u64) -> [u8; RemoteMemory::ENCODED_LEN] {
    let memory = RemoteMemory {
        address: 0x1000,
        len,
        rkey: 77,
    };
    memory.to_bytes()
}

fn request(size: u64, align: u64) -> Vec<u8> {
    [size.to_be_bytes(), align.to_be_bytes()].concat()
}

/// Asserts that `server` has ended the connection because of a message of the peer. `what` names
/// the message.
async fn assert_ends(server: &Rdma, what: &str) {
    let end = server.ended().await;
    let blamed =
        matches!(&end, Error::Disconnected { reason, .. } if reason.contains("the peer sent"));
    assert!(blamed, "{what}: {end}");
    // Every operation fails without waiting or panicking.
    assert!(server.receive_local_mr().await.is_err());
    assert!(server.request_remote_mr(layout(8)).await.is_err());
}

#[test]
fn invalid_frames_end_the_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let (good, good_server) = join(&mut listener, plain).await;
        let wrong: Vec<(&str, Vec<u8>)> = vec![
            ("a short message", vec![1, 0, 0]),
            ("one byte", vec![kind::CREDIT]),
            ("kind 0", frame(0, NONE, 0, &[])),
            ("kind 15", frame(15, NONE, 0, &[])),
            ("kind 255", frame(255, NONE, 0, &[9; 40])),
            ("credit with a body", frame(kind::CREDIT, NONE, 0, &[1])),
            (
                "data credits above all",
                frame(kind::CREDIT, (1, 0), 0, &[]),
            ),
            (
                "control credits above all",
                frame(kind::CREDIT, (0, 1), 0, &[]),
            ),
            (
                "the most credits",
                frame(kind::DATA, (u16::MAX, u16::MAX), 0, &[]),
            ),
            (
                "a lease that is none returned",
                frame(kind::RETURN, NONE, 1, &[]),
            ),
            (
                "a lease that is none released",
                frame(kind::RELEASE, NONE, u64::MAX, &[]),
            ),
            (
                "a rendezvous without a place",
                frame(kind::RENDEZVOUS, NONE, 1, &[1; 19]),
            ),
            (
                "a rendezvous of nothing",
                frame(kind::RENDEZVOUS, NONE, 1, &token(0)),
            ),
            (
                "a revocation with a body",
                frame(kind::REVOKE, NONE, 1, &[0]),
            ),
            ("a grant cut off", frame(kind::GRANT, NONE, 1, &token(8))),
            (
                "a refusal without reason",
                frame(kind::REFUSE, NONE, 1, &[255, 0, 0, 0, 0, 0, 0, 0, 0]),
            ),
            ("a refusal cut off", frame(kind::REFUSE, NONE, 1, &[0])),
            ("an offer cut off", frame(kind::OFFER, NONE, 1, &[0; 10])),
            ("a request cut off", frame(kind::REQUEST, NONE, 1, &[0; 15])),
            ("a ring cut off", frame(kind::RING, NONE, 0, &[0; 19])),
            (
                "a ring without slots",
                frame(kind::RING, NONE, 0, &token(0)),
            ),
            (
                "a ring with a part of a slot",
                frame(kind::RING, NONE, 0, &token((64 << 10) + 1)),
            ),
            (
                "a ring with too many slots",
                frame(kind::RING, NONE, 0, &token(65 << 16)),
            ),
            (
                "slots returned without a ring",
                frame(kind::RETURNED, NONE, 1, &[]),
            ),
            ("a return with a body", frame(kind::RETURNED, NONE, 1, &[0])),
            (
                "a doubtful outcome",
                frame(kind::RENDEZVOUS_DONE, NONE, 1, &[2]),
            ),
        ];
        for (what, bytes) in wrong {
            let (mut hostile, server) = victim(&mut listener).await;
            hostile.send(&bytes);
            assert_ends(&server, what).await;
            drop(hostile);
        }
        check(&good, &good_server).await;
        let (client, server) = join(&mut listener, plain).await;
        check(&client, &server).await;
    });
}

#[test]
fn a_message_longer_than_a_receive_ends_the_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let (mut hostile, server) = victim(&mut listener).await;
        hostile.send(&frame(kind::DATA, NONE, 0, &vec![0; 64 << 10]));
        let end = server.ended().await;
        let is_expected = matches!(end, Error::Work(_) | Error::Disconnected { .. });
        assert!(is_expected, "{end:?}");
    });
}

#[test]
fn more_data_messages_than_credits_end_the_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let floods = [
            frame(kind::DATA, NONE, 0, b"spam"),
            frame(kind::RENDEZVOUS, NONE, 1, &token(8000)),
            frame(kind::OFFER, NONE, 1, &token(8)),
        ];
        for flood in floods {
            let (mut hostile, server) = victim(&mut listener).await;
            for _ in 0..9 {
                hostile.send(&flood);
            }
            assert_ends(&server, "a flood").await;
        }
        // Messages within the credits are still received.
        let (mut hostile, server) = victim(&mut listener).await;
        for _ in 0..9 {
            hostile.send(&frame(kind::DATA, NONE, 0, b"spam"));
        }
        server.ended().await;
        for _ in 0..8 {
            assert_eq!(server.receive().await.unwrap().as_slice(), b"spam");
        }
        assert!(server.receive().await.is_err());
    });
}

#[test]
fn excessive_requests_are_refused_and_valid_requests_granted() {
    run(async {
        let mut listener = listen(plain).await;
        let (mut hostile, server) = victim(&mut listener).await;
        let absurd = [
            (0, 8),
            (u64::MAX, 8),
            (u64::MAX, u64::MAX),
            (1 << 62, 1),
            (8, 0),
            (8, 3),
            (8, u64::MAX),
            (1, 1 << 63),
            (1, 1 << 40),
            ((1 << 20) + 1, 1),
        ];
        for (id, (size, align)) in absurd.into_iter().enumerate() {
            hostile.send(&frame(
                kind::REQUEST,
                (0, 1),
                id as u64,
                &request(size, align),
            ));
            // Each frame returns the credit of the previous answer. The first frame has no previous
            // answer, so its credit is a violation.
            if id == 0 {
                server.ended().await;
                break;
            }
        }
        let (mut hostile, server) = victim(&mut listener).await;
        let mut owed = 0;
        for (id, (size, align)) in absurd.into_iter().enumerate() {
            let asked = request(size, align);
            hostile.send(&frame(kind::REQUEST, (0, owed), id as u64, &asked));
            let answer = hostile.receive().await;
            owed = 1;
            assert_eq!(
                answer[0],
                kind::REFUSE,
                "{size} bytes at {align}: {answer:?}"
            );
            assert_eq!(answer[8..16], (id as u64).to_be_bytes());
        }
        hostile.send(&frame(kind::REQUEST, (0, owed), 99, &request(64, 64)));
        assert_eq!(hostile.receive().await[0], kind::GRANT);
        assert!(server.failure().is_none());
    });
}

#[test]
fn a_peer_that_requests_without_returning_credits_is_disconnected() {
    run(async {
        let mut listener = listen(plain).await;
        let (mut hostile, server) = victim(&mut listener).await;
        // The peer returns no credit for the answers.
        let mut asked = 0;
        while server.failure().is_none() {
            hostile.send(&frame(kind::REQUEST, NONE, asked, &request(1, 1)));
            asked += 1;
            hostile.poll();
            tokio::task::yield_now().await;
        }
        assert_ends(&server, "requests without end").await;
        let (client, server) = join(&mut listener, plain).await;
        check(&client, &server).await;
    });
}

#[test]
fn unrequested_answers_without_memory_are_ignored() {
    run(async {
        let mut listener = listen(plain).await;
        let (mut hostile, server) = victim(&mut listener).await;
        hostile.send(&frame(kind::REFUSE, NONE, 13, &[0; 9]));
        hostile.send(&frame(kind::RENDEZVOUS_DONE, NONE, 14, &[1]));
        // A connection with a TCP connection ends only with the TCP connection.
        hostile.send(&frame(kind::CLOSE, NONE, 0, &[]));
        hostile.send(&frame(kind::REVOKE, NONE, 99, &[]));
        hostile.send(&frame(kind::DATA, NONE, 0, b"still here"));
        assert_eq!(server.receive().await.unwrap().as_slice(), b"still here");
        assert!(server.failure().is_none());
    });
}

#[test]
fn memory_that_was_not_requested_ends_the_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let (mut hostile, server) = victim(&mut listener).await;
        let grant = [&[0, 0, 0, 5][..], &token(8)].concat();
        hostile.send(&frame(kind::GRANT, NONE, 12, &grant));
        assert_ends(&server, "an unrequested grant").await;
    });
}

#[test]
fn wrong_answers_end_the_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let crooked = RemoteMemory {
            address: 0x1004,
            len: 64,
            rkey: 1,
        };
        let lease = [0, 0, 0, 1];
        let answers = [
            (kind::GRANT, [&lease[..], &token(63)].concat()),
            (kind::GRANT, [&lease[..], &token(u64::MAX)].concat()),
            (kind::GRANT, [&lease[..], &crooked.to_bytes()].concat()),
            (kind::RENDEZVOUS_DONE, vec![1]),
        ];
        for (kind, body) in answers {
            let (mut hostile, server) = victim(&mut listener).await;
            let answering = async {
                let asked = hostile.receive().await;
                let id = u64::from_be_bytes(asked[8..16].try_into().unwrap());
                hostile.send(&frame(kind, NONE, id, &body));
            };
            let (outcome, ()) = tokio::join!(server.request_remote_mr(layout(64)), answering);
            assert!(
                matches!(outcome, Err(Error::Disconnected { .. })),
                "{outcome:?}"
            );
            assert_ends(&server, "a wrong answer").await;
        }
    });
}

#[test]
fn a_rendezvous_with_an_invalid_key_ends_the_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let (mut hostile, server) = victim(&mut listener).await;
        hostile.send(&frame(kind::RENDEZVOUS, NONE, 1, &token(8000)));
        let outcome = server.receive().await;
        assert!(matches!(outcome, Err(Error::Work(_))), "{outcome:?}");
        assert!(server.failure().is_some());
        // A message above the limit is refused, and the connection remains open.
        let (mut hostile, server) = victim(&mut listener).await;
        hostile.send(&frame(kind::RENDEZVOUS, NONE, 7, &token(u64::MAX)));
        let outcome = server.receive().await;
        assert!(
            matches!(outcome, Err(Error::InvalidArgument { .. })),
            "{outcome:?}"
        );
        let answer = hostile.receive().await;
        assert_eq!((answer[0], answer[16]), (kind::RENDEZVOUS_DONE, 0));
        assert!(server.failure().is_none());
    });
}

#[test]
fn operations_wait_while_a_peer_without_receives_occupies_all_slots() {
    run(async {
        let small = |builder: RdmaBuilder| plain(builder).send_depth(8);
        let mut listener = listen(small).await;
        let address = listener.local_address().unwrap();
        let (hostile, server) = tokio::join!(Hostile::without_receives(address), listener.accept());
        let server = server.unwrap();
        let message = pattern(&server, 8, 0);
        let mut sends: Vec<_> = (0..8).map(|_| Box::pin(server.send(&message))).collect();
        let mut context = Context::from_waker(Waker::noop());
        for send in &mut sends {
            assert!(send.as_mut().poll(&mut context).is_pending());
        }
        // Waiting operations use no resources, and dropping their futures leaks none.
        let mut target = pattern(&server, 8, 0);
        let memory = RemoteMemory {
            address: 0x1000,
            len: 8,
            rkey: 1,
        };
        for _ in 0..100 {
            let mut remote = RemoteMr::from_token(memory);
            assert!(poll_and_drop(server.fetch_and_add(&mut remote, 1)).is_none());
            assert!(poll_and_drop(server.compare_and_swap(&mut remote, 0, 1)).is_none());
            assert!(poll_and_drop(server.read(&mut target, &remote)).is_none());
        }
        assert!(target.try_as_mut_slice().is_ok());
        // The future of an operation can be dropped while the operation claims memory.
        drop(sends);
        assert!(message.try_as_slice().is_ok());
        let ending = server.ended();
        let (end, ()) = tokio::join!(ending, async move { drop(hostile) });
        assert_gone(&end);
    });
}

#[test]
fn a_request_without_an_answer_times_out() {
    run(async {
        let limit = std::time::Duration::from_millis(200);
        let mut listener = listen(|builder| plain(builder).response_timeout(limit)).await;
        let (mut hostile, server) = victim(&mut listener).await;
        let outcome = server.request_remote_mr(layout(8)).await;
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        // The answer arrives after the timeout, so the memory is released.
        let asked = hostile.receive().await;
        let grant = [&[0, 0, 0, 9][..], &token(8)].concat();
        let id = u64::from_be_bytes(asked[8..16].try_into().unwrap());
        hostile.send(&frame(kind::GRANT, NONE, id, &grant));
        assert_eq!(hostile.receive().await[0], kind::RELEASE);
        server.send(&pattern(&server, 8, 0)).await.unwrap();
        assert!(server.failure().is_none());
    });
}

#[test]
fn more_control_messages_than_credits_end_the_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let (good, good_server) = join(&mut listener, plain).await;
        let (mut hostile, server) = victim(&mut listener).await;
        // The server ignores each answer. The peer gives no credits, so the server cannot return
        // the credits of the answers, and the peer soon sends more answers than it has credits for.
        for id in 0.. {
            if server.failure().is_some() {
                break;
            }
            hostile.send(&frame(kind::REFUSE, NONE, id, &[0; 9]));
            drop(hostile.poll());
            tokio::task::yield_now().await;
        }
        assert_ends(&server, "answers without credits").await;
        check(&good, &good_server).await;
    });
}

const SLOT_LEN: usize = 64 << 10;

/// Returns the immediate data that announces a piece in a slot of a ring.
fn announcement(slot: u32, len: usize) -> u32 {
    slot << 18 | len as u32
}

/// Returns the part of a ring that is the slot with this number.
fn slot(ring: RemoteMemory, number: u32) -> RemoteMemory {
    RemoteMemory {
        address: ring.address + u64::from(number) * SLOT_LEN as u64,
        len: SLOT_LEN as u64,
        rkey: ring.rkey,
    }
}

/// Returns a hostile peer, the stream of its victim, the ring of the victim, and memory that must
/// exist until the end of the test.
async fn victim_with_ring(
    listener: &mut RdmaListener,
) -> (Hostile, RdmaStream, RemoteMemory, ExposedMemory) {
    let (mut hostile, server) = victim(listener).await;
    let mut stream = server.into_stream();
    let mut memory = hostile.domain.allocate(SLOT_LEN).unwrap();
    memory.copy_from_slice(&bytes(SLOT_LEN, 1));
    let memory = memory.expose(AccessFlags::REMOTE_READ).unwrap();
    let place = memory.remote().to_bytes();
    hostile.send(&frame(kind::RENDEZVOUS, NONE, 1, &place));
    let mut found = vec![0; SLOT_LEN];
    stream.read_exact(&mut found).await.unwrap();
    assert!(found == bytes(SLOT_LEN, 1));
    let ring = loop {
        let message = hostile.receive().await;
        if message[0] == kind::RING {
            break RemoteMemory::from_bytes(message[16..36].try_into().unwrap());
        }
    };
    assert_eq!(ring.len, 16 * SLOT_LEN as u64);
    (hostile, stream, ring, memory)
}

#[test]
fn pieces_in_other_slots_or_of_invalid_lengths_end_only_their_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let (good, good_server) = join(&mut listener, plain).await;
        let wrong = [
            ("a slot behind the ring", vec![announcement(16, 100)]),
            ("the last slot of any ring", vec![announcement(63, 100)]),
            ("no such slot", vec![announcement(64, 100)]),
            ("the highest bit", vec![1 << 31 | announcement(0, 100)]),
            ("no bytes", vec![announcement(0, 0)]),
            ("too long a piece", vec![announcement(0, SLOT_LEN + 1)]),
            (
                "a slot twice",
                vec![announcement(3, 100), announcement(3, 100)],
            ),
        ];
        for (what, announcements) in wrong {
            let (mut hostile, stream, ring, _memory) = victim_with_ring(&mut listener).await;
            for immediate in announcements {
                hostile.write(&[1; 100], slot(ring, 0), immediate);
            }
            assert_ends(stream.rdma(), what).await;
        }
        let (mut hostile, mut stream, ring, _memory) = victim_with_ring(&mut listener).await;
        // Beyond the end of the ring, the device refuses the write.
        hostile.write(&[1; 100], slot(ring, 16), announcement(0, 100));
        while hostile.in_flight() > 0 {
            hostile.poll();
            tokio::task::yield_now().await;
        }
        drop(hostile);
        stream.rdma().ended().await;
        assert!(stream.read(&mut [0; 100]).await.is_err());
        check(&good, &good_server).await;
    });
}

#[test]
fn rings_that_are_advertised_twice_and_slots_returned_twice_end_the_connection() {
    run(async {
        let mut listener = listen(plain).await;
        let (mut hostile, server) = victim(&mut listener).await;
        let ring = frame(kind::RING, NONE, 0, &token(2 * SLOT_LEN as u64));
        hostile.send(&ring);
        hostile.send(&ring);
        assert_ends(&server, "a second ring").await;
        for mask in [0, 1 << 2, 1 << 63, u64::MAX] {
            let (mut hostile, server) = victim(&mut listener).await;
            hostile.send(&ring);
            hostile.send(&frame(kind::RETURNED, NONE, mask, &[]));
            assert_ends(&server, "slots that were not in use").await;
        }
        // The write of the victim has a key that does not exist, which the device refuses.
        let (mut hostile, server) = victim(&mut listener).await;
        let mut stream = server.into_stream();
        hostile.send(&ring);
        hostile.send(&frame(kind::DATA, NONE, 0, b"ring sent"));
        stream.read_exact(&mut [0; 9]).await.unwrap();
        while stream.write_all(&[1; SLOT_LEN]).await.is_ok() {
            hostile.poll();
            tokio::task::yield_now().await;
        }
        stream.rdma().ended().await;
    });
}

#[test]
fn announced_bytes_that_the_peer_has_not_written_are_zero() {
    run(async {
        let mut listener = listen(plain).await;
        // Memory with the bytes of another program part, which the ring may reuse.
        let (other, _other_server) = join(&mut listener, plain).await;
        drop(pattern(&other, 16 * SLOT_LEN, 9));
        let (mut hostile, mut stream, ring, _memory) = victim_with_ring(&mut listener).await;
        hostile.write(&[7], slot(ring, 3), announcement(3, SLOT_LEN));
        let mut found = vec![1; SLOT_LEN];
        stream.read_exact(&mut found).await.unwrap();
        assert!(found[0] == 7 && found[1..].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn pieces_that_have_arrived_in_the_ring_are_read_after_the_peer_is_lost() {
    run(async {
        let mut listener = listen(plain).await;
        let (mut hostile, mut stream, ring, _memory) = victim_with_ring(&mut listener).await;
        let pieces = [(5, 40_000), (0, SLOT_LEN), (15, 1)];
        for (number, len) in pieces {
            let piece = bytes(len, number as u8);
            hostile.write(&piece, slot(ring, number), announcement(number, len));
        }
        hostile.send(&frame(kind::DATA, NONE, 0, b"end"));
        while hostile.in_flight() > 0 {
            hostile.poll();
            tokio::task::yield_now().await;
        }
        drop(hostile);
        stream.rdma().ended().await;
        for (number, len) in pieces {
            let mut found = vec![0; len];
            stream.read_exact(&mut found).await.unwrap();
            assert!(found == bytes(len, number as u8), "slot {number}");
        }
        let mut found = [0; 3];
        stream.read_exact(&mut found).await.unwrap();
        assert_eq!(&found, b"end");
        let error = stream.read(&mut found).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
}
