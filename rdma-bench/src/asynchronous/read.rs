//! Measures RDMA reads over rdma-async.

use super::connection::Ends;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;

/// Maximum memory in bytes for all outstanding reads of a bandwidth test. Each read has its own memory,
/// so a test with large messages has fewer outstanding reads than its depth allows.
const MEMORY: usize = 64 << 20;

/// Measures the latency of reads, each posted when the previous one has completed.
pub(super) async fn latency(ends: &Ends, size: usize, recorder: &mut Recorder) -> Result<()> {
    let mut memory = ends.allocate(size)?;
    let source = ends.target(size)?;
    while recorder.more() {
        recorder.stamp();
        ends.rdma.read(&mut memory, &source).await?;
        ends.progress.step();
    }
    Ok(())
}

/// Measures the bandwidth of concurrent reads, each into its own memory.
pub(super) async fn bandwidth(ends: &Ends, size: usize, window: &Window) -> Result<()> {
    let depth = ends.depth.min(MEMORY / size).max(1);
    let memory = (0..depth).map(|_| ends.allocate(size));
    let memory: Vec<_> = memory.collect::<Result<_>>()?;
    let source = ends.target(size)?;
    let read = async |mut memory| {
        while window.take() {
            ends.rdma.read(&mut memory, &source).await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.drive(memory.into_iter().map(read)).await
}
