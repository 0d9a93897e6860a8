//! Checks connections as streams of bytes.

mod common;

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::Pin;
use std::process::Command;
use std::task::Poll;
use std::time::Duration;

use common::{bytes, layout, one_thread, pair, pair_with, pattern, run, run_on, two_threads};
use futures_util::StreamExt;
use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaBuilder, RdmaStream};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep, timeout};

async fn streams() -> (RdmaStream, RdmaStream) {
    streams_with(|builder| builder).await
}

async fn streams_with(configure: impl Fn(RdmaBuilder) -> RdmaBuilder) -> (RdmaStream, RdmaStream) {
    let (client, server) = pair_with(configure).await;
    (client.into_stream(), server.into_stream())
}

/// Generator of pseudo-random numbers, equal in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    /// Returns a length that is often short and sometimes longer than a piece of a stream.
    fn length(&mut self) -> usize {
        let limit = [20, 100, 5_000, 40_000, 400_000][self.below(5)];
        1 + self.below(limit)
    }
}

async fn write_all_in_parts(
    mut writer: impl AsyncWrite + Unpin,
    bytes: &[u8],
    mut numbers: Numbers,
) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = numbers.length().min(rest.len());
        let (part, after) = rest.split_at(len);
        match numbers.below(4) {
            0 => {
                let slices = [
                    IoSlice::new(&part[..len / 3]),
                    IoSlice::new(&part[len / 3..]),
                ];
                let written = writer.write_vectored(&slices).await.unwrap();
                rest = &rest[written..];
                continue;
            }
            1 => {
                writer.write_all(part).await.unwrap();
                writer.flush().await.unwrap();
            }
            _ => writer.write_all(part).await.unwrap(),
        }
        rest = after;
    }
    writer.shutdown().await.unwrap();
}

async fn read_all_in_parts(mut reader: impl AsyncRead + Unpin, mut numbers: Numbers) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = vec![0; 400_000];
    loop {
        let limit = numbers.length();
        match reader.read(&mut part[..limit]).await.unwrap() {
            0 => return all,
            len => all.extend_from_slice(&part[..len]),
        }
    }
}

#[test]
fn bytes_arrive_in_order_for_all_lengths_of_writes_and_reads() {
    for runtime in [one_thread(), two_threads()] {
        run_on(runtime, async {
            let (mut client, mut server) = streams().await;
            let there = bytes(8 << 20, 1);
            let back = bytes(5 << 20, 2);
            let (client_reads, client_writes) = client.split();
            let (server_reads, server_writes) = server.split();
            let ((), (), at_server, at_client) = tokio::join!(
                write_all_in_parts(client_writes, &there, Numbers(11)),
                write_all_in_parts(server_writes, &back, Numbers(12)),
                read_all_in_parts(server_reads, Numbers(13)),
                read_all_in_parts(client_reads, Numbers(14)),
            );
            assert!(at_server == there && at_client == back);
        });
    }
}

#[test]
fn one_direction_ends_and_the_other_continues() {
    run(async {
        let (mut client, mut server) = streams().await;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let error = client.write(b"more").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let mut question = String::new();
        server.read_to_string(&mut question).await.unwrap();
        assert_eq!(question, "question");
        assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0, "the end stays");
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    });
}

#[test]
fn written_bytes_arrive_after_the_writer_was_dropped() {
    run(async {
        let (mut client, mut server) = streams().await;
        // The bytes exceed the credits, and include long pieces, which the peer reads.
        let all = bytes(900_000, 3);
        for part in all[..600_000].chunks(1000) {
            client.write_all(part).await.unwrap();
        }
        client.write_all(&all[600_000..]).await.unwrap();
        drop(client);
        // A dropped connection without unread bytes is kept for a shorter time.
        sleep(Duration::from_millis(1500)).await;
        let mut found = Vec::new();
        server.read_to_end(&mut found).await.unwrap();
        assert!(found == all);
    });
}

#[test]
fn a_writer_waits_while_the_peer_does_not_read() {
    const BUFFER: usize = 256 << 10;
    for len in [100, 4000, 100_000] {
        run(async {
            let (mut client, mut server) =
                streams_with(|builder| builder.stream_buffer(BUFFER)).await;
            let part = bytes(len, 4);
            let mut written = 0;
            while let Ok(outcome) = timeout(Duration::from_millis(200), client.write(&part)).await {
                written += outcome.unwrap();
                // The limit is the sum of the buffer, the peer's receives, and the last piece.
                assert!(written <= BUFFER + 64 * 4352 + (256 << 10), "{written}");
            }
            assert!(written >= BUFFER, "{written} bytes of writes of {len}");
            let mut found = 0;
            while found < written {
                let chunk = server.read_chunk().await.unwrap().unwrap();
                for (at, byte) in chunk.iter().enumerate() {
                    assert_eq!(*byte, part[(found + at) % len], "byte {}", found + at);
                }
                found += chunk.len();
            }
            // The writer continues.
            timeout(Duration::from_secs(60), client.write_all(&part))
                .await
                .expect("there is room again")
                .unwrap();
        });
    }
}

#[test]
fn small_writes_of_one_turn_are_one_message() {
    run_on(one_thread(), async {
        let (client, server) = pair().await;
        let mut client = client.into_stream();
        for _ in 0..10 {
            client.write_all(b"0123456789").await.unwrap();
        }
        // The first write is sent immediately, the others at the end of the turn.
        let mut found = Vec::new();
        let mut messages = 0;
        while found.len() < 100 {
            found.extend_from_slice(server.receive().await.unwrap().as_slice());
            messages += 1;
        }
        assert!(found.chunks(10).all(|part| part == b"0123456789"));
        assert_eq!(messages, 2);
    });
}

#[test]
fn a_broken_connection_fails_reads_and_writes_like_tcp() {
    run(async {
        let (client, server) = pair().await;
        let mut client = client.into_stream();
        let message = pattern(&server, 10, 0);
        server.send(&message).await.unwrap();
        // Ends the connection without ending the stream.
        drop(server);
        client.rdma().ended().await;
        let mut found = [0; 10];
        client.read_exact(&mut found).await.unwrap();
        assert_eq!(
            found[..],
            bytes(10, 0),
            "bytes that arrived before are read"
        );
        let error = client.read(&mut found).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        let error = client.write(b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    });
}

#[test]
fn flushing_after_the_peer_has_closed_fails_only_if_written_bytes_were_lost() {
    run(async {
        let (mut client, mut server) = streams().await;
        client.write_all(b"all").await.unwrap();
        client.flush().await.unwrap();
        let mut found = [0; 3];
        server.read_exact(&mut found).await.unwrap();
        drop(server);
        client.rdma().ended().await;
        client.flush().await.expect("nothing was lost");
        client.shutdown().await.expect("nothing was lost");

        // The bytes exceed the capacity of the peer's receives.
        let (mut client, server) = streams().await;
        let part = bytes(4000, 5);
        while let Ok(outcome) = timeout(Duration::from_millis(200), client.write(&part)).await {
            outcome.unwrap();
        }
        drop(server);
        client.rdma().ended().await;
        for _ in 0..2 {
            let error = client.flush().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            let error = client.shutdown().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
        }
    });
}

#[test]
fn a_waiting_writer_and_reader_end_with_the_connection() {
    run(async {
        let (client, server) = pair_with(|builder| builder.stream_buffer(64 << 10)).await;
        let (mut reader, mut writer) = client.into_stream().into_split();
        let reading = tokio::spawn(async move { reader.read(&mut [0; 8]).await });
        let writing = tokio::spawn(async move {
            loop {
                writer.write_all(&[0; 100_000]).await?;
            }
            #[expect(unreachable_code, reason = "names the type")]
            Ok::<(), std::io::Error>(())
        });
        sleep(Duration::from_millis(100)).await;
        assert!(!reading.is_finished() && !writing.is_finished());
        drop(server);
        let error = reading.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    });
}

#[test]
fn registered_regions_are_written_and_chunks_read_without_copies() {
    run(async {
        let (mut client, mut server) = streams().await;
        let lengths = [1, 100, 4096, 5000, 70_000, 1 << 20, 3 << 20];
        let sends = async {
            for (seed, len) in lengths.into_iter().enumerate() {
                client.write_all(&[0xaa; 7]).await.unwrap();
                let region = pattern(client.rdma(), len, seed as u8);
                client.send_registered(region).await.unwrap();
            }
            let mut region = client.rdma().alloc_local_mr(layout(8)).unwrap();
            region.as_mut_slice().fill(1);
            client.send_registered(region).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let receives = async {
            let mut all = Vec::new();
            while let Some(chunk) = server.read_chunk().await.unwrap() {
                all.extend_from_slice(&chunk);
            }
            all
        };
        let ((), found) = tokio::join!(sends, receives);
        let mut expected = Vec::new();
        for (seed, len) in lengths.into_iter().enumerate() {
            expected.extend_from_slice(&[0xaa; 7]);
            expected.extend_from_slice(&bytes(len, seed as u8));
        }
        expected.extend_from_slice(&[1; 8]);
        assert!(found == expected);
    });
}

#[test]
fn lines_are_read_out_of_the_memory_in_which_they_arrived() {
    run(async {
        let (mut client, server) = streams().await;
        client.write_all(b"one\ntwo\nth").await.unwrap();
        client.flush().await.unwrap();
        client.write_all(b"ree\n").await.unwrap();
        client.shutdown().await.unwrap();
        let (reader, _writer) = server.into_split();
        let mut lines = reader.lines();
        for expected in ["one", "two", "three"] {
            assert_eq!(lines.next_line().await.unwrap().unwrap(), expected);
        }
        assert_eq!(lines.next_line().await.unwrap(), None);
    });
}

#[test]
fn halves_of_one_stream_are_reunited_and_others_are_returned() {
    run(async {
        let (client, server) = streams().await;
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        let refused = client_reads.reunite(server_writes).unwrap_err();
        assert!(refused.to_string().contains("different streams"));
        let (client_reads, server_writes) = (refused.0, refused.1);
        let mut client = client_reads.reunite(client_writes).unwrap();
        let mut server = server_reads.reunite(server_writes).unwrap();
        client.write_all(b"still").await.unwrap();
        let mut found = [0; 5];
        server.read_exact(&mut found).await.unwrap();
        assert_eq!(&found, b"still");
    });
}

#[test]
fn dropping_the_writing_half_ends_its_direction() {
    run(async {
        let (client, mut server) = streams().await;
        let (mut reads, mut writes) = client.into_split();
        writes.write_all(b"last").await.unwrap();
        drop(writes);
        let mut found = Vec::new();
        server.read_to_end(&mut found).await.unwrap();
        assert_eq!(found, b"last");
        server.write_all(b"reply").await.unwrap();
        server.shutdown().await.unwrap();
        found.clear();
        reads.read_to_end(&mut found).await.unwrap();
        assert_eq!(found, b"reply");
    });
}

#[test]
fn a_listener_is_a_stream_of_connections() {
    run(async {
        let mut listener = common::listen(|builder| builder).await;
        let address = listener.local_address().unwrap();
        let connect = || async move { common::builder().connect(address).await.unwrap() };
        let (_first, accepted) = tokio::join!(connect(), listener.next());
        let _accepted: Rdma = accepted.unwrap().unwrap();
        let mut incoming = listener.incoming();
        let (second, accepted) = tokio::join!(connect(), incoming.next());
        let mut accepted: RdmaStream = accepted.unwrap().unwrap();
        let mut second = second.into_stream();
        second.write_all(b"hello").await.unwrap();
        second.shutdown().await.unwrap();
        let mut found = String::new();
        accepted.read_to_string(&mut found).await.unwrap();
        assert_eq!(found, "hello");
        // No other peer connects.
        let next = poll_fn(|cx| Poll::Ready(Pin::new(&mut incoming).poll_next_unpin(cx))).await;
        assert!(next.is_pending());
    });
}

#[test]
fn a_reader_continues_to_fail_after_a_piece_that_it_cannot_receive() {
    run(async {
        let (mut writer, mut reader) = streams_with(|builder| builder.message_limit(100_000)).await;
        writer.write_all(&bytes(50_000, 1)).await.unwrap();
        writer.write_all(&bytes(200_000, 2)).await.unwrap();
        writer.write_all(b"after the missing bytes").await.unwrap();
        let mut received = vec![0; 50_000];
        reader.read_exact(&mut received).await.unwrap();
        assert!(received == bytes(50_000, 1));
        let first = reader.read_u8().await.unwrap_err().to_string();
        assert!(first.contains("100000"), "{first}");
        for _ in 0..3 {
            let next = reader.read_u8().await.unwrap_err();
            assert_eq!(next.to_string(), first);
        }
    });
}

#[test]
fn a_request_that_the_device_refuses_ends_the_stream_with_an_error() {
    const NAME: &str = "a_request_that_the_device_refuses_ends_the_stream_with_an_error";
    if std::env::var_os("SOFTROCE_FAIL").is_none() {
        if common::context().name() == "softroce0" {
            for number in [20, 21, 40] {
                let failure = format!("ibv_post_send:{number}:ENOMEM");
                let status = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", NAME, "--nocapture"])
                    .env("SOFTROCE_FAIL", failure)
                    .status()
                    .expect("the test runs again");
                assert!(status.success(), "request {number} fails: {status}");
            }
        }
        return;
    }
    run(async {
        let (client, mut server) = streams().await;
        let (mut reader, mut writer) = client.into_split();
        let reading =
            tokio::spawn(async move { while let Ok(Some(_)) = server.read_chunk().await {} });
        let error = loop {
            let outcome = writer.write_all(&[1; 50_000]).await;
            let outcome = match outcome {
                Ok(()) => writer.write_all(&[2; 3000]).await,
                failed => failed,
            };
            if let Err(error) = outcome {
                break error;
            }
        };
        // The peer is in this process, so the failed request may be the peer's.
        let expected = [ErrorKind::OutOfMemory, ErrorKind::BrokenPipe];
        assert!(expected.contains(&error.kind()), "{error}");
        // If the peer's request failed, the peer has ended its direction first.
        assert!(!matches!(reader.read_chunk().await, Ok(Some(_))));
        reading.await.unwrap();
    });
}
