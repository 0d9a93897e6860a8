//! The sending of long frames: frames that do not fit into a batch, each as a separate message.

use std::ops::Deref;

use super::{Batch, MAX_QUEUED, Outbox, ended, flusher};
use crate::core::Core;
use crate::error::Error;

/// Returns a future that sends `batch`, a message with a single long frame. The frame counts
/// against the limit of waiting bytes from the call of this function on, not only from the first
/// poll of the future. Otherwise, too many long frames could be created before the first is polled.
pub(crate) fn send_long<C: Deref<Target = Core>>(
    core: C,
    batch: Box<Batch>,
) -> impl Future<Output = Result<(), Error>> {
    let counted = CountedFrame::new(core, batch.len());
    async move {
        let outcome = counted.core.outbox.send_counted(batch).await;
        drop(counted);
        outcome
    }
}

impl Outbox {
    /// Sends `batch`, a message with a single long frame. If the transport allows, sends this
    /// message concurrently with other messages. Otherwise, sends it after the queued messages. The
    /// caller must hold a [`CountedFrame`] until this function returns, so that the frame counts
    /// against the limit of unsent bytes.
    async fn send_counted(&self, mut batch: Box<Batch>) -> Result<(), Error> {
        let link = self.link().ok_or_else(ended)?;
        if link.sends_concurrently() {
            {
                let sent = &mut self.state.lock().sent;
                sent.frames += 1;
                sent.messages += 1;
            }
            return flusher::send(&link, &mut batch).await;
        }
        // Waits for the short frames only: `wait_for_room` would also wait for this frame.
        let is_queue_short = || {
            let state = self.state.lock();
            state.link.is_none() || state.queued <= MAX_QUEUED
        };
        self.wait_until(is_queue_short).await;
        let mut state = self.state.lock();
        if state.link.is_none() {
            return Err(ended());
        }
        state.close_batch();
        state.push(*batch);
        self.send_queue(&mut state)
    }
}

/// Guard that counts a long frame of `len` bytes as waiting to be sent, until the guard is dropped.
/// New calls wait while too many bytes wait to be sent.
struct CountedFrame<C: Deref<Target = Core>> {
    core: C,
    len: usize,
}

impl<C: Deref<Target = Core>> CountedFrame<C> {
    fn new(core: C, len: usize) -> Self {
        let outbox = &core.outbox;
        let mut state = outbox.state.lock();
        state.long += len;
        outbox.update_full(&state);
        drop(state);
        Self { core, len }
    }
}

impl<C: Deref<Target = Core>> Drop for CountedFrame<C> {
    fn drop(&mut self) {
        let outbox = &self.core.outbox;
        let mut state = outbox.state.lock();
        state.long -= self.len;
        outbox.update_full(&state);
    }
}
