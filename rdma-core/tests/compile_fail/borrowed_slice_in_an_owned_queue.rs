//! A queue that keeps memory in flight does not accept borrowed memory.

use rdma_core::{memory::BufferSlice, QueuePair, SendRequest};

fn example(pair: &QueuePair, part: BufferSlice<'_>) {
    let mut queue = pair.send_queue();
    let _ = queue.post(SendRequest::send(part));
}

fn main() {}
