//! RDMA reads.

use rdma_core::SendRequest;

use super::Connection;
use super::pump::{pump, turns};
use crate::control::Control;
use crate::error::Result;
use crate::session::Measured;

/// One read after the other.
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

/// Reads that all go to the same memory, each queue pair's to its own.
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
