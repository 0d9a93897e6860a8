//! Memory that a peer may write is copied from, and is never a slice.

use rdma_core::ExposedMemory;

fn example(exposed: &ExposedMemory) -> &[u8] {
    &exposed[..]
}

fn main() {}
