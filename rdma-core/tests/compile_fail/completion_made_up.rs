//! A completion makes a queue return memory, so safe code cannot create a completion.

use rdma_core::WorkCompletion;

fn example(raw: ibverbs_sys::ibv_wc) -> WorkCompletion {
    WorkCompletion::from_raw(raw)
}

fn main() {}
