//! The handshakes of a listener that have not ended, of which there is a maximum.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::error::Result;
use crate::rdma::Rdma;

/// Minimum time that a handshake gets, even if other peers wait. Ample for a peer on a network,
/// which sends its first message together with the last packet of the TCP handshake.
const GRACE: Duration = Duration::from_millis(100);
/// Minimum time that a handshake gets whose peer has proved itself, even if other peers wait. Ample
/// for the creation of the queue pair and the last messages.
const GRACE_OF_PROVED: Duration = Duration::from_millis(500);

/// Handshakes of a listener, each in a task. If the maximum is reached and another peer waits, the
/// oldest handshake ends: peers that connect and stay silent do not keep others from connecting.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    tasks: JoinSet<Result<Rdma>>,
    /// Handshakes in the order of their beginning.
    entries: VecDeque<Entry>,
    limit: usize,
    /// Timer for the oldest handshake, while the maximum is reached.
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct Entry {
    task: AbortHandle,
    begun: Instant,
    /// Set once the peer has sent a valid hello, and a proof if one is required.
    has_proved: Arc<AtomicBool>,
}

impl HalfOpen {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            entries: VecDeque::new(),
            limit,
            timer: None,
        }
    }

    /// Returns the outcome of the next handshake that ends. Returns `Ready(None)` if there is none.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Rdma>>> {
        loop {
            let Some(ended) = ready!(self.tasks.poll_join_next(cx)) else {
                return Poll::Ready(None);
            };
            self.entries.retain(|entry| !entry.task.is_finished());
            match ended {
                Ok(outcome) => return Poll::Ready(Some(outcome)),
                Err(stopped) if stopped.is_panic() => {
                    std::panic::resume_unwind(stopped.into_panic())
                }
                // A handshake that was ended for another peer.
                Err(_) => {}
            }
        }
    }

    /// Waits until another handshake may begin, and ends the oldest one if necessary. Called only
    /// while a peer waits.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.entries.len() < self.limit {
            return Poll::Ready(());
        }
        let has_not_proved = |entry: &Entry| !entry.has_proved.load(Ordering::Relaxed);
        let oldest = self.entries.iter().position(has_not_proved).unwrap_or(0);
        let Some(entry) = self.entries.get(oldest) else {
            return Poll::Ready(());
        };
        let grace = match has_not_proved(entry) {
            true => GRACE,
            false => GRACE_OF_PROVED,
        };
        let end = entry.begun + grace;
        if Instant::now() < end {
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
            timer.as_mut().reset(end);
            ready!(timer.as_mut().poll(cx));
        }
        if let Some(entry) = self.entries.remove(oldest) {
            tracing::debug!(limit = self.limit, "a handshake was ended for another peer");
            entry.task.abort();
        }
        Poll::Ready(())
    }

    /// Begins a handshake, whose future `handshake` creates. The future sets the flag once the peer
    /// has proved that it speaks the protocol and may connect.
    pub(crate) fn begin<F>(&mut self, handshake: impl FnOnce(Arc<AtomicBool>) -> F)
    where
        F: Future<Output = Result<Rdma>> + Send + 'static,
    {
        let has_proved = Arc::new(AtomicBool::new(false));
        let task = self.tasks.spawn(handshake(Arc::clone(&has_proved)));
        self.entries.push_back(Entry {
            task,
            begun: Instant::now(),
            has_proved,
        });
    }
}
