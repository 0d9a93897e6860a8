//! Measures messages that are sent and received over rdma-async.

use super::connection::Ends;
use super::window::Window;
use crate::error::Result;
use crate::recorder::Recorder;
use crate::session::Role;

/// Size in bytes of the longest message that rdma-async by default sends whole. A longer message stays
/// in the sender's memory, and the receiver reads it from there.
const ONE_PIECE: usize = 4096;
/// Number of long messages that the receiver reads concurrently.
const READERS: usize = 16;

/// Measures half of the round trip of a message and its echo.
pub(super) async fn latency(ends: &Ends, size: usize, recorder: &mut Recorder) -> Result<()> {
    let rdma = &ends.rdma;
    let message = ends.allocate(size)?;
    let client = ends.role == Role::Client;
    while ends.ends_with_peer() || recorder.more() {
        if !client {
            rdma.receive().await?;
        }
        recorder.stamp();
        rdma.send(&message).await?;
        if client {
            rdma.receive().await?;
        }
        ends.progress.step();
    }
    Ok(())
}

/// Sends the messages of a bandwidth test, with as many sends at once as the test's depth.
pub(super) async fn bandwidth(ends: &Ends, size: usize, window: &Window) -> Result<()> {
    let message = ends.allocate(size)?;
    let send = async || {
        while window.take() {
            ends.rdma.send(&message).await?;
            window.complete();
        }
        Ok(())
    };
    window.begin();
    window.drive((0..ends.depth).map(|_| send())).await
}

/// Receives the messages of a bandwidth test. The measured time is from the first message to the last.
pub(super) async fn receive_all(ends: &Ends, size: usize, window: &Window) -> Result<()> {
    let receive = async || {
        while window.take() {
            ends.rdma.receive().await?;
            window.complete();
        }
        Ok(())
    };
    let receivers = if size > ONE_PIECE { READERS } else { 1 };
    window.drive((0..receivers).map(|_| receive())).await
}
