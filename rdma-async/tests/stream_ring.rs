//! Checks streams whose long pieces arrive in a ring: memory of the reader into which the writer
//! writes directly.

mod common;

use std::time::Duration;

use common::{bytes, one_thread, pair_with, run, run_on, two_threads};
use rdma_async::{LocalMrReadAccess, RdmaBuilder, RdmaStream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

const SLOT_LEN: usize = 64 << 10;
const RING_LEN: usize = 16 * SLOT_LEN;

/// Creates two ends of a stream, the second of which has advertised a ring.
async fn streams_with_ring(
    configure: impl Fn(RdmaBuilder) -> RdmaBuilder,
) -> (RdmaStream, RdmaStream) {
    let (client, server) = pair_with(configure).await;
    let (mut client, mut server) = (client.into_stream(), server.into_stream());
    let first = bytes(SLOT_LEN, 9);
    let mut found = vec![0; SLOT_LEN];
    let (written, read) = tokio::join!(client.write_all(&first), server.read_exact(&mut found));
    written.unwrap();
    read.unwrap();
    assert!(found == first);
    // The answer arrives after the advertisement.
    server.write_all(b"ready").await.unwrap();
    client.read_exact(&mut [0; 5]).await.unwrap();
    (client, server)
}

/// Writes `part` repeatedly, until no byte is accepted for 200 ms. Returns the number of written
/// bytes.
async fn write_until_full(writer: &mut RdmaStream, part: &[u8]) -> usize {
    let mut written = 0;
    loop {
        let rest = &part[written % part.len()..];
        match timeout(Duration::from_millis(200), writer.write(rest)).await {
            Ok(accepted) => written += accepted.unwrap(),
            Err(_) => return written,
        }
    }
}

fn memory_in_use(stream: &RdmaStream) -> u64 {
    stream.rdma().device().pool_statistics().in_use as u64
}

#[test]
fn long_pieces_arrive_in_order_and_use_every_slot_repeatedly() {
    for runtime in [one_thread(), two_threads()] {
        run_on(runtime, async {
            let (client, server) = streams_with_ring(|builder| builder).await;
            assert!(memory_in_use(&server) >= RING_LEN as u64);
            let there = bytes(9_000_000, 1);
            let back = bytes(5_000_000, 2);
            let transfer = async |writer: RdmaStream, all: &[u8], expected: &[u8]| {
                let (mut reader, mut writer) = writer.into_split();
                let writes = async {
                    let lengths = [SLOT_LEN, 32 << 10, 100_000, 10, SLOT_LEN - 1, 5000, 400_000];
                    let (mut rest, mut lengths) = (all, lengths.iter().cycle());
                    while !rest.is_empty() {
                        let (part, after) = rest.split_at(rest.len().min(*lengths.next().unwrap()));
                        writer.write_all(part).await.unwrap();
                        rest = after;
                    }
                    writer.shutdown().await.unwrap();
                };
                let reads = async {
                    let (mut found, mut part) = (Vec::new(), vec![0; 70_001]);
                    for len in [70_001, 1000, 40_000].into_iter().cycle() {
                        match reader.read(&mut part[..len]).await.unwrap() {
                            0 => return found,
                            len => found.extend_from_slice(&part[..len]),
                        }
                    }
                    unreachable!("the lengths repeat without end")
                };
                let ((), found) = tokio::join!(writes, reads);
                assert!(found == expected);
            };
            tokio::join!(
                transfer(client, &there, &back),
                transfer(server, &back, &there)
            );
        });
    }
}

#[test]
fn a_slow_reader_stops_the_writer_at_the_ring_or_at_the_buffer() {
    let cases = [
        (1 << 20, RING_LEN),
        (8 << 20, RING_LEN),
        (128 << 10, 2 * SLOT_LEN),
    ];
    for (buffer, limit) in cases {
        run(async {
            let configure = |builder: RdmaBuilder| builder.stream_buffer(buffer);
            let (mut client, mut server) = streams_with_ring(configure).await;
            let part = bytes(SLOT_LEN, 4);
            for _ in 0..2 {
                let written = write_until_full(&mut client, &part).await;
                assert_eq!(written, limit, "with a buffer of {buffer} bytes");
                let mut found = vec![0; SLOT_LEN];
                for _ in 0..written / SLOT_LEN {
                    server.read_exact(&mut found).await.unwrap();
                    assert!(found == part);
                }
            }
        });
    }
}

#[test]
fn bytes_in_the_ring_can_be_read_as_chunks_and_lines() {
    run(async {
        let (mut client, mut server) = streams_with_ring(|builder| builder).await;
        let line = [vec![b'x'; 50_000], vec![b'\n']].concat();
        for _ in 0..3 {
            client.write_all(&line).await.unwrap();
        }
        client.shutdown().await.unwrap();
        let mut start = [0; 1000];
        server.read_exact(&mut start).await.unwrap();
        let mut found = start.to_vec();
        while found.len() < line.len() {
            let chunk = server.read_chunk().await.unwrap().unwrap();
            found.extend_from_slice(&chunk);
        }
        assert!(found == line);
        let (reader, _writer) = server.into_split();
        let mut lines = reader.lines();
        for _ in 0..2 {
            let found = lines.next_line().await.unwrap().unwrap();
            assert!(found.as_bytes() == &line[..50_000]);
        }
        assert_eq!(lines.next_line().await.unwrap(), None);
    });
}

#[test]
fn registered_regions_follow_pieces_in_the_ring() {
    run(async {
        let (mut client, mut server) = streams_with_ring(|builder| builder).await;
        let writes = async {
            for seed in 0..10 {
                client.write_all(&bytes(40_000, seed)).await.unwrap();
                let region = common::pattern(client.rdma(), 100_000, seed);
                assert_eq!(region.length(), 100_000);
                client.send_registered(region).await.unwrap();
            }
            client.shutdown().await.unwrap();
        };
        let mut found = Vec::new();
        let ((), read) = tokio::join!(writes, server.read_to_end(&mut found));
        read.unwrap();
        let expected: Vec<u8> = (0..10)
            .flat_map(|seed| [bytes(40_000, seed), bytes(100_000, seed)].concat())
            .collect();
        assert!(found == expected);
    });
}

#[test]
fn a_reader_that_takes_chunks_or_short_pieces_has_no_ring() {
    run(async {
        let (client, server) = pair_with(|builder| builder).await;
        let (mut client, mut server) = (client.into_stream(), server.into_stream());
        let all = bytes(3 << 20, 3);
        let writes = async {
            client.write_all(&all).await.unwrap();
            client.write_all(b"short").await.unwrap();
            client.shutdown().await.unwrap();
        };
        let reads = async {
            let mut found = Vec::new();
            while found.len() < all.len() {
                found.extend_from_slice(&server.read_chunk().await.unwrap().unwrap());
            }
            let mut rest = String::new();
            BufReader::new(&mut server)
                .read_line(&mut rest)
                .await
                .unwrap();
            assert_eq!(rest, "short");
            found
        };
        let ((), found) = tokio::join!(writes, reads);
        assert!(found == all);
        assert!(memory_in_use(&server) < RING_LEN as u64);
    });
}
