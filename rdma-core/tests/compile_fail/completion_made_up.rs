//! A completion gives memory back, so only the device makes one.

use rdma_core::WorkCompletion;

fn example(raw: ibverbs_sys::ibv_wc) -> WorkCompletion {
    WorkCompletion::from_raw(raw)
}

fn main() {}
