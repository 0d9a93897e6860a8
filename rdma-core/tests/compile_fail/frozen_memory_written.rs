//! Several requests may use frozen memory at the same time, so the memory is read-only.

use rdma_core::FrozenBuffer;

fn example(frozen: &mut FrozenBuffer) {
    frozen[0] = 1;
}

fn main() {}
