//! Measures RDMA writes over rdma-async, with and without immediate data.

use super::connection::Ends;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::Role;

/// The immediate data of all writes. The receiver ignores the value.
const IMMEDIATE: u32 = 0;

/// Measures half of the round trip of writes with immediate data: each process writes, and waits for
/// the immediate data of the peer's write.
pub(super) async fn latency(ends: &Ends, size: usize, recorder: &mut Recorder) -> Result<()> {
    let rdma = &ends.rdma;
    let message = ends.allocate(size)?;
    let mut target = ends.target(size)?;
    let client = ends.role == Role::Client;
    while ends.ends_with_peer() || recorder.more() {
        if !client {
            rdma.receive_write_immediate().await?;
        }
        recorder.stamp();
        rdma.write_with_immediate(&message, &mut target, IMMEDIATE)
            .await?;
        if client {
            rdma.receive_write_immediate().await?;
        }
        ends.progress.step();
    }
    Ok(())
}

/// Measures the bandwidth of concurrent writes in one direction.
pub(super) async fn bandwidth(ends: &Ends, size: usize, window: &Window) -> Result<()> {
    let message = ends.allocate(size)?;
    let write = async || {
        let mut target = ends.target(size)?;
        while window.take() {
            if ends.plan.immediate {
                let rdma = &ends.rdma;
                rdma.write_with_immediate(&message, &mut target, IMMEDIATE)
                    .await?;
            } else {
                ends.rdma.write(&message, &mut target).await?;
            }
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.drive((0..ends.depth).map(|_| write())).await
}

/// Receives the writes of a bandwidth test with immediate data. The measured time is from the first
/// write to the last.
pub(super) async fn receive_all(ends: &Ends, window: &Window) -> Result<()> {
    while window.take() {
        ends.rdma.receive_write_immediate().await?;
        window.complete();
    }
    Ok(())
}
