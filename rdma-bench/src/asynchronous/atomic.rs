//! Measures atomic operations over rdma-async: fetch-and-add and compare-and-swap of eight bytes.

use rdma_async::RemoteMr;

use super::connection::Setup;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;
use crate::test::Verb;

const SIZE: usize = size_of::<u64>();

async fn operate(setup: &Setup, target: &mut RemoteMr) -> Result<u64> {
    Ok(if setup.plan.test.verb == Verb::CompareAndSwap {
        setup.rdma.compare_and_swap(target, 0, 0).await?
    } else {
        setup.rdma.fetch_and_add(target, 1).await?
    })
}

/// Measures the latency of atomic operations. Each operation is posted when the previous operation
/// has completed. `recorder` records the time of each post, and ends the test.
pub(super) async fn latency(setup: &Setup, recorder: &mut Recorder) -> Result<()> {
    let mut target = setup.target(SIZE)?;
    while recorder.needs_more() {
        recorder.record();
        operate(setup, &mut target).await?;
        setup.progress.increment();
    }
    Ok(())
}

/// Measures the rate of concurrent atomic operations, all on the same word of the peer's memory.
/// `window` limits the number of operations, and measures the time.
pub(super) async fn bandwidth(setup: &Setup, window: &Window) -> Result<()> {
    let one = async || {
        let mut target = setup.target(SIZE)?;
        while window.claim() {
            operate(setup, &mut target).await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.run_all((0..setup.depth).map(|_| one())).await
}
