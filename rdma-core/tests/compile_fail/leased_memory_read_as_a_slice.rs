//! Memory that a peer may write through a window cannot be read as a slice.

use rdma_core::memory::WindowLease;

fn example(lease: &WindowLease) -> &[u8] {
    &lease[..]
}

fn main() {}
