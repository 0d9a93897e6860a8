//! Measures RDMA reads over rdma-core.

use rdma_core::SendRequest;

use super::Connection;
use super::posting::{run_bandwidth, run_latency};
use crate::control::Control;
use crate::error::Result;
use crate::session::Measured;

/// Measures the latency of reads of `size` bytes. Each read is posted when the previous read has
/// completed.
pub(super) fn latency(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (_, remote) = connection.first_peer_memory(size)?;
    run_latency(connection, size, control, |memory| {
        SendRequest::read(memory, remote)
    })
}

/// Measures the bandwidth of reads of `size` bytes. All reads of a queue pair put their data into
/// the same memory.
pub(super) fn bandwidth(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let parts = connection.allocate_scratch(size)?.into_iter();
    let requests = parts
        .zip(connection.peer_memories(size)?)
        .map(|(memory, target)| move || SendRequest::read(memory.clone(), target));
    run_bandwidth(connection, control, requests)
}
