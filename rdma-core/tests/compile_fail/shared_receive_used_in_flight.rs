//! Memory in a shared receive queue belongs to the device: the program cannot read it.

use rdma_core::{Buffer, PostError, SharedReceiveQueue};

fn look(_: &[u8]) {}

fn example(queue: SharedReceiveQueue<Buffer>, buffer: Buffer) -> Result<(), PostError<Buffer>> {
    queue.post(buffer)?;
    look(&buffer);
    Ok(())
}

fn main() {}
