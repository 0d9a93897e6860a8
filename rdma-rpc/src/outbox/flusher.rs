//! The flusher: the task that sends the batches of a connection at the end of a turn of the
//! scheduler, and waits for a transport that accepts no more.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{Batch, Outbox};
use crate::error::Error;
use crate::link::Link;

/// Time after which a peer that takes no message is disconnected.
const STALLED: Duration = Duration::from_secs(30);

impl Outbox {
    /// Sends batches whenever the flusher is notified. Returns the error that ends the connection.
    pub(crate) async fn run_flusher(&self) -> Error {
        // On a runtime with one thread, the tasks that are ready now run before this one. Other
        // runtimes run a notified task next, so this one goes back to the end of the queue first.
        let yields = Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread;
        loop {
            self.work.notified().await;
            if yields {
                yield_now().await;
            }
            if let Err(error) = self.send_everything().await {
                return error;
            }
        }
    }

    async fn send_everything(&self) -> Result<(), Error> {
        loop {
            let (link, mut batch) = {
                let mut state = self.state.lock();
                state.is_scheduled = false;
                state.close_batch();
                self.send_queue(&mut state)?;
                let Some(batch) = state.queue.pop_front() else {
                    return Ok(());
                };
                let Some(link) = state.link.clone() else {
                    return Ok(());
                };
                state.is_sending = true;
                (link, batch)
            };
            let outcome = send(&link, &mut batch).await;
            let mut state = self.state.lock();
            state.is_sending = false;
            self.sent(&mut state, &link, batch);
            outcome?;
        }
    }
}

/// Sends a batch, for at most [`STALLED`].
pub(super) async fn send(link: &Arc<Link>, batch: &mut Batch) -> Result<(), Error> {
    match timeout(STALLED, link.send(batch)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::disconnected(format!(
            "the peer has taken no message for {STALLED:?}"
        ))),
    }
}
