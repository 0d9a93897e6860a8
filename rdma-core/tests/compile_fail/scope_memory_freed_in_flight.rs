//! Memory that a request of a scope uses cannot be freed before the scope has ended.

use std::time::Duration;

use rdma_core::{memory::BufferSlice, Buffer, QueuePair, Scope, SendRequest};

fn send<'scope>(scope: &'scope Scope<'scope, '_>, memory: BufferSlice<'scope>) {
    let _ = scope.post(SendRequest::send(memory));
}

fn example(pair: &QueuePair, buffer: Buffer) {
    let slice = buffer.as_slice();
    let _ = pair.scope(Duration::from_secs(1), |scope| {
        send(scope, slice);
        drop(buffer);
    });
}

fn main() {}
