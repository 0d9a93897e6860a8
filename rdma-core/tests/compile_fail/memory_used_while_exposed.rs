//! Memory that a peer may write is not accessible as a slice in this process.

use rdma_core::{AccessFlags, Buffer};

fn change(_: &mut [u8]) {}

fn example(mut buffer: Buffer) {
    let exposed = Buffer::expose(buffer, AccessFlags::REMOTE_WRITE);
    change(&mut buffer);
    drop(exposed);
}

fn main() {}
