//! Memory cannot be written while a read borrow of the memory exists.

use rdma_core::{Buffer, Result};

fn example(mut buffer: Buffer) -> Result<()> {
    let part = buffer.slice(..8)?;
    buffer[0] = 1;
    println!("{}", part[0]);
    Ok(())
}

fn main() {}
