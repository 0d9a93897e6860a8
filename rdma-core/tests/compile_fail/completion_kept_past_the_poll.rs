//! The completion of an extended queue is an entry of the device, and ends with the poll.

use rdma_core::{completion::ExtendedCompletionQueue, Result};

fn example(queue: &ExtendedCompletionQueue) -> Result<()> {
    let kept = queue.poll(|completions| completions.next())?;
    drop(kept);
    Ok(())
}

fn main() {}
