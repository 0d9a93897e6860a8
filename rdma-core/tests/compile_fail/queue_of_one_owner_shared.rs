//! The queue of one owner has no lock, so nobody posts to it who has a part of it.

use std::sync::Arc;

use rdma_core::{Buffer, SendQueue, SendRequest};

fn example(queue: Arc<SendQueue<Buffer>>, buffer: Buffer) {
    let _ = queue.post(SendRequest::send(buffer));
}

fn main() {}
