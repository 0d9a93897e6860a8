//! The completion of an extended queue is the device's own entry, which the poll's end gives back.

use rdma_core::{completion::ExtendedCompletionQueue, Result};

fn example(queue: &ExtendedCompletionQueue) -> Result<()> {
    let kept = queue.poll(|completions| completions.next())?;
    drop(kept);
    Ok(())
}

fn main() {}
