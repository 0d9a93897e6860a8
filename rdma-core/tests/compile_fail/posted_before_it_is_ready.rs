//! A queue pair that is not connected has no send queue.

use rdma_core::{Buffer, PreparedQueuePair, SendQueue};

fn example(prepared: PreparedQueuePair) -> SendQueue<Buffer> {
    prepared.send_queue()
}

fn main() {}
