//! A batch has slots of its queue, so the queue is there for as long as the batch.

use rdma_core::{receive::SharedReceiveBatch, Buffer, SharedReceiveQueue};

fn example(queue: SharedReceiveQueue<Buffer>) -> SharedReceiveBatch<'static, Buffer> {
    let batch = queue.batch(8);
    drop(queue);
    batch
}

fn main() {}
