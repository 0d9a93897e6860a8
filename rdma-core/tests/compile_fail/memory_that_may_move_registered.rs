//! A type whose memory can be registered must promise, by `unsafe`, that the memory stays.

use std::ptr::NonNull;

struct OnTheStack([u8; 64]);

impl rdma_core::memory::StableMemoryMut for OnTheStack {
    fn memory(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut self.0)
    }
}

fn main() {}
