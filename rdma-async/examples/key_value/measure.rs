//! Measures the rate of reads.

use std::alloc::Layout;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rdma_async::{Rdma, RemoteMr};
use rdma_core::RemoteMemory;

use crate::client::{Values, change, connect};

/// Number of keys that are read in turn. Many keys, so that the reads are spread over the buckets.
const KEYS: usize = 256;
/// Number of bytes of each value. Few, so that a bucket has room for several entries.
const VALUE: usize = 64;
/// Number of reads between two readings of the clock, so that reading the clock does not affect the
/// rate.
const BATCH: usize = 1000;

/// Reads values for some time, and prints the number of reads per second. With `raw`, reads the
/// memory of the buckets without finding and checking values in it, to measure the cost of the
/// reads alone.
pub(crate) async fn measure(server: &str, time: Duration, raw: bool) -> anyhow::Result<()> {
    let (rdma, tokens) = connect(server).await?;
    let rate = match raw {
        true => raw_reads(&rdma, &tokens, time).await?,
        false => reads(&rdma, tokens, time).await?,
    };
    println!("{rate:.0} reads/s");
    Ok(())
}

/// Sets values, and returns the rate at which they are read and checked, in reads per second.
async fn reads(rdma: &Rdma, tokens: Vec<RemoteMemory>, time: Duration) -> anyhow::Result<f64> {
    let keys: Vec<_> = (0..KEYS).map(|number| format!("key {number:04}")).collect();
    for (number, key) in keys.iter().enumerate() {
        change(rdma, key, &[number as u8; VALUE]).await?;
    }
    let mut values = Values::new(rdma, tokens)?;
    let (mut numbers, mut count, begun) = (numbers(), 0, Instant::now());
    while begun.elapsed() < time {
        for number in numbers.by_ref().take(BATCH) {
            let value = values.get(keys[number].as_bytes()).await?;
            let first = value.and_then(<[u8]>::first);
            ensure!(first == Some(&(number as u8)), "a wrong value");
        }
        count += BATCH;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Returns the rate at which whole buckets are read without use of their bytes, in reads per
/// second.
async fn raw_reads(rdma: &Rdma, tokens: &[RemoteMemory], time: Duration) -> anyhow::Result<f64> {
    let buckets: Vec<_> = tokens.iter().copied().map(RemoteMr::from_token).collect();
    let len = usize::try_from(tokens[0].len)?;
    let mut local = rdma.alloc_local_mr(Layout::array::<u8>(len)?)?;
    let (mut numbers, mut count, begun) = (numbers(), 0, Instant::now());
    while begun.elapsed() < time {
        for number in numbers.by_ref().take(BATCH) {
            rdma.read(&mut local, &buckets[number % buckets.len()])
                .await?;
        }
        count += BATCH;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Returns an endless sequence of key numbers in pseudo-random order, which a processor cannot
/// predict.
fn numbers() -> impl Iterator<Item = usize> {
    let next = |state: &u64| Some(state.wrapping_mul(6364136223846793005).wrapping_add(1));
    std::iter::successors(Some(1), next).map(|state| (state >> 33) as usize % KEYS)
}
