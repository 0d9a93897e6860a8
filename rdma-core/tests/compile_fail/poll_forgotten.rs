//! A poll is lent to its closure, which so cannot keep it from ending.

use rdma_core::{completion::ExtendedCompletionQueue, Result};

fn example(queue: &ExtendedCompletionQueue) -> Result<()> {
    queue.poll(|completions| std::mem::forget(*completions))
}

fn main() {}
