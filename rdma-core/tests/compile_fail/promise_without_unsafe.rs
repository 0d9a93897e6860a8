//! A property that only the program can guarantee must be stated with `unsafe`.

use rdma_core::completion::ExtendedCompletionQueueBuilder;

fn example(builder: ExtendedCompletionQueueBuilder) -> ExtendedCompletionQueueBuilder {
    builder.single_threaded().ignore_overrun()
}

fn main() {}
