//! RDMA writes.

use rdma_core::{ExposedMemory, SendRequest, WorkCompletion};

use super::Connection;
use super::pump::pump;
use super::send::foreign;
use crate::control::{Control, Watch};
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::{Measured, Role};

/// Each end writes to the other a message whose last byte counts, and waits for that byte here.
pub(super) fn latency(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (target, remote) = connection.windows(size)?;
    let last = size - 1;
    // No write is on its way between two sizes.
    target.store_u8(last, 0)?;
    let mut sends = connection.queue_pair.send_queue();
    let mut message = connection.message(size)?;
    let inline = size <= connection.inline;
    let mut recorder = Recorder::new(connection.plan.length);
    let mut room = [WorkCompletion::default()];
    control.barrier()?;
    let mut watch = control.watch(connection.ends_with_peer())?;
    let client = connection.role == Role::Client;
    while connection.ends_with_peer() || recorder.more() {
        // It begins with 1, and differs from the byte before.
        let count = (recorder.taken() + 1) as u8;
        if !client && !arrived(&target, last, count, &mut watch)? {
            break;
        }
        recorder.stamp();
        message[last] = count;
        let request = SendRequest::write(message, remote);
        let request = if inline { request.inline() } else { request };
        sends.post(request).map_err(rdma_core::Error::from)?;
        if connection.sends.wait(&mut room, &mut watch)? == 0 {
            break;
        }
        message = sends.complete(&room[0]).next().ok_or_else(foreign)?;
        if client {
            arrived(&target, last, count, &mut watch)?;
        }
    }
    Measured::latency(&recorder, 2)
}

/// Waits until the byte at `place` is `count`, looking without a pause as perftest does. Returns whether it is: it is not when the other end
/// is done and this one is to end with it.
#[inline]
fn arrived(target: &ExposedMemory, place: usize, count: u8, watch: &mut Watch) -> Result<bool> {
    while target.load_u8(place)? != count {
        if watch.idle()? {
            return Ok(false);
        }
    }
    watch.busy();
    Ok(true)
}

/// Writes one way.
pub(super) fn bandwidth(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (_, remote) = connection.windows(size)?;
    let message = connection.message(size)?.freeze();
    let inline = size <= connection.inline;
    pump(connection, control, || {
        let request = SendRequest::write(message.clone(), remote);
        if inline { request.inline() } else { request }
    })
}
