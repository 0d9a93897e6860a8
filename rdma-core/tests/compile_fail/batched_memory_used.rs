//! Memory moves into the batch, so the program cannot use the memory.

use rdma_core::{Buffer, SendQueue, SendRequest};

fn example(mut queue: SendQueue<Buffer>, buffer: Buffer) {
    let mut batch = queue.batch();
    let _ = batch.push(SendRequest::send(buffer));
    drop(buffer);
    let _ = batch.post();
}

fn main() {}
