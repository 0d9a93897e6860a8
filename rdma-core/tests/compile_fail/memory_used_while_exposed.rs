//! Memory that a peer may write is not this process's alone.

use rdma_core::{AccessFlags, Buffer};

fn change(_: &mut [u8]) {}

fn example(mut buffer: Buffer) {
    let exposed = Buffer::expose(buffer, AccessFlags::REMOTE_WRITE);
    change(&mut buffer);
    drop(exposed);
}

fn main() {}
