//! Checks which long messages are read before the application receives them.

mod common;

use common::hostile::{Hostile, frame, kind};
use common::{bytes, listen, run};
use rdma_async::{LocalMrReadAccess, Rdma, RdmaBuilder};
use rdma_core::{AccessFlags, ExposedMemory, RemoteMemory};

const NONE: (u16, u16) = (0, 0);
/// Maximum number of messages that are read ahead.
const AHEAD: usize = 16;
/// Maximum number of bytes that are read ahead.
const AHEAD_BYTES: usize = 4 << 20;

/// Offers `count` long messages of `len` bytes to the peer. Returns their memory.
fn announce(hostile: &mut Hostile, count: usize, len: usize) -> Vec<ExposedMemory> {
    let memory: Vec<_> = (0..count)
        .map(|_| {
            let mut buffer = hostile.domain.allocate(len).unwrap();
            buffer.copy_from_slice(&bytes(len, 0));
            buffer.expose(AccessFlags::REMOTE_READ).unwrap()
        })
        .collect();
    for (id, memory) in memory.iter().enumerate() {
        let remote: [u8; RemoteMemory::ENCODED_LEN] = memory.remote().to_bytes();
        hostile.send(&frame(kind::RENDEZVOUS, NONE, id as u64, &remote));
    }
    memory
}

/// Receives the first of `count` messages, at an end with the settings of `configure`, changes the
/// memory of the other messages at the peer, and receives the other messages. Returns the number of
/// messages that were read before the change.
async fn count_read_early(
    count: usize,
    len: usize,
    configure: impl Fn(RdmaBuilder) -> RdmaBuilder,
) -> usize {
    let mut listener = listen(|builder| configure(builder.receive_depth(64))).await;
    let address = listener.local_address().unwrap();
    let (hostile, server) = tokio::join!(Hostile::connect(address), listener.accept());
    let (mut hostile, server): (_, Rdma) = (hostile, server.unwrap());
    let memory = announce(&mut hostile, count, len);
    // This message is sent last, so its arrival proves that all messages have arrived.
    hostile.send(&frame(kind::REQUEST, NONE, 99, &[0; 16]));
    assert_eq!(hostile.receive().await[0], kind::REFUSE);

    let first = server.receive().await.unwrap();
    assert!(first.as_slice() == bytes(len, 0));
    // The message about the end of the first read arrives after the requests of the reads ahead.
    let message = hostile.receive().await;
    assert_eq!(
        (message[0], message[8..16].to_vec()),
        (kind::RENDEZVOUS_DONE, vec![0; 8])
    );
    for memory in &memory {
        memory.write_at(0, &bytes(len, 1)).unwrap();
    }
    let mut early = 1;
    for at in 1..count {
        let message = server.receive().await.unwrap();
        if message.as_slice() == bytes(len, 0) {
            assert_eq!(early, at, "a message was read before an earlier one");
            early += 1;
        } else {
            assert!(message.as_slice() == bytes(len, 1), "message {at}");
        }
    }
    early
}

#[test]
fn later_long_messages_are_read_ahead_up_to_a_number_of_messages() {
    run(async {
        assert_eq!(count_read_early(3, 10_000, |builder| builder).await, 3);
        assert_eq!(
            count_read_early(AHEAD + 4, 10_000, |builder| builder).await,
            1 + AHEAD
        );
    });
}

#[test]
fn later_long_messages_are_read_ahead_up_to_a_number_of_bytes() {
    run(async {
        let len = AHEAD_BYTES / 3;
        assert_eq!(count_read_early(6, len, |builder| builder).await, 1 + 3);
    });
}

#[test]
fn the_limits_of_reading_ahead_are_settings() {
    run(async {
        for (messages, bytes, ahead) in [(0, AHEAD_BYTES, 0), (2, AHEAD_BYTES, 2), (8, 35_000, 3)] {
            let configure = |builder: RdmaBuilder| builder.read_ahead(messages, bytes);
            assert_eq!(count_read_early(6, 10_000, configure).await, 1 + ahead);
        }
    });
}
