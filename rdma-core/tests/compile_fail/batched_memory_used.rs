//! Memory in a batch is the batch's.

use rdma_core::{Buffer, SendQueue, SendRequest};

fn example(mut queue: SendQueue<Buffer>, buffer: Buffer) {
    let mut batch = queue.batch();
    let _ = batch.push(SendRequest::send(buffer));
    drop(buffer);
    let _ = batch.post();
}

fn main() {}
