//! Who posts raw requests vouches for their memory.

use ibverbs_sys::ibv_send_wr;
use rdma_core::QueuePair;

fn example(pair: &QueuePair, request: &mut ibv_send_wr) {
    let _ = pair.post_send_raw(request);
}

fn main() {}
