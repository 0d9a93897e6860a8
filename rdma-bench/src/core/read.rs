//! RDMA reads.

use rdma_core::{SendRequest, WorkCompletion};

use super::Connection;
use super::pump::pump;
use super::send::foreign;
use crate::control::Control;
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::Measured;

/// One read after the other.
pub(super) fn latency(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (_, remote) = connection.windows(size)?;
    let mut sends = connection.queue_pair.send_queue();
    let mut memory = connection.domain.allocate(size)?;
    let mut recorder = Recorder::new(connection.plan.length);
    let mut room = [WorkCompletion::default()];
    control.barrier()?;
    let mut watch = control.watch(false)?;
    while recorder.more() {
        recorder.stamp();
        let request = SendRequest::read(memory, remote);
        sends.post(request).map_err(rdma_core::Error::from)?;
        connection.sends.wait(&mut room, &mut watch)?;
        memory = sends.complete(&room[0]).next().ok_or_else(foreign)?;
    }
    Measured::latency(&recorder, 1)
}

/// Reads that all go to the same memory.
pub(super) fn bandwidth(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (_, remote) = connection.windows(size)?;
    let memory = connection.scratch(size)?;
    pump(connection, control, || {
        SendRequest::read(memory.clone(), remote)
    })
}
