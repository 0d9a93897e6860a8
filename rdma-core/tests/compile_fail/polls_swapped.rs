//! Two polls that run at the same time cannot be swapped.

use rdma_core::{completion::ExtendedCompletionQueue, Result};

fn example(one: &ExtendedCompletionQueue, other: &ExtendedCompletionQueue) -> Result<()> {
    one.poll(|outer| {
        let _ = other.poll(|inner| std::mem::swap(outer, inner));
    })
}

fn main() {}
