//! [`HalfOpen`]: the handshakes of a listener that are in progress, limited in number.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::error::Result;
use crate::rdma::Rdma;

/// Minimum duration of a handshake, before the listener can end it in favor of a waiting peer. Long
/// enough for a round trip over a network: a peer sends its first message together with the last
/// packet of the TCP handshake.
const MIN_HANDSHAKE_TIME: Duration = Duration::from_millis(100);
/// Minimum duration of a handshake, before the listener can end it in favor of a waiting peer, if
/// the peer of the handshake has proved that it may connect. The proof is a valid first message
/// and, if required, a valid token. Long enough for the creation of the queue pair and the last
/// messages.
const MIN_PROVED_HANDSHAKE_TIME: Duration = Duration::from_millis(500);

/// Handshakes that a listener is performing, each in a task. The number of handshakes is limited.
/// At the limit, if another peer waits, the listener ends the oldest handshake whose peer has not
/// proved that it may connect. If there is no such handshake, the listener ends the oldest
/// handshake. Peers that connect and send nothing thus do not block other peers.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    /// Tasks of the handshakes. The outcome is `None` if the listener has ended the handshake.
    tasks: JoinSet<Option<Result<Rdma>>>,
    /// Handshakes, oldest first.
    entries: VecDeque<Entry>,
    limit: usize,
    /// Timer for the end of the oldest handshake, while the maximum is reached.
    timer: Option<Pin<Box<Sleep>>>,
}

/// A handshake in progress: its task, its start time, and its state. At the limit of handshakes, if
/// another peer waits, the listener ends a handshake that has lasted a minimum time. The state
/// determines which handshake ends, and the minimum time.
#[derive(Debug)]
struct Entry {
    task: AbortHandle,
    begun: Instant,
    state: Arc<HandshakeState>,
}

/// State of a handshake, shared by the listener and the task that performs the handshake. Contains
/// two flags. The first is set when the peer has proved that it may connect. The second is set when
/// the listener ends the handshake.
#[derive(Debug, Default)]
pub(crate) struct HandshakeState {
    has_proved: AtomicBool,
    is_evicted: AtomicBool,
    eviction: Notify,
}

impl HandshakeState {
    /// Records that the peer has sent a valid first message (hello) and, if authentication is
    /// required, a valid token (proof that it may connect). The handshake then gets more time.
    pub(crate) fn set_proved(&self) {
        self.has_proved.store(true, Ordering::Relaxed);
    }

    fn has_proved(&self) -> bool {
        self.has_proved.load(Ordering::Relaxed)
    }

    /// Waits until the listener demands the end of this handshake, because too many handshakes are
    /// in progress and another peer waits. Only the task of the handshake may call this function:
    /// the wakeup reaches only one task.
    pub(crate) async fn evicted(&self) {
        self.eviction.notified().await;
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        self.eviction.notify_one();
    }
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

    /// Polls for a handshake that has ended. Returns the connection that the handshake has
    /// established, or the error of the handshake. Returns `Ready(None)` if no handshake is in
    /// progress.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Rdma>>> {
        loop {
            let Some(ended) = ready!(self.tasks.poll_join_next(cx)) else {
                return Poll::Ready(None);
            };
            self.entries.retain(|entry| !entry.task.is_finished());
            match ended {
                Ok(Some(outcome)) => return Poll::Ready(Some(outcome)),
                Ok(None) => {}
                Err(stopped) if stopped.is_panic() => {
                    std::panic::resume_unwind(stopped.into_panic())
                }
                // The runtime has ended.
                Err(_) => {}
            }
        }
    }

    /// Polls until the number of handshakes in progress is below the limit. At the limit, ends a
    /// handshake after its minimum time: the oldest handshake whose peer has not proved that it may
    /// connect, or else the oldest handshake. The caller must call this function only while a peer
    /// waits to connect.
    pub(crate) fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.entries.len() < self.limit {
            return Poll::Ready(());
        }
        let has_not_proved = |entry: &Entry| !entry.state.has_proved();
        let oldest = self.entries.iter().position(has_not_proved).unwrap_or(0);
        let Some(entry) = self.entries.get(oldest) else {
            return Poll::Ready(());
        };
        let min_time = match has_not_proved(entry) {
            true => MIN_HANDSHAKE_TIME,
            false => MIN_PROVED_HANDSHAKE_TIME,
        };
        let end = entry.begun + min_time;
        if Instant::now() < end {
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
            timer.as_mut().reset(end);
            ready!(timer.as_mut().poll(cx));
        }
        if let Some(entry) = self.entries.remove(oldest) {
            tracing::debug!(limit = self.limit, "handshake ended: another peer waits");
            entry.state.evict();
        }
        Poll::Ready(())
    }

    /// Begins a handshake in a new task. `handshake` creates the future of the task. This future
    /// must call [`HandshakeState::set_proved`] when the peer has proved that it may connect, and
    /// must end soon after [`HandshakeState::evicted`] resolves.
    pub(crate) fn begin<F>(&mut self, handshake: impl FnOnce(Arc<HandshakeState>) -> F)
    where
        F: Future<Output = Result<Rdma>> + Send + 'static,
    {
        let state = Arc::<HandshakeState>::default();
        let handshake = handshake(Arc::clone(&state));
        let task_state = Arc::clone(&state);
        let task = self.tasks.spawn(async move {
            let outcome = handshake.await;
            let is_evicted = task_state.is_evicted.load(Ordering::Relaxed);
            (outcome.is_ok() || !is_evicted).then_some(outcome)
        });
        self.entries.push_back(Entry {
            task,
            begun: Instant::now(),
            state,
        });
    }
}
