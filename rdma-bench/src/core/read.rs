//! Measures RDMA reads over rdma-core.

use rdma_core::SendRequest;

use super::Connection;
use super::pump::{pump, turns};
use crate::control::Control;
use crate::error::Result;
use crate::session::Measured;

/// Measures the latency of reads, each posted when the previous one has completed.
pub(super) fn latency(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (_, remote) = connection.windows(size)?;
    turns(connection, size, control, |memory| {
        SendRequest::read(memory, remote)
    })
}

/// Measures the bandwidth of reads. All reads of a queue pair write to the same memory.
pub(super) fn bandwidth(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let parts = connection.scratches(size)?.into_iter();
    let requests = parts
        .zip(connection.targets(size)?)
        .map(|(memory, target)| move || SendRequest::read(memory.clone(), target));
    pump(connection, control, requests)
}
