//! Memory that the closure owns would be freed before the scope waits for its requests.

use std::time::Duration;

use rdma_core::{memory::BufferSlice, ProtectionDomain, QueuePair, Scope, SendRequest};

fn send<'scope>(scope: &'scope Scope<'scope, '_>, memory: BufferSlice<'scope>) {
    let _ = scope.post(SendRequest::send(memory));
}

fn example(pair: &QueuePair, domain: &ProtectionDomain) {
    let _ = pair.scope(Duration::from_secs(1), |scope| {
        let buffer = domain.allocate(8).unwrap();
        send(scope, buffer.as_slice());
    });
}

fn main() {}
