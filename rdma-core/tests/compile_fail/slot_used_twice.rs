//! A reserved slot can be used for one request only.

use rdma_core::{queue_pair::{ConcurrentSendQueue, ReservedSlot}, Buffer, SendRequest};

fn example(queue: &ConcurrentSendQueue<Buffer>, slot: ReservedSlot<'_>, one: Buffer, two: Buffer) {
    let _ = queue.post(slot, SendRequest::send(one));
    let _ = queue.post(slot, SendRequest::send(two));
}

fn main() {}
