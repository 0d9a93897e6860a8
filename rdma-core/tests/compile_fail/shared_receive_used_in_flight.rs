//! Memory in a shared receive queue is the device's: nobody can look at it.

use rdma_core::{Buffer, PostError, SharedReceiveQueue};

fn look(_: &[u8]) {}

fn example(queue: SharedReceiveQueue<Buffer>, buffer: Buffer) -> Result<(), PostError<Buffer>> {
    queue.post(buffer)?;
    look(&buffer);
    Ok(())
}

fn main() {}
