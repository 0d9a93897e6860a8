//! Measures the memory and the file descriptors that an idle rdma-async connection occupies.

use std::fs;

use anyhow::Context as _;
use rdma_async::{Rdma, RdmaDevice};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::result::SCHEMA;

/// Number of connections that are created before the measurement, so that one-time allocations are
/// not attributed to the measured connections.
const WARM_UP: usize = 64;

pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Creates `count` connections between two open devices of this process. Returns both ends of each
/// connection.
pub(crate) async fn pairs(
    [near, far]: &[RdmaDevice; 2],
    count: usize,
) -> anyhow::Result<Vec<(Rdma, Rdma)>> {
    let mut listener = far.builder().bind("127.0.0.1:0").await?;
    let address = listener.local_address()?;
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        pairs.push(tokio::try_join!(
            near.builder().connect(address),
            listener.accept()
        )?);
    }
    Ok(pairs)
}

/// Measures the memory and the file descriptors that one side of an idle rdma-async connection
/// occupies, including its queue pair. Returns the averages over both sides of `connections`
/// connections as JSON.
pub(crate) fn measure(connections: usize) -> anyhow::Result<Value> {
    runtime()?.block_on(async {
        let ends = [RdmaDevice::open_default()?, RdmaDevice::open_default()?];
        let first = pairs(&ends, WARM_UP).await?;
        let before = Usage::now()?;
        let idle = pairs(&ends, connections).await?;
        let after = Usage::now()?;
        let share = |before: u64, after: u64| {
            after.saturating_sub(before) as f64 / (2 * connections) as f64
        };
        let memory = share(before.memory, after.memory);
        drop((first, idle));
        Ok(json!({
            "schema": SCHEMA,
            "unit": "count",
            "count": connections,
            "figure": memory,
            "memory": memory,
            "descriptors": share(before.descriptors, after.descriptors),
        }))
    })
}

/// The resources that this process occupies: memory and file descriptors.
#[derive(Debug)]
struct Usage {
    /// Resident memory in bytes.
    memory: u64,
    descriptors: u64,
}

impl Usage {
    fn now() -> anyhow::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB"));
        let kibibytes: u64 = kibibytes
            .context("no VmRSS in /proc/self/status")?
            .trim()
            .parse()?;
        let descriptors = fs::read_dir("/proc/self/fd").context("/proc/self/fd")?;
        Ok(Self {
            memory: kibibytes << 10,
            descriptors: descriptors.count() as u64,
        })
    }
}
