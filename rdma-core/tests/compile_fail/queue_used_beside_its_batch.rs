//! A batch borrows its queue exclusively, so that requests keep their order.

use rdma_core::{Buffer, SendQueue, SendRequest};

fn example(mut queue: SendQueue<Buffer>, one: Buffer, other: Buffer) {
    let mut batch = queue.batch();
    let _ = batch.push(SendRequest::send(one));
    let _ = queue.post(SendRequest::send(other));
    let _ = batch.post();
}

fn main() {}
