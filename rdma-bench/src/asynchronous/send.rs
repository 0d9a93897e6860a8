//! Measures messages that are sent and received over rdma-async.

use super::connection::Setup;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::Role;

/// Size in bytes of the longest message that rdma-async sends in one piece by default. A longer
/// message stays in the sender's memory, from which the receiver reads it.
const MAX_PIECE: usize = 4352;
/// Maximum number of messages longer than [`MAX_PIECE`] that the receiver reads from the sender's
/// memory at the same time. With a maximum of 1, each read would wait for the end of the previous
/// read.
const MAX_READERS: usize = 16;

/// Measures half of the round trip of a message of `size` bytes and its echo. The client sends
/// first. `recorder` records the time of each send, and ends the test. In a test with a duration,
/// the server does not end the test itself, but runs until the caller drops the future.
pub(super) async fn latency(setup: &Setup, size: usize, recorder: &mut Recorder) -> Result<()> {
    let rdma = &setup.rdma;
    let message = setup.allocate(size)?;
    let client = setup.role == Role::Client;
    while setup.ends_with_peer() || recorder.needs_more() {
        if !client {
            rdma.receive().await?;
        }
        recorder.record();
        rdma.send(&message).await?;
        if client {
            rdma.receive().await?;
        }
        setup.progress.increment();
    }
    Ok(())
}

/// Sends the messages of a bandwidth test, each of `size` bytes. The number of sends in flight is
/// the depth of the test. `window` decides when the test ends, and measures the time.
pub(super) async fn bandwidth(setup: &Setup, size: usize, window: &Window) -> Result<()> {
    let message = setup.allocate(size)?;
    let send = async || {
        while window.claim() {
            setup.rdma.send(&message).await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.run_all((0..setup.depth).map(|_| send())).await
}

/// Receives the messages of a bandwidth test, each of `size` bytes. `window` measures the time from
/// the first message to the last.
pub(super) async fn receive_all(setup: &Setup, size: usize, window: &Window) -> Result<()> {
    let receive = async || {
        while window.claim() {
            setup.rdma.receive().await?;
            window.complete();
        }
        Ok(())
    };
    let receivers = if size > MAX_PIECE { MAX_READERS } else { 1 };
    window.run_all((0..receivers).map(|_| receive())).await
}
