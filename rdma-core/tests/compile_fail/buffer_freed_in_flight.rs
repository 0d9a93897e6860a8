//! Memory in flight cannot be freed.

use rdma_core::{Buffer, PostError, ReceiveQueue};

fn example(mut queue: ReceiveQueue<Buffer>, buffer: Buffer) -> Result<(), PostError<Buffer>> {
    queue.post(buffer)?;
    drop(buffer);
    Ok(())
}

fn main() {}
