//! The queue with a single owner has no lock, so a shared reference cannot post.

use std::sync::Arc;

use rdma_core::{Buffer, SendQueue, SendRequest};

fn example(queue: Arc<SendQueue<Buffer>>, buffer: Buffer) {
    let _ = queue.post(SendRequest::send(buffer));
}

fn main() {}
