//! Measurements of operations on a connection.

use std::alloc::Layout;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rdma_async::{RdmaDevice, RemoteMr};
use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest, WorkCompletion};
use serde_json::Value;

use crate::idle::{pairs, runtime};
use crate::result::Samples;

const SIZE: usize = 8;
/// Number of operations in one sample.
const BATCH: usize = 1000;

/// Measures writes by rdma-core: each write is posted, and its completion is polled for.
pub(crate) fn core_write(time: Duration) -> anyhow::Result<Value> {
    let domain = Context::open_default()?.protection_domain()?;
    let builder = domain.queue_pair().send_requests(128);
    let (left, right) = (builder.clone().build()?, builder.build()?);
    let (to_right, to_left) = (right.endpoint(), left.endpoint());
    let left = left.connect(&to_right, &ConnectOptions::default())?;
    let _right = right.connect(&to_left, &ConnectOptions::default())?;
    let target = domain.allocate(SIZE)?.expose(AccessFlags::REMOTE)?;
    let remote = target.remote();
    let mut queue = left.send_queue();
    let completions = left.send_completions().clone();
    let mut room = [WorkCompletion::default(); 16];
    let mut memory = domain.allocate(SIZE)?;
    let mut samples = Samples::new(time);
    loop {
        let begun = Instant::now();
        for _ in 0..BATCH {
            queue.post(SendRequest::write(memory, remote))?;
            memory = loop {
                let Some(completion) = completions.poll(&mut room)?.first() else {
                    continue;
                };
                completion.result()?;
                let freed = queue.complete(completion).next();
                break freed.context("a completion of another request")?;
            };
        }
        if samples.add(begun.elapsed(), BATCH) {
            return Ok(samples.time());
        }
    }
}

/// Measures writes by rdma-async, whose futures are ready when they are first polled.
pub(crate) fn async_write(time: Duration) -> anyhow::Result<Value> {
    Ok(writes(0, time)?.time())
}

/// Measures the rate of writes by rdma-async beside idle connections.
pub(crate) fn async_rate(idle: usize, time: Duration) -> anyhow::Result<Value> {
    Ok(writes(idle, time)?.rate())
}

fn writes(idle: usize, time: Duration) -> anyhow::Result<Samples> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let ends = [RdmaDevice::open_default()?, RdmaDevice::open_default()?];
        let idle = pairs(&ends, idle).await?;
        let (client, server) = pairs(&ends, 1)
            .await?
            .pop()
            .context("a pair that was made")?;
        let layout = Layout::from_size_align(SIZE, 8)?;
        let granted = tokio::try_join!(client.request_remote_mr(layout), async {
            // The connection of the peer grants the memory without its application.
            Ok(())
        })?;
        let mut remote = RemoteMr::from_token(granted.0.token());
        let local = client.alloc_local_mr(layout)?;
        let mut samples = Samples::new(time);
        loop {
            let begun = Instant::now();
            for _ in 0..BATCH {
                client.write(&local, &mut remote).await?;
            }
            if samples.add(begun.elapsed(), BATCH) {
                break;
            }
        }
        ensure!(server.failure().is_none(), "the connection ended");
        drop((idle, granted));
        Ok(samples)
    })
}
