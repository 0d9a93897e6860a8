//! Memory is not freed while a part of it is borrowed.

use rdma_core::{Buffer, Result};

fn example(buffer: Buffer) -> Result<()> {
    let part = buffer.slice(..8)?;
    drop(buffer);
    println!("{}", part[0]);
    Ok(())
}

fn main() {}
