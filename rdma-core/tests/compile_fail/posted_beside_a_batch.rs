//! While a batch exists, its queue cannot post other requests.

use rdma_core::{Buffer, SendQueue, SendRequest};

fn example(mut queue: SendQueue<Buffer>, buffer: Buffer) {
    let batch = queue.batch();
    let _ = queue.post(SendRequest::send(buffer));
    let _ = batch.post();
}

fn main() {}
