//! Checks that the functions of a stream that must not copy bytes use the memory of the bytes, and
//! that a flush leaves nothing to be done by the writer.

mod common;

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use common::hostile::{Hostile, kind};
use common::{builder, bytes, listen, one_thread, pair, pattern, run};
use rdma_async::{LocalMrReadAccess, RdmaStream};
use rdma_core::RemoteMemory;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

/// Lengths of a region that is sent as a message, and of regions that the peer reads.
const LENGTHS: [usize; 3] = [1000, 100_000, 1 << 20];
/// Length from which a region does not fit into one message.
const LONG_LEN: usize = 32 << 10;

/// Creates two ends of a stream. Each end has a device value, and thus a pool, of its own.
async fn streams() -> (RdmaStream, RdmaStream) {
    let (client, server) = pair().await;
    (client.into_stream(), server.into_stream())
}

/// Returns the highest number of bytes of the regions that have existed at one end of a stream.
fn highest(stream: &RdmaStream) -> usize {
    stream.rdma().device().pool_statistics().highest
}

/// Allocates and drops a region of `len` bytes, and returns its address. The pool of the device
/// uses its memory for the next region of this length.
fn next_address(stream: &RdmaStream, len: usize) -> usize {
    pattern(stream.rdma(), len, 0).as_slice().as_ptr().addr()
}

#[test]
fn a_registered_region_is_announced_to_the_peer_at_its_own_address() {
    run(async {
        let mut listener = listen(|builder| builder).await;
        let address = listener.local_address().unwrap();
        let (mut peer, server) = tokio::join!(Hostile::connect(address), listener.accept());
        let mut stream = server.unwrap().into_stream();
        for len in LENGTHS.into_iter().filter(|len| *len >= LONG_LEN) {
            let region = pattern(stream.rdma(), len, 1);
            let address = region.as_slice().as_ptr().addr();
            stream.send_registered(region).await.unwrap();
            let message = peer.receive().await;
            assert_eq!(message[0], kind::RENDEZVOUS);
            let encoded = message[16..].try_into().unwrap();
            let memory = RemoteMemory::from_bytes(encoded);
            assert_eq!((memory.address, memory.len), (address as u64, len as u64));
        }
    });
}

#[test]
fn a_registered_region_is_sent_and_read_as_a_chunk_without_a_second_buffer() {
    for len in LENGTHS {
        run(async {
            let (mut client, mut server) = streams().await;
            let address = next_address(&server, len);
            let region = pattern(client.rdma(), len, 1);
            client.send_registered(region).await.unwrap();
            let chunk = server.read_chunk().await.unwrap().unwrap();
            assert!(*chunk == bytes(len, 1));
            if len >= LONG_LEN {
                assert_eq!(chunk.as_ptr().addr(), address, "not in the pool's memory");
            }
            for end in [&client, &server] {
                assert_eq!(highest(end), len.next_power_of_two(), "of {len} bytes");
            }
        });
    }
}

#[test]
fn bytes_are_lent_and_taken_as_a_chunk_at_the_address_at_which_they_arrived() {
    for len in LENGTHS {
        run(async {
            let (mut client, server) = streams().await;
            let arrival = next_address(&server, len);
            let region = pattern(client.rdma(), len, 2);
            client.send_registered(region).await.unwrap();
            let (mut reader, _writer) = server.into_split();
            let lent = reader.fill_buf().await.unwrap();
            assert_eq!(lent.len(), len);
            let address = lent.as_ptr().addr();
            assert!(
                len < LONG_LEN || address == arrival,
                "not in the pool's memory"
            );
            reader.consume(10);
            assert_eq!(
                reader.fill_buf().await.unwrap().as_ptr().addr(),
                address + 10
            );
            reader.consume(7);
            let chunk = reader.read_chunk().await.unwrap().unwrap();
            assert_eq!(chunk.as_ptr().addr(), address + 17);
            assert!(*chunk == bytes(len, 2)[17..]);
        });
    }
}

#[test]
fn flushed_bytes_arrive_while_the_thread_of_the_writer_does_nothing_else() {
    let lengths = [1, 10, 5000, 40_000, 300_000, 3];
    let total = lengths.iter().sum();
    let (address_sender, address) = channel();
    let (done_sender, done) = channel();
    let reader = thread::spawn(move || {
        one_thread().block_on(async {
            let mut listener = listen(|builder| builder).await;
            address_sender
                .send(listener.local_address().unwrap())
                .unwrap();
            let mut stream = listener.accept().await.unwrap().into_stream();
            for _ in 0..2 {
                let mut found = vec![0; total];
                stream.read_exact(&mut found).await.unwrap();
                assert!(found == bytes(total, 3));
                done_sender.send(()).unwrap();
            }
        });
    });
    let address = address.recv().unwrap();
    let runtime = one_thread();
    let mut stream = runtime.block_on(async {
        let rdma = builder().connect(address).await.unwrap();
        rdma.into_stream()
    });
    // In the second round, the reader has advertised a ring.
    for _ in 0..2 {
        runtime.block_on(async {
            let all = bytes(total, 3);
            let mut rest = &all[..];
            for len in lengths {
                let (part, after) = rest.split_at(len);
                stream.write_all(part).await.unwrap();
                rest = after;
            }
            stream.flush().await.unwrap();
        });
        // The runtime of the writer polls no task meanwhile.
        done.recv_timeout(Duration::from_secs(60))
            .expect("the bytes arrive");
    }
    reader.join().unwrap();
}
