//! Checks that the memory of a stream whose reader has stopped is bounded as documented.

mod common;

use std::time::Duration;

use common::{bytes, pair_with, run};
use rdma_async::{PoolStatistics, RdmaBuilder, RdmaStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Default of [`RdmaBuilder::message_length`].
const MESSAGE_LEN: usize = 4352;
/// Maximum length of a long piece of a stream without a ring.
const PIECE_LEN: usize = 256 << 10;

/// Creates two ends of a stream. Each end has a device value, and thus a pool, of its own.
async fn streams_with(configure: impl Fn(RdmaBuilder) -> RdmaBuilder) -> (RdmaStream, RdmaStream) {
    let (client, server) = pair_with(configure).await;
    (client.into_stream(), server.into_stream())
}

fn memory_of(stream: &RdmaStream) -> PoolStatistics {
    stream.rdma().device().pool_statistics()
}

/// Writes `part` repeatedly, with a flush after each write, until no byte is accepted for 200 ms.
/// Returns the number of written bytes.
async fn write_until_full(writer: &mut RdmaStream, part: &[u8]) -> usize {
    let mut written = 0;
    loop {
        let rest = &part[written % part.len()..];
        match timeout(Duration::from_millis(200), writer.write(rest)).await {
            Ok(accepted) => written += accepted.unwrap(),
            Err(_) => return written,
        }
        writer.flush().await.unwrap();
    }
}

#[test]
fn memory_of_a_writer_is_bounded_by_the_buffer_for_all_lengths_of_writes() {
    let cases = [
        (64 << 10, 8, 10),
        (256 << 10, 2, 100),
        (64 << 10, 64, 5000),
        (1 << 20, 8, 100_000),
    ];
    for (buffer, depth, len) in cases {
        run(async {
            let configure =
                |builder: RdmaBuilder| builder.stream_buffer(buffer).receive_depth(depth);
            let (mut client, mut server) = streams_with(configure).await;
            let part = bytes(len, 1);
            let written = write_until_full(&mut client, &part).await;
            // The last piece can exceed the buffer.
            let limit = buffer + usize::from(depth) * MESSAGE_LEN + PIECE_LEN;
            assert!(
                (buffer..=limit).contains(&written),
                "{written} bytes with a buffer of {buffer} bytes"
            );
            // The size of each region is rounded up to a power of two.
            let used = memory_of(&client).highest;
            assert!(used <= 2 * limit, "{used} bytes for writes of {len} bytes");
            assert_eq!(memory_of(&server).highest, 0);
            let mut found = vec![0; written];
            server.read_exact(&mut found).await.unwrap();
            let expected = part.iter().cycle().take(written);
            assert!(found.iter().eq(expected));
        });
    }
}

#[test]
fn memory_of_a_reader_is_bounded_by_the_limits_of_reading_ahead() {
    const PIECES: usize = 8;
    for (messages, ahead) in [(0, 4 << 20), (16, 2 * PIECE_LEN), (3, 4 << 20)] {
        run(async {
            let configure = |builder: RdmaBuilder| {
                let builder = builder.stream_buffer(PIECES * PIECE_LEN);
                builder.read_ahead(messages, ahead)
            };
            let (mut client, mut server) = streams_with(configure).await;
            let all = bytes(PIECES * PIECE_LEN, 2);
            client.write_all(&all).await.unwrap();
            client.shutdown().await.unwrap();
            let limit = PIECE_LEN + ahead.min(usize::from(messages) * PIECE_LEN);
            let mut found = server.read_chunk().await.unwrap().unwrap().to_vec();
            let used = memory_of(&server).in_use;
            assert!(used <= limit, "{used} bytes while the reader has stopped");
            while let Some(chunk) = server.read_chunk().await.unwrap() {
                found.extend_from_slice(&chunk);
            }
            assert!(found == all);
            let used = memory_of(&server).highest;
            assert!(
                used <= limit,
                "{used} bytes while {messages} pieces are read ahead"
            );
        });
    }
}
