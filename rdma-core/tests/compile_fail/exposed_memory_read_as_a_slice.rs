//! Memory that a peer may write is read by copies, and never as a slice.

use rdma_core::ExposedMemory;

fn example(exposed: &ExposedMemory) -> &[u8] {
    &exposed[..]
}

fn main() {}
