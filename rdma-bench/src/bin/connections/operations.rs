//! Measures writes on a connection, by rdma-core and by rdma-async.

use std::alloc::Layout;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rdma_async::{LocalMr, Rdma, RdmaDevice, RemoteMr};
use rdma_core::{
    AccessFlags, ConnectOptions, Context, ProtectionDomain, QueuePair, RemoteMemory, SendRequest,
    WorkCompletion,
};
use serde_json::Value;

use crate::idle::{pairs, runtime};
use crate::result::Samples;

const SIZE: usize = 8;
/// Number of writes that one sample measures together, so that the time to read the clock does not
/// matter.
const BATCH: usize = 1000;

/// Measures the time of a write of 8 bytes by rdma-core, for about `time`. The process posts one
/// write at a time and polls for its completion. Returns the result as JSON.
pub(crate) fn core_write(time: Duration) -> anyhow::Result<Value> {
    let domain = Context::open_default()?.protection_domain()?;
    let (left, _right) = core_pair(&domain)?;
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
                break freed.context("the completion belongs to another request")?;
            };
        }
        if samples.add(begun.elapsed(), BATCH) {
            return Ok(samples.time());
        }
    }
}

/// Creates two queue pairs of this process and connects them to each other.
pub(crate) fn core_pair(domain: &ProtectionDomain) -> anyhow::Result<(QueuePair, QueuePair)> {
    let builder = domain.queue_pair().send_requests(128);
    let (left, right) = (builder.clone().build()?, builder.build()?);
    let (to_right, to_left) = (right.endpoint(), left.endpoint());
    Ok((
        left.connect(&to_right, &ConnectOptions::default())?,
        right.connect(&to_left, &ConnectOptions::default())?,
    ))
}

/// Measures the time of a write of 8 bytes by rdma-async, for about `time`. A task awaits one write
/// after the other. Returns the result as JSON.
pub(crate) fn async_write(time: Duration) -> anyhow::Result<Value> {
    Ok(writes(0, time)?.time())
}

/// Measures the rate of writes of 8 bytes on one rdma-async connection while `idle` other
/// connections are open, for about `time`. Returns the result as JSON.
pub(crate) fn async_rate(idle: usize, time: Duration) -> anyhow::Result<Value> {
    Ok(writes(idle, time)?.rate())
}

/// Measures the rate of writes of 8 bytes on one rdma-async connection while `failures` other
/// connections of the runtime fail, for about `time`. Returns the result as JSON.
pub(crate) fn beside_failures(failures: u32, time: Duration) -> anyhow::Result<Value> {
    runtime()?.block_on(async {
        let ends = [RdmaDevice::open_default()?, RdmaDevice::open_default()?];
        let mut others = pairs(&ends, failures as usize).await?;
        let measured = MeasuredConnection::new(&ends).await?;
        let mut failing = Vec::new();
        let interval = time / (failures + 1);
        let mut samples = Samples::new(time);
        loop {
            let is_due = samples.elapsed() >= interval * (failing.len() as u32 + 1);
            if is_due && let Some(ends) = others.pop() {
                failing.push(tokio::spawn(fail(ends)));
            }
            let taken = measured.batch().await?;
            if samples.add(taken, BATCH) {
                break;
            }
        }
        measured.check()?;
        for ended in failing {
            ended.await??;
        }
        Ok(samples.overall_rate())
    })
}

/// Makes the connection with the ends `near` and `far` fail, by a write to memory to which the peer
/// has granted no access. Waits until both ends have failed.
async fn fail((near, far): (Rdma, Rdma)) -> anyhow::Result<()> {
    let mut inaccessible = RemoteMr::from_token(RemoteMemory {
        address: 0x1000,
        len: SIZE as u64,
        rkey: 0,
    });
    let local = far.alloc_local_mr(Layout::from_size_align(SIZE, 8)?)?;
    let written = far.write(&local, &mut inaccessible).await;
    ensure!(written.is_err(), "the write succeeded");
    near.ended().await;
    Ok(())
}

fn writes(idle: usize, time: Duration) -> anyhow::Result<Samples> {
    runtime()?.block_on(async {
        let ends = [RdmaDevice::open_default()?, RdmaDevice::open_default()?];
        let idle = pairs(&ends, idle).await?;
        let measured = MeasuredConnection::new(&ends).await?;
        let mut samples = Samples::new(time);
        while !samples.add(measured.batch().await?, BATCH) {}
        measured.check()?;
        drop(idle);
        Ok(samples)
    })
}

/// An rdma-async connection on which writes are measured, with both of its ends and the memory that
/// the writes read and change.
struct MeasuredConnection {
    client: Rdma,
    server: Rdma,
    local: LocalMr,
    granted: RemoteMr,
}

impl MeasuredConnection {
    async fn new(ends: &[RdmaDevice; 2]) -> anyhow::Result<Self> {
        let made = pairs(ends, 1).await?.pop();
        let (client, server) = made.context("no connection was created")?;
        let layout = Layout::from_size_align(SIZE, 8)?;
        // The connection's task in the peer grants the memory, without the peer's application.
        let granted = client.request_remote_mr(layout).await?;
        Ok(Self {
            local: client.alloc_local_mr(layout)?,
            granted,
            client,
            server,
        })
    }

    /// Performs [`BATCH`] RDMA writes to the peer's memory, one after the other. Returns the total
    /// time of these writes.
    async fn batch(&self) -> anyhow::Result<Duration> {
        let mut remote = RemoteMr::from_token(self.granted.token());
        let begun = Instant::now();
        for _ in 0..BATCH {
            self.client.write(&self.local, &mut remote).await?;
        }
        Ok(begun.elapsed())
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.server.failure().is_none(), "the connection ended");
        Ok(())
    }
}
