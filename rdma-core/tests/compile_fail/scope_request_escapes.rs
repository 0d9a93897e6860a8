//! The handle of a request cannot outlive the scope of the request.

use std::time::Duration;

use rdma_core::{Buffer, QueuePair, SendRequest};

fn example(pair: &QueuePair, buffer: &Buffer) {
    let request = pair.scope(Duration::from_secs(1), |scope| {
        scope.post(SendRequest::send(buffer.as_slice()))
    });
    drop(request);
}

fn main() {}
