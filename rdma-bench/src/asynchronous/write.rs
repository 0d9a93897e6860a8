//! Measures RDMA writes over rdma-async, with and without immediate data.

use super::connection::Setup;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::Role;

/// The value of the immediate data in every write that has immediate data. The test needs no
/// particular value, because the receiver ignores it.
const IMMEDIATE: u32 = 0;

/// Measures half of the round trip of writes with immediate data: each process writes to the other,
/// and waits for the immediate data of the peer's write.
pub(super) async fn latency(setup: &Setup, size: usize, recorder: &mut Recorder) -> Result<()> {
    let rdma = &setup.rdma;
    let message = setup.allocate(size)?;
    let mut target = setup.target(size)?;
    let client = setup.role == Role::Client;
    while setup.ends_with_peer() || recorder.needs_more() {
        if !client {
            rdma.receive_write_immediate().await?;
        }
        recorder.record();
        rdma.write_with_immediate(&message, &mut target, IMMEDIATE)
            .await?;
        if client {
            rdma.receive_write_immediate().await?;
        }
        setup.progress.increment();
    }
    Ok(())
}

/// Measures the bandwidth of concurrent writes of `size` bytes in one direction. If the test has a
/// pipeline, one pipeline of rdma-async posts all writes. Otherwise, concurrent loops each await
/// one write after the other.
pub(super) async fn bandwidth(setup: &Setup, size: usize, window: &Window) -> Result<()> {
    let message = setup.allocate(size)?;
    if setup.pipeline {
        let mut target = setup.target(size)?;
        let mut pipeline = setup.rdma.pipeline(setup.depth);
        window.begin();
        while window.claim() {
            pipeline.write(&message, &mut target).await?;
            window.complete();
        }
        pipeline.finish().await?;
        window.end();
        return Ok(());
    }
    let write = async || {
        let mut target = setup.target(size)?;
        while window.claim() {
            if setup.plan.immediate {
                let rdma = &setup.rdma;
                rdma.write_with_immediate(&message, &mut target, IMMEDIATE)
                    .await?;
            } else {
                setup.rdma.write(&message, &mut target).await?;
            }
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.run_all((0..setup.depth).map(|_| write())).await
}

/// Receives the writes of a bandwidth test with immediate data. Returns after the last write if the
/// test has a fixed number of writes. Otherwise, runs until the caller drops the future. `window`
/// measures the time from the first write to the last.
pub(super) async fn receive_all(setup: &Setup, window: &Window) -> Result<()> {
    while window.claim() {
        setup.rdma.receive_write_immediate().await?;
        window.complete();
    }
    Ok(())
}
