//! Connecting consumes the queue pair, so a queue pair cannot be connected twice.

use rdma_core::{ConnectOptions, Endpoint, PreparedQueuePair, Result};

fn example(prepared: PreparedQueuePair, peer: &Endpoint) -> Result<()> {
    let options = ConnectOptions::default();
    let one = PreparedQueuePair::connect(prepared, peer, &options)?;
    let other = PreparedQueuePair::connect(prepared, peer, &options)?;
    drop((one, other));
    Ok(())
}

fn main() {}
