//! Memory that a peer may write through a window is no slice either.

use rdma_core::memory::WindowLease;

fn example(lease: &WindowLease) -> &[u8] {
    &lease[..]
}

fn main() {}
