//! The subcommand `ping`, which measures round-trip times.

use std::time::Instant;

use anyhow::Context;
use hdrhistogram::Histogram;
use rdma_rpc::{CallError, Client, Error, HealthClient};

/// Length of the longest bar of the histogram in characters. A line then fits into a terminal of 80
/// columns.
const MAX_BAR_LEN: u64 = 50;

/// Makes `count` calls of the health service in sequence, and prints the distribution of their
/// round-trip times.
pub(crate) async fn run(client: Client, count: u64) -> anyhow::Result<()> {
    let health = HealthClient::new(client);
    let mut times = Histogram::<u64>::new(3)?;
    for _ in 0..count {
        let begun = Instant::now();
        match health.check(String::new()).await {
            // A server without the health service also answers.
            Ok(_) | Err(CallError::Rpc(Error::UnknownMethod { .. })) => {}
            Err(error) => anyhow::bail!("{error:?}"),
        }
        times.record(
            u64::try_from(begun.elapsed().as_nanos())
                .context("the round-trip time exceeds 64 bits")?,
        )?;
    }
    let micros = |nanos: u64| nanos as f64 / 1000.0;
    println!(
        "{count} calls: min {:.1} us, mean {:.1} us, max {:.1} us",
        micros(times.min()),
        times.mean() / 1000.0,
        micros(times.max()),
    );
    for quantile in [0.5, 0.9, 0.99, 0.999] {
        println!(
            "p{:<5} {:>10.1} us",
            quantile * 100.0,
            micros(times.value_at_quantile(quantile))
        );
    }
    let bars: Vec<_> = times.iter_log(1000, 2.0).collect();
    let most = bars
        .iter()
        .map(|bar| bar.count_since_last_iteration())
        .max();
    let most = most.unwrap_or(1).max(1);
    for bar in bars {
        let count = bar.count_since_last_iteration();
        if count > 0 {
            let width = usize::try_from(count * MAX_BAR_LEN / most)?.max(1);
            println!(
                "<= {:>8.0} us {:>8} {}",
                micros(bar.value_iterated_to()),
                count,
                "#".repeat(width)
            );
        }
    }
    Ok(())
}
