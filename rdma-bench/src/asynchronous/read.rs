//! Measures RDMA reads over rdma-async.

use super::connection::Setup;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;

/// Maximum memory in bytes of all outstanding reads of a bandwidth test. Each read has its own
/// memory, so a test with large messages has fewer reads outstanding than its depth allows.
const MAX_READ_MEMORY: usize = 64 << 20;

/// Measures the latency of reads of `size` bytes. Each read is posted when the previous read has
/// completed. `recorder` records the time of each post, and ends the test.
pub(super) async fn latency(setup: &Setup, size: usize, recorder: &mut Recorder) -> Result<()> {
    let mut memory = setup.allocate(size)?;
    let source = setup.target(size)?;
    while recorder.needs_more() {
        recorder.record();
        setup.rdma.read(&mut memory, &source).await?;
        setup.progress.increment();
    }
    Ok(())
}

/// Measures the bandwidth of concurrent reads of `size` bytes, each into its own memory. If the
/// test has a pipeline, one pipeline of rdma-async posts all reads. Otherwise, concurrent loops
/// each await one read after the other.
pub(super) async fn bandwidth(setup: &Setup, size: usize, window: &Window) -> Result<()> {
    let depth = setup.depth.min(MAX_READ_MEMORY / size).max(1);
    let memory = (0..depth).map(|_| setup.allocate(size));
    let memory: Vec<_> = memory.collect::<Result<_>>()?;
    let source = setup.target(size)?;
    if setup.pipeline {
        let mut memory = memory;
        let mut pipeline = setup.rdma.pipeline(depth);
        let mut number = 0;
        window.begin();
        while window.claim() {
            pipeline.read(&mut memory[number], &source).await?;
            number = if number + 1 == depth { 0 } else { number + 1 };
            window.complete();
        }
        pipeline.finish().await?;
        window.end();
        return Ok(());
    }
    let read = async |mut memory| {
        while window.claim() {
            setup.rdma.read(&mut memory, &source).await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.run_all(memory.into_iter().map(read)).await
}
