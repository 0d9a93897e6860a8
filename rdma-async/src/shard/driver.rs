//! The task of a shard.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rdma_core::CompletionChannel;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::sleep_until;

use super::{Polled, Shard};
use crate::builder::CompletionMode;
use crate::connection::Connection;
use crate::error::{Error, Result};

/// Number of polls of one turn of the driver while nothing else runs on its thread.
const POLLS: u32 = 64;
/// Time between two turns of the driver below which no other task ran meanwhile.
const ALONE: Duration = Duration::from_micros(1);

/// Polls for the futures that wait, and sleeps on the channel otherwise.
struct Driver {
    shard: Weak<Shard>,
    channel: AsyncFd<CompletionChannel>,
    wake: Arc<Notify>,
    /// Room for the connections of a turn.
    spare: Vec<Arc<Connection>>,
}

/// Starts the driver of a shard on the current runtime.
pub(super) fn spawn(shard: &Arc<Shard>, channel: AsyncFd<CompletionChannel>) {
    let mut driver = Driver {
        shard: Arc::downgrade(shard),
        channel,
        wake: Arc::clone(&shard.wake),
        spare: Vec::new(),
    };
    tokio::spawn(async move {
        if let Err(error) = driver.serve().await {
            tracing::error!(%error, "the completions of a shard are not announced any more");
            if let Some(shard) = driver.shard.upgrade() {
                shard.fail(&error).await;
            }
        }
    });
}

impl Driver {
    async fn serve(&mut self) -> Result<()> {
        while let Some(shard) = self.shard.upgrade() {
            self.poll_while_busy(&shard).await;
            if self.arm(&shard).await? {
                continue;
            }
            let deadline = shard.deadlines.next();
            drop(shard);
            tokio::select! {
                // The channel is drained before it is armed, after which the next announcement is an edge.
                ready = self.channel.readable() => ready
                    .map_err(|source| Error::tcp("waiting for", "completions", source))?
                    .clear_ready(),
                () = self.wake.notified() => {}
                () = until(deadline) => {}
            }
            if let Some(shard) = self.shard.upgrade() {
                shard.is_asleep.store(false, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Polls, a turn of the executor at a time, until nothing has come for the time that the mode says.
    async fn poll_while_busy(&mut self, shard: &Arc<Shard>) {
        let spin = match shard.profile.completion {
            CompletionMode::Event => Duration::ZERO,
            CompletionMode::Adaptive { spin } => spin,
            CompletionMode::Busy => Duration::MAX,
        };
        let mut quiet_since = Instant::now();
        let mut turn_ended = quiet_since;
        loop {
            let begun = Instant::now();
            shard.turn.end(&mut self.spare);
            shard.deadlines.pass(begun);
            // Where other tasks run, they are not kept waiting.
            let polls = if begun - turn_ended < ALONE { POLLS } else { 1 };
            let mut found = false;
            for _ in 0..polls {
                found |= shard.poll() != Polled::Found(0);
                if found {
                    break;
                }
                std::hint::spin_loop();
            }
            turn_ended = Instant::now();
            if found {
                quiet_since = turn_ended;
            } else if turn_ended - quiet_since >= spin || Arc::strong_count(shard) == 1 {
                return;
            }
            yield_now().await;
        }
    }

    /// Has the next completion announced. Returns whether some came before, so that there may be more.
    async fn arm(&mut self, shard: &Shard) -> Result<bool> {
        shard.is_asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Who staged requests before it saw that the driver sleeps relies on this.
        shard.turn.end(&mut self.spare);
        self.channel.get_ref().drain(|_| {})?;
        shard.completions.request_notification()?;
        // Completions from before the request are not announced.
        loop {
            match shard.poll() {
                Polled::Found(0) => return Ok(false),
                Polled::Found(_) => {
                    shard.is_asleep.store(false, Ordering::SeqCst);
                    return Ok(true);
                }
                Polled::Elsewhere => yield_now().await,
            }
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(shard) = self.shard.upgrade() {
            shard.has_ended.store(true, Ordering::Release);
            shard.is_asleep.store(true, Ordering::SeqCst);
            shard.turn.end(&mut self.spare);
        }
    }
}
