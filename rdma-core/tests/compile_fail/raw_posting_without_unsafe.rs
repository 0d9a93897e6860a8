//! The caller guarantees the validity of the memory of raw requests, so posting is `unsafe`.

use ibverbs_sys::ibv_send_wr;
use rdma_core::QueuePair;

fn example(pair: &QueuePair, request: &mut ibv_send_wr) {
    let _ = pair.post_send_raw(request);
}

fn main() {}
