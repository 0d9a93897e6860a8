//! Measures sends and receives over rdma-core.

use std::time::Instant;

use rdma_core::{Buffer, SendRequest, WorkCompletion};

use super::Connection;
use super::completions::Completions;
use super::posting::run_bandwidth;
use super::receives::Receives;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::recorder::Recorder;
use crate::session::{Measured, Role};
use crate::statistics::Bandwidth;

#[cold]
pub(super) fn unposted() -> Error {
    Error::Protocol("a completion of a request that was not posted".into())
}

/// Measures half of the round trip of a message of `size` bytes and its echo over rdma-core. The
/// peer is on the other end of `connection`; `control` is the control connection to the peer.
pub(super) fn latency(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    ping_pong(connection, size, control, SendRequest::send)
}

/// Measures half of the round trip of two messages, one in each direction. Each process detects the
/// peer's message by the completion of a receive. The function `request` creates the request that
/// sends a message from the message's memory. `control` is the TCP connection on which client and
/// server coordinate the test.
pub(super) fn ping_pong(
    connection: &Connection,
    size: usize,
    control: &mut Control,
    request: impl Fn(Buffer) -> SendRequest<Buffer>,
) -> Result<Measured> {
    let mut receives = Receives::post(connection, size)?;
    let mut sends = connection.queue_pair().send_queue();
    let mut message = connection.allocate_message(size)?;
    let inline = size <= connection.inline;
    let mut recorder = Recorder::new(connection.plan.length);
    let mut room = [WorkCompletion::default()];
    control.barrier()?;
    let mut watch = control.watch(connection.ends_with_peer())?;
    let client = connection.role == Role::Client;
    while connection.ends_with_peer() || recorder.needs_more() {
        if !client {
            if connection.receives.wait(&mut room, &mut watch)? == 0 {
                break;
            }
            receives.repost(&room[0])?;
        }
        recorder.record();
        let request = request(message);
        let request = if inline { request.inline() } else { request };
        sends.post(request).map_err(rdma_core::Error::from)?;
        if connection.sends.wait(&mut room, &mut watch)? == 0 {
            break;
        }
        message = sends.complete(&room[0]).next().ok_or_else(unposted)?;
        if client {
            connection.receives.wait(&mut room, &mut watch)?;
            receives.repost(&room[0])?;
        }
    }
    Measured::latency(&recorder, 2)
}

/// Sends the messages of a bandwidth test, each of `size` bytes. Returns the bandwidth in messages
/// per second.
pub(super) fn send_all(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let inline = size <= connection.inline;
    let messages = connection.allocate_messages(size)?;
    let requests = messages.into_iter().map(|message| {
        move || {
            let request = SendRequest::send(message.clone());
            if inline { request.inline() } else { request }
        }
    });
    run_bandwidth(connection, control, requests)
}

/// Receives the messages of a bandwidth test, each of `size` bytes, and returns the bandwidth. The
/// measured time is that from the first message to the last.
pub(super) fn receive_all(
    connection: &Connection,
    size: usize,
    control: &mut Control,
) -> Result<Measured> {
    let mut receives = Receives::post(connection, size)?;
    let mut room = [WorkCompletion::default(); Completions::BATCH];
    let mut first = None;
    let mut last = Instant::now();
    let (goal, mut received) = (connection.total_messages(), 0);
    control.barrier()?;
    let mut watch = control.watch(connection.ends_with_peer())?;
    while received < goal {
        let count = connection.receives.wait(&mut room, &mut watch)?;
        if count == 0 {
            break;
        }
        last = Instant::now();
        first.get_or_insert(last);
        for completion in &room[..count] {
            receives.repost(completion)?;
        }
        received += count;
    }
    let duration = last - first.unwrap_or(last);
    Ok(Measured::Bandwidth(Bandwidth::over(received, duration)))
}
