//! Two polls that go on at once cannot change places.

use rdma_core::{completion::ExtendedCompletionQueue, Result};

fn example(one: &ExtendedCompletionQueue, other: &ExtendedCompletionQueue) -> Result<()> {
    one.poll(|outer| {
        let _ = other.poll(|inner| std::mem::swap(outer, inner));
    })
}

fn main() {}
