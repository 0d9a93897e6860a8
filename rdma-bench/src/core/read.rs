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
    let (memory, targets) = (connection.scratches(size)?, connection.targets(size)?);
    pump(connection, control, |lane| {
        SendRequest::read(memory[lane].clone(), targets[lane])
    })
}
