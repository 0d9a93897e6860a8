//! A slice of registered memory cannot outlive the registration.

use rdma_core::{memory::BufferSlice, ProtectionDomain, Result};

fn example(domain: &ProtectionDomain) -> Result<BufferSlice<'_>> {
    let buffer = domain.allocate(64)?;
    buffer.slice(..8)
}

fn main() {}
