//! A reserved slot is for one request.

use rdma_core::{Buffer, ConcurrentSendQueue, ReservedSlot, SendRequest};

fn example(queue: &ConcurrentSendQueue<Buffer>, slot: ReservedSlot<'_>, one: Buffer, two: Buffer) {
    let _ = queue.post(slot, SendRequest::send(one));
    let _ = queue.post(slot, SendRequest::send(two));
}

fn main() {}
