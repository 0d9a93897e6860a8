//! Long frames, each of which is a message of its own.

use std::ops::Deref;

use super::{Batch, CROWDED, Outbox, ended, flusher};
use crate::core::Core;
use crate::error::Error;

/// Returns the future that sends a message of one long frame. The frame counts as waiting from now
/// on, not only from the first poll, because a turn of the scheduler may produce many.
pub(crate) fn send_long<C: Deref<Target = Core>>(
    core: C,
    batch: Batch,
) -> impl Future<Output = Result<(), Error>> {
    let counted = Counted::new(core, batch.len());
    async move {
        let outcome = counted.core.outbox.send_counted(batch).await;
        drop(counted);
        outcome
    }
}

impl Outbox {
    async fn send_counted(&self, mut batch: Batch) -> Result<(), Error> {
        let link = self.link().ok_or_else(ended)?;
        if link.sends_concurrently() {
            {
                let sent = &mut self.state.lock().sent;
                sent.frames += 1;
                sent.messages += 1;
            }
            return flusher::send(&link, &mut batch).await;
        }
        // Not until there is room: long frames that wait leave none.
        let is_queue_short = || {
            let state = self.state.lock();
            state.link.is_none() || state.queued <= CROWDED
        };
        self.wait_until(is_queue_short).await;
        let mut state = self.state.lock();
        state.close_batch();
        state.queued += batch.len();
        state.queue.push_back(batch);
        self.send_queue(&mut state)
    }
}

/// Long frame that counts as waiting until this value is dropped.
struct Counted<C: Deref<Target = Core>> {
    core: C,
    len: usize,
}

impl<C: Deref<Target = Core>> Counted<C> {
    fn new(core: C, len: usize) -> Self {
        let outbox = &core.outbox;
        let mut state = outbox.state.lock();
        state.long += len;
        // A connection that has ended has room, so that nobody waits.
        if state.link.is_some() {
            outbox.update_crowded(&state);
        }
        drop(state);
        Self { core, len }
    }
}

impl<C: Deref<Target = Core>> Drop for Counted<C> {
    fn drop(&mut self) {
        let outbox = &self.core.outbox;
        let mut state = outbox.state.lock();
        state.long -= self.len;
        if state.link.is_some() {
            outbox.update_crowded(&state);
        }
    }
}
