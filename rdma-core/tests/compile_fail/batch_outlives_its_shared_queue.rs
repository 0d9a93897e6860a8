//! A batch uses slots of its queue, and so cannot outlive the queue.

use rdma_core::{receive::SharedReceiveBatch, Buffer, SharedReceiveQueue};

fn example(queue: SharedReceiveQueue<Buffer>) -> SharedReceiveBatch<'static, Buffer> {
    let batch = queue.batch(8);
    drop(queue);
    batch
}

fn main() {}
