//! Two writable parts of a buffer that are borrowed one by one could overlap.

use rdma_core::{Buffer, Result};

fn example(mut buffer: Buffer) -> Result<()> {
    let mut one = buffer.slice_mut(..8)?;
    let mut other = buffer.slice_mut(4..)?;
    one[0] = other[0];
    other[0] = 1;
    Ok(())
}

fn main() {}
