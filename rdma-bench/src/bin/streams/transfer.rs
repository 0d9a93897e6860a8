//! The data transfers that are measured, over any byte stream.

use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::Quantity;

/// Name of the JSON format, which each result contains. The number at its end is incremented when
/// the meaning of a field changes.
const SCHEMA: &str = "rdma-bench/streams/1";
/// Number of round trips that are made before the measurement, because the first round trips are
/// slower.
const WARM_UP: usize = 200;
/// Number of writes between two readings of the clock, so that the readings take little of the
/// measured time.
const BATCH: usize = 16;

/// A byte stream over RDMA or TCP.
pub(crate) type Stream = Pin<Box<dyn ByteStream>>;

/// A byte stream of any protocol that can be read and written.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite {}

impl<T: AsyncRead + AsyncWrite> ByteStream for T {}

/// Runs the server's side of a measurement of `what` on `stream`. In a bandwidth test, reads at
/// most `size` bytes at a time until the client ends the stream, and then sends one byte back. In a
/// latency test, sends each message of `size` bytes back, until the client closes the stream.
pub(crate) async fn serve(stream: &mut Stream, what: Quantity, size: usize) -> anyhow::Result<()> {
    let mut room = vec![0; size];
    match what {
        Quantity::Bandwidth => {
            while stream.read(&mut room).await.context("receiving")? > 0 {}
            stream.write_all(&[0]).await.context("confirming")?;
            stream.shutdown().await.context("ending")
        }
        Quantity::Latency => loop {
            if stream.read_exact(&mut room).await.is_err() {
                return Ok(());
            }
            stream.write_all(&room).await.context("answering")?;
            stream.flush().await.context("answering")?;
        },
    }
}

/// Runs the client's side of a measurement of `what` (bandwidth or latency) with writes of `size`
/// bytes, for about `time`. Returns the result as JSON.
pub(crate) async fn measure(
    stream: &mut Stream,
    what: Quantity,
    size: usize,
    time: Duration,
) -> anyhow::Result<Value> {
    match what {
        Quantity::Bandwidth => bandwidth(stream, size, time).await,
        Quantity::Latency => latency(stream, size, time).await,
    }
}

async fn bandwidth(stream: &mut Stream, size: usize, time: Duration) -> anyhow::Result<Value> {
    let message = vec![0x5a; size];
    let (begun, mut writes) = (Instant::now(), 0);
    while begun.elapsed() < time {
        for _ in 0..BATCH {
            stream.write_all(&message).await.context("sending")?;
        }
        writes += BATCH;
    }
    stream.shutdown().await.context("ending")?;
    let confirmed = stream.read_exact(&mut [0]).await;
    confirmed.context("waiting for the server")?;
    Ok(json!({
        "schema": SCHEMA,
        "unit": "1/s",
        "count": writes,
        "figure": writes as f64 / begun.elapsed().as_secs_f64(),
    }))
}

async fn latency(stream: &mut Stream, size: usize, time: Duration) -> anyhow::Result<Value> {
    let message = vec![0x5a; size];
    let mut room = vec![0; size];
    for _ in 0..WARM_UP {
        round_trip(stream, &message, &mut room).await?;
    }
    let (begun, mut samples) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let sent = Instant::now();
        round_trip(stream, &message, &mut room).await?;
        samples.push(sent.elapsed().as_nanos() as f64 / 1e3);
    }
    samples.sort_unstable_by(f64::total_cmp);
    let rank = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
    Ok(json!({
        "schema": SCHEMA,
        "unit": "usec",
        "count": samples.len(),
        "figure": rank(0.5),
        "min": rank(0.0),
        "percentile_90": rank(0.9),
    }))
}

async fn round_trip(stream: &mut Stream, message: &[u8], room: &mut [u8]) -> anyhow::Result<()> {
    stream.write_all(message).await.context("sending")?;
    stream.flush().await.context("sending")?;
    stream.read_exact(room).await.context("receiving")?;
    Ok(())
}
