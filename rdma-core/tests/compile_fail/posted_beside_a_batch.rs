//! While a batch is made, its queue posts nothing else.

use rdma_core::{Buffer, SendQueue, SendRequest};

fn example(mut queue: SendQueue<Buffer>, buffer: Buffer) {
    let batch = queue.batch();
    let _ = queue.post(SendRequest::send(buffer));
    let _ = batch.post();
}

fn main() {}
