//! The closure only borrows the poll, and so cannot leak the poll.

use rdma_core::{completion::ExtendedCompletionQueue, Result};

fn example(queue: &ExtendedCompletionQueue) -> Result<()> {
    queue.poll(|completions| std::mem::forget(*completions))
}

fn main() {}
