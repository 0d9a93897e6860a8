//! Measures atomic operations over rdma-async: fetch-and-add and compare-and-swap of eight bytes.

use rdma_async::RemoteMr;

use super::connection::Ends;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;
use crate::test::Verb;

const SIZE: usize = size_of::<u64>();

async fn operate(ends: &Ends, target: &mut RemoteMr) -> Result<u64> {
    Ok(if ends.plan.test.verb == Verb::CompareAndSwap {
        ends.rdma.compare_and_swap(target, 0, 0).await?
    } else {
        ends.rdma.fetch_and_add(target, 1).await?
    })
}

/// Measures the latency of atomic operations, each posted when the previous one has completed.
pub(super) async fn latency(ends: &Ends, recorder: &mut Recorder) -> Result<()> {
    let mut target = ends.target(SIZE)?;
    while recorder.more() {
        recorder.stamp();
        operate(ends, &mut target).await?;
        ends.progress.step();
    }
    Ok(())
}

/// Measures the rate of concurrent atomic operations on one word of the peer's memory.
pub(super) async fn bandwidth(ends: &Ends, window: &Window) -> Result<()> {
    let one = async || {
        let mut target = ends.target(SIZE)?;
        while window.take() {
            operate(ends, &mut target).await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.drive((0..ends.depth).map(|_| one())).await
}
