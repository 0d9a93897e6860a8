//! What only the program can know it says with `unsafe`.

use rdma_core::completion::ExtendedCompletionQueueBuilder;

fn example(builder: ExtendedCompletionQueueBuilder) -> ExtendedCompletionQueueBuilder {
    builder.single_threaded().ignore_overrun()
}

fn main() {}
