//! RDMA writes, with and without immediate data.

use rdma_core::{ExposedMemory, SendRequest, WorkCompletion};

use super::Connection;
use super::memory;
use super::pump::pump;
use super::send::{exchange, foreign};
use crate::control::{Control, Watch};
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::{Measured, Role};

/// The immediate data of writes.
const IMMEDIATE: u32 = 0;

/// Each end writes to the other, and waits for the completion of a receive by the other's write.
pub(super) fn latency_with_immediate(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (_, remote) = connection.windows(size)?;
    exchange(connection, size, control, |message| {
        SendRequest::write_with_immediate(message, remote, IMMEDIATE)
    })
}

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
    let mut sends = connection.queue_pair().send_queue();
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

/// Waits until the byte at `place` is `count`, without a pause between two loads, as perftest does.
/// Returns `false` when the other end is done first and this one is to end with it.
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

/// Writes one way, each queue pair's from memory of its own to memory of its own.
pub(super) fn bandwidth(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    if connection.plan.regions.is_some() {
        return scattered(connection, size, control);
    }
    let (messages, targets) = (connection.messages(size)?, connection.targets(size)?);
    let inline = size <= connection.inline;
    // Two loops, so that neither tests for each message which of them it is.
    if connection.plan.immediate {
        return pump(connection, control, |lane| {
            let message = messages[lane].clone();
            let request = SendRequest::write_with_immediate(message, targets[lane], IMMEDIATE);
            if inline { request.inline() } else { request }
        });
    }
    pump(connection, control, |lane| {
        let request = SendRequest::write(messages[lane].clone(), targets[lane]);
        if inline { request.inline() } else { request }
    })
}

/// Writes one way, from every place of this end's regions to every place of the peer's in turn.
fn scattered(connection: &Connection, size: usize, control: &mut Control) -> Result<Measured> {
    let stride = memory::stride(&connection.plan, size);
    let from = memory::places(&connection.exposed, stride, size)?;
    let to: Vec<_> = connection
        .peers
        .iter()
        .map(|peer| memory::remote_places(&peer.regions, stride, size))
        .collect::<Result<_>>()?;
    let queue_pairs = connection.plan.queue_pairs;
    let inline = size <= connection.inline;
    let mut place = 0;
    pump(connection, control, |lane| {
        let to = &to[lane / queue_pairs];
        let request = SendRequest::write(from[place].clone(), to[place]);
        place = if place + 1 == from.len() {
            0
        } else {
            place + 1
        };
        if inline { request.inline() } else { request }
    })
}
