//! Nobody writes what another one reads.

use rdma_core::{Buffer, Result};

fn example(mut buffer: Buffer) -> Result<()> {
    let part = buffer.slice(..8)?;
    buffer[0] = 1;
    println!("{}", part[0]);
    Ok(())
}

fn main() {}
