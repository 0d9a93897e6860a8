//! Memory cannot be freed while a part of the memory is borrowed.

use rdma_core::{Buffer, Result};

fn example(buffer: Buffer) -> Result<()> {
    let part = buffer.slice(..8)?;
    drop(buffer);
    println!("{}", part[0]);
    Ok(())
}

fn main() {}
