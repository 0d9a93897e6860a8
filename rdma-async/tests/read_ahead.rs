//! Checks which long messages are read before the application receives them.

mod common;

use common::hostile::{Hostile, frame, kind};
use common::{bytes, listen, run};
use rdma_async::{LocalMrReadAccess, Rdma, RdmaBuilder};
use rdma_core::{AccessFlags, ExposedMemory, RemoteMemory};

const NONE: (u16, u16) = (0, 0);
/// Number of messages, and of their bytes, that are read ahead at most.
const AHEAD: usize = 16;
const AHEAD_BYTES: usize = 4 << 20;

/// Announces `count` long messages of `len` bytes to the victim. Returns their memory.
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

/// Receives the first message, and then, after the peer has changed the memory of the others,
/// these. Returns the number of messages with the bytes from before the change, of which the first
/// must come first.
async fn count_read_early(count: usize, len: usize) -> usize {
    let deep = |builder: RdmaBuilder| builder.receive_depth(64);
    let mut listener = listen(deep).await;
    let address = listener.local_address().unwrap();
    let (hostile, server) = tokio::join!(Hostile::connect(address), listener.accept());
    let (mut hostile, server): (_, Rdma) = (hostile, server.unwrap());
    let memory = announce(&mut hostile, count, len);
    // A message behind them, whose arrival shows that all have arrived.
    hostile.send(&frame(kind::REQUEST, NONE, 99, &[0; 16]));
    assert_eq!(hostile.receive().await[0], kind::REFUSE);

    let first = server.receive().await.unwrap();
    assert!(first.as_slice() == bytes(len, 0));
    // The peer is told of the end of the first read behind the reads that were begun before.
    let told = hostile.receive().await;
    assert_eq!(
        (told[0], told[8..16].to_vec()),
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
fn long_messages_behind_the_first_are_read_ahead_up_to_a_number() {
    run(async {
        assert_eq!(count_read_early(3, 10_000).await, 3);
        assert_eq!(count_read_early(AHEAD + 4, 10_000).await, 1 + AHEAD);
    });
}

#[test]
fn long_messages_behind_the_first_are_read_ahead_up_to_a_number_of_bytes() {
    run(async {
        let len = AHEAD_BYTES / 3;
        assert_eq!(count_read_early(6, len).await, 1 + 3);
    });
}
