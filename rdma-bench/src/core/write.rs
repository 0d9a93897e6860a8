//! Measures RDMA writes over rdma-core, with and without immediate data.

use std::cell::Cell;

use rdma_core::{ExposedMemory, SendRequest, WorkCompletion};

use super::Connection;
use super::memory;
use super::pump::pump;
use super::send::{exchange, foreign};
use crate::control::{Control, Watch};
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::{Measured, Role};

/// The immediate data of all writes. The receiver ignores the value.
const IMMEDIATE: u32 = 0;

/// Measures half of the round trip of writes with immediate data: each process writes, and waits for
/// the receive completion of the peer's write.
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

/// Measures half of the round trip of writes: the last byte of each message is a counter, and each
/// process polls its memory for the counter of the peer.
pub(super) fn latency(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (target, remote) = connection.windows(size)?;
    let last = size - 1;
    // The byte can be reset: no write is in flight between two sizes.
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
        // Starts with 1, and always differs from the previous value of the byte.
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

/// Polls until the byte at offset `place` is `count`, without a pause between two loads, as perftest
/// does. Returns `false` if the peer finished first, so that this process must stop, too.
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

/// Measures the bandwidth of writes. Each queue pair has its own memory in both processes.
pub(super) fn bandwidth(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    if connection.plan.regions.is_some() {
        return scattered(connection, size, control);
    }
    let parts = connection.messages(size)?.into_iter();
    let parts = parts.zip(connection.targets(size)?);
    let inline = size <= connection.inline;
    // Two loops, so that the kind of write is not chosen again for every message.
    if connection.plan.immediate {
        let requests = parts.map(|(message, target)| {
            move || {
                let request = SendRequest::write_with_immediate(message.clone(), target, IMMEDIATE);
                if inline { request.inline() } else { request }
            }
        });
        return pump(connection, control, requests);
    }
    let requests = parts.map(|(message, target)| {
        move || {
            let request = SendRequest::write(message.clone(), target);
            if inline { request.inline() } else { request }
        }
    });
    pump(connection, control, requests)
}

/// Measures the bandwidth of writes to many addresses. Each write copies the next message of this
/// process's regions to the same position in the peer's regions.
fn scattered(connection: &Connection, size: usize, control: &mut Control) -> Result<Measured> {
    let stride = memory::stride(&connection.plan, size);
    let from = memory::places(&connection.exposed, stride, size)?;
    // Pairs of source and target; a list for each peer.
    let mut places: Vec<Vec<_>> = Vec::new();
    for peer in &connection.peers {
        let to = memory::remote_places(&peer.regions, stride, size)?;
        places.push(from.iter().cloned().zip(to).collect());
    }
    let inline = size <= connection.inline;
    let next = Cell::new(0);
    let requests = (0..connection.width()).map(|number| {
        let (places, next) = (&*places[number / connection.plan.queue_pairs], &next);
        move || {
            let place = next.get();
            next.set(if place + 1 == places.len() {
                0
            } else {
                place + 1
            });
            let (memory, target) = &places[place];
            let request = SendRequest::write(memory.clone(), *target);
            if inline { request.inline() } else { request }
        }
    });
    pump(connection, control, requests)
}
