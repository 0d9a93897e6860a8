//! Frozen memory may be in several requests at once, and is for reading.

use rdma_core::FrozenBuffer;

fn example(frozen: &mut FrozenBuffer) {
    frozen[0] = 1;
}

fn main() {}
