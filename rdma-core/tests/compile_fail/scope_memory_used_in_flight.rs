//! Memory that a scope's request writes is nobody else's until the scope has ended, and to forget
//! the request changes nothing about it.

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
