//! The subcommand `watch`, which prints the numbers of calls periodically.

use std::collections::HashMap;
use std::time::Duration;

use rdma_rpc::{Client, ReflectionClient};

/// Prints a table of all methods once per interval: the number of calls, the calls per second, and
/// the running calls. Stops after `count` tables, if given.
pub(crate) async fn run(
    client: Client,
    interval: Duration,
    count: Option<u64>,
) -> anyhow::Result<()> {
    let reflection = ReflectionClient::new(client);
    let mut former: HashMap<String, u64> = HashMap::new();
    let mut ticks = tokio::time::interval(interval);
    let mut line = 0;
    while count.is_none_or(|count| line < count) {
        ticks.tick().await;
        let calls = reflection.calls().await;
        let calls = calls.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        println!(
            "{:<40} {:>12} {:>12} {:>10}",
            "method", "calls", "calls/s", "running"
        );
        for call in calls {
            let before = former.insert(call.name.clone(), call.started);
            // The server may send any numbers.
            let rate = before.map_or(0.0, |before| {
                call.started.saturating_sub(before) as f64 / interval.as_secs_f64()
            });
            let running = call.started.saturating_sub(call.ended);
            println!(
                "{:<40} {:>12} {rate:>12.0} {running:>10}",
                call.name, call.started
            );
        }
        println!();
        line += 1;
    }
    Ok(())
}
