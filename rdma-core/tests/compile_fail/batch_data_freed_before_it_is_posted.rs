//! Inline data must stay valid until its batch is posted.
use rdma_core::{Buffer, SendQueue, SendRequest};
fn example(mut queue: SendQueue<Buffer>) {
    let mut batch = queue.batch();
    {
        let data = vec![1_u8];
        let _ = batch.push_inline(SendRequest::send(&data[..]));
    }
    let _ = batch.post();
}

fn main() {}
