//! Memory is not freed within the scope whose request has it.

use std::time::Duration;

use rdma_core::{Buffer, QueuePair, SendRequest};

fn example(pair: &QueuePair, buffer: Buffer) {
    let slice = buffer.as_slice();
    let _ = pair.scope(Duration::from_secs(1), |scope| {
        let sent = scope.post(SendRequest::send(slice));
        drop(buffer);
        drop(sent);
    });
}

fn main() {}
