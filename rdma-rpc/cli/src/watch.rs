//! The subcommand `watch`, which prints the numbers of calls periodically.

use std::collections::HashMap;
use std::time::Duration;

use rdma_rpc::{CallCounts, Client, ReflectionClient};

/// Prints a table of all methods once per interval: the number of calls, the calls per second, the
/// running and the failed calls, and the mean duration of the calls that have ended in the interval.
/// Stops after `count` tables, if given.
pub(crate) async fn run(
    client: Client,
    interval: Duration,
    count: Option<u64>,
) -> anyhow::Result<()> {
    let reflection = ReflectionClient::new(client);
    let mut former: HashMap<String, CallCounts> = HashMap::new();
    let mut ticks = tokio::time::interval(interval);
    let mut line = 0;
    while count.is_none_or(|count| line < count) {
        ticks.tick().await;
        let calls = reflection.calls().await;
        let calls = calls.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        println!(
            "{:<40} {:>12} {:>12} {:>10} {:>10} {:>12}",
            "method", "calls", "calls/s", "running", "failed", "mean µs"
        );
        for call in calls {
            let before = former.insert(call.name.clone(), call.clone());
            // The server may send any numbers.
            let since = |count: fn(&CallCounts) -> u64| {
                count(&call).saturating_sub(before.as_ref().map_or(0, count))
            };
            let rate = match before {
                Some(_) => since(|call| call.started) as f64 / interval.as_secs_f64(),
                None => 0.0,
            };
            let running = call.started.saturating_sub(call.ended);
            let mean = match since(|call| call.ended) {
                0 => "-".to_owned(),
                ended => format!("{:.1}", since(|call| call.micros) as f64 / ended as f64),
            };
            println!(
                "{:<40} {:>12} {rate:>12.0} {running:>10} {:>10} {mean:>12}",
                call.name, call.started, call.failed
            );
        }
        println!();
        line += 1;
    }
    Ok(())
}
