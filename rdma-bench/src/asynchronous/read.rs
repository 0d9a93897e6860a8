//! RDMA reads.

use super::connection::Ends;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;

/// How much memory the reads of a bandwidth test have in all: each has its own, and where that is
/// not enough for the depth, fewer are outstanding.
const MEMORY: usize = 64 << 20;

/// One read after the other.
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

/// Reads that are each into their own memory.
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
