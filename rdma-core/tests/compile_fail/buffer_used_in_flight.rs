//! Memory in flight belongs to the device: the program cannot read the memory.

use rdma_core::{Buffer, PostError, SendQueue, SendRequest};

fn look(_: &[u8]) {}

fn example(mut queue: SendQueue<Buffer>, buffer: Buffer) -> Result<(), PostError<Buffer>> {
    queue.post(SendRequest::send(buffer))?;
    look(&buffer);
    Ok(())
}

fn main() {}
