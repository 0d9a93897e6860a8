//! The queue of one owner has no lock, so it is not posted to through a shared borrow.

use rdma_core::{Buffer, SendQueue, SendRequest};

fn example(queue: &SendQueue<Buffer>, buffer: Buffer) {
    let _ = queue.post(SendRequest::send(buffer));
}

fn main() {}
