//! Measures RDMA writes over rdma-core, with and without immediate data.

use std::cell::Cell;

use rdma_core::{ExposedMemory, SendRequest, WorkCompletion};

use super::Connection;
use super::memory;
use super::posting::run_bandwidth;
use super::send::{ping_pong, unposted};
use crate::control::{Control, Watch};
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::{Measured, Role};

/// The immediate data of all writes that have immediate data. The receiver ignores the value.
const IMMEDIATE: u32 = 0;

/// Measures half of the round trip of writes with immediate data: each process writes to the other,
/// and waits for the receive completion of the peer's write.
pub(super) fn latency_with_immediate(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (_, remote) = connection.first_peer_memory(size)?;
    ping_pong(connection, size, control, |message| {
        SendRequest::write_with_immediate(message, remote, IMMEDIATE)
    })
}

/// Measures half of the round trip of writes. The last byte of each message is a counter, and each
/// process polls its memory for the peer's counter.
pub(super) fn latency(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let (target, remote) = connection.first_peer_memory(size)?;
    let last = size - 1;
    // The byte can be reset: no write is in flight between the tests of two sizes.
    target.store_u8(last, 0)?;
    let mut sends = connection.queue_pair().send_queue();
    let mut message = connection.allocate_message(size)?;
    let inline = size <= connection.inline;
    let mut recorder = Recorder::new(connection.plan.length);
    let mut room = [WorkCompletion::default()];
    control.barrier()?;
    let mut watch = control.watch(connection.ends_with_peer())?;
    let client = connection.role == Role::Client;
    while connection.ends_with_peer() || recorder.needs_more() {
        // The counter starts with 1 and always differs from the previous value of the byte.
        let count = (recorder.count() + 1) as u8;
        if !client && !arrived(&target, last, count, &mut watch)? {
            break;
        }
        recorder.record();
        message[last] = count;
        let request = SendRequest::write(message, remote);
        let request = if inline { request.inline() } else { request };
        sends.post(request).map_err(rdma_core::Error::from)?;
        if connection.sends.wait(&mut room, &mut watch)? == 0 {
            break;
        }
        message = sends.complete(&room[0]).next().ok_or_else(unposted)?;
        if client {
            arrived(&target, last, count, &mut watch)?;
        }
    }
    Measured::latency(&recorder, 2)
}

/// Waits until a message of the peer has arrived in the memory `target`. Polls the byte at the
/// offset `place` until the byte has the value `count`, the peer's message counter. Returns `false`
/// if the peer has finished without this message, so that this process must also stop. `watch`
/// checks that the peer is alive.
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

/// Measures the bandwidth of writes of `size` bytes. Each queue pair has its own memory in both
/// processes.
pub(super) fn bandwidth(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    if connection.plan.regions.is_some() {
        return scattered(connection, size, control);
    }
    let parts = connection.allocate_messages(size)?.into_iter();
    let parts = parts.zip(connection.peer_memories(size)?);
    let inline = size <= connection.inline;
    // Two loops, so that the kind of write is not chosen again for every message.
    if connection.plan.immediate {
        let requests = parts.map(|(message, target)| {
            move || {
                let request = SendRequest::write_with_immediate(message.clone(), target, IMMEDIATE);
                if inline { request.inline() } else { request }
            }
        });
        return run_bandwidth(connection, control, requests);
    }
    let requests = parts.map(|(message, target)| {
        move || {
            let request = SendRequest::write(message.clone(), target);
            if inline { request.inline() } else { request }
        }
    });
    run_bandwidth(connection, control, requests)
}

/// Measures the bandwidth of writes of `size` bytes to many addresses. Both processes divide their
/// memory regions into messages. Successive writes copy successive messages to the messages with
/// the same index in the peer's regions, and begin again after the last. `control` is the TCP
/// connection on which client and server coordinate the test.
fn scattered(connection: &Connection, size: usize, control: &mut Control) -> Result<Measured> {
    let stride = memory::stride(&connection.plan, size);
    let from = memory::messages(&connection.exposed, stride, size)?;
    // Pairs of source and target; a list for each peer.
    let mut messages: Vec<Vec<_>> = Vec::new();
    for peer in &connection.peers {
        let to = memory::remote_messages(&peer.regions, stride, size)?;
        messages.push(from.iter().cloned().zip(to).collect());
    }
    let inline = size <= connection.inline;
    let next = Cell::new(0);
    let requests = (0..connection.queue_pair_count()).map(|number| {
        let (messages, next) = (&*messages[number / connection.plan.queue_pairs], &next);
        move || {
            let place = next.get();
            next.set(if place + 1 == messages.len() {
                0
            } else {
                place + 1
            });
            let (memory, target) = &messages[place];
            let request = SendRequest::write(memory.clone(), *target);
            if inline { request.inline() } else { request }
        }
    });
    run_bandwidth(connection, control, requests)
}
