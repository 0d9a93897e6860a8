//! Reading the next completion ends the current one.

use rdma_core::{completion::ExtendedCompletionQueue, Result};

fn example(queue: &ExtendedCompletionQueue) -> Result<()> {
    queue.poll(|completions| {
        let first = completions.next();
        let second = completions.next();
        drop((first, second));
    })
}

fn main() {}
