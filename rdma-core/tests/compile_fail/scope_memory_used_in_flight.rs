//! No other code can use the memory that a request of a scope writes until the scope has ended,
//! even if the handle of the request was forgotten.

use std::time::Duration;

use rdma_core::{memory::BufferSliceMut, Buffer, QueuePair, Scope};

fn receive<'scope>(scope: &'scope Scope<'scope, '_>, memory: BufferSliceMut<'scope>) {
    std::mem::forget(scope.post_receive(memory));
}

fn example(pair: &QueuePair, buffer: &mut Buffer) {
    let _ = pair.scope(Duration::from_secs(1), |scope| {
        receive(scope, buffer.as_slice_mut());
        buffer[0] = 1;
    });
}

fn main() {}
