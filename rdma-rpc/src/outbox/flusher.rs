//! The flusher: the task that sends the batches of a connection. The flusher runs after the other
//! tasks that were ready, so that their frames share a batch, and waits while the transport does
//! not accept more.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{Batch, Outbox};
use crate::error::Error;
use crate::link::Link;

/// Time after which a peer that accepts no message is disconnected, because calls on the connection
/// could otherwise wait forever. Longer than temporary congestion.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

impl Outbox {
    /// Runs the task that sends the messages of a connection. After each notification, the task
    /// sends all frames that wait to be sent. Returns when sending fails. The caller must end the
    /// connection with the returned error.
    pub(crate) async fn run_flusher(&self) -> Error {
        // A current-thread runtime runs all tasks that are ready before the notified flusher. Other
        // runtimes run a notified task next, so the flusher first yields to the other tasks.
        let yields = Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread;
        loop {
            self.flush_notify.notified().await;
            if yields {
                yield_now().await;
            }
            if let Err(error) = self.send_all_batches().await {
                return error;
            }
        }
    }

    /// Sends all frames that wait to be sent, also those in the message to which frames are still
    /// being appended. Waits while the transport does not accept more.
    async fn send_all_batches(&self) -> Result<(), Error> {
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
            self.count_sent(&mut state, &link, batch);
            outcome?;
        }
    }
}

/// Sends a batch (a message with one or more frames) over `link`, and waits until the transport has
/// accepted the batch. Fails if this takes longer than [`SEND_TIMEOUT`].
pub(super) async fn send(link: &Arc<Link>, batch: &mut Batch) -> Result<(), Error> {
    match timeout(SEND_TIMEOUT, link.send(batch)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::disconnected(format!(
            "the peer has accepted no message for {SEND_TIMEOUT:?}"
        ))),
    }
}
