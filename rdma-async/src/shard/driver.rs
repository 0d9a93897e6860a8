//! The driver: the task of a shard, which polls the completion queue while completions arrive.
//!
//! When no completion arrives for some time, the driver arms the completion queue and sleeps until
//! the completion channel has an event.

#[cfg(test)]
use std::sync::atomic::AtomicU64;
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

/// Maximum number of polls of the completion queue between two yields of the driver task to the
/// executor, if the driver is the only active task of its thread. More than one, because a yield
/// takes longer than a poll.
const POLLS_PER_TURN: u32 = 64;
/// Minimum duration of a yield after which the driver task assumes that another task has run during
/// the yield. After [`LONE_YIELDS`] shorter yields in a row, the driver assumes that no other task
/// is ready, and polls more often before it yields again.
const LONE_YIELD: Duration = Duration::from_micros(1);
/// Number of consecutive yields shorter than [`LONE_YIELD`] after which the driver task assumes
/// that no other task is ready. More than one: if two tasks yield repeatedly, tokio runs each of
/// them twice in a row. The first of the two yields is then short although another task is ready.
const LONE_YIELDS: u32 = 2;

/// State of the driver: the task that polls the completion queue of a shard (queues that several
/// connections share), and sleeps while no completions arrive.
struct Driver {
    shard: Weak<Shard>,
    channel: AsyncFd<CompletionChannel>,
    wake: Arc<Notify>,
    /// Set while the completion queue is armed: from the request for a completion event until the
    /// event is taken from the channel.
    is_armed: bool,
    /// Empty vector that replaces the list of connections in [`Shard::turn`] when the list is
    /// taken, to reuse its allocation.
    spare: Vec<Arc<Connection>>,
}

/// Spawns the driver of a shard, the task that polls the shard's completion queue, on the current
/// runtime.
pub(super) fn spawn(shard: &Arc<Shard>, channel: AsyncFd<CompletionChannel>) {
    let mut driver = Driver {
        shard: Arc::downgrade(shard),
        channel,
        wake: Arc::clone(&shard.wake),
        is_armed: false,
        spare: Vec::new(),
    };
    tokio::spawn(async move {
        if let Err(error) = driver.run().await {
            tracing::error!(%error, "the driver has failed: its connections end");
            if let Some(shard) = driver.shard.upgrade() {
                shard.fail(&error).await;
            }
        }
    });
}

impl Driver {
    /// Polls the completion queue while completions arrive, and otherwise sleeps. Returns when the
    /// [`Shard`], which owns the completion queue, has been dropped.
    async fn run(&mut self) -> Result<()> {
        while let Some(shard) = self.shard.upgrade() {
            self.poll_while_busy(&shard).await;
            if self.arm(&shard).await? {
                continue;
            }
            #[cfg(test)]
            shard.counts.sleeps.fetch_add(1, Ordering::Relaxed);
            let times = [shard.deadlines.next(), shard.receives.retry_time()];
            let deadline = times.into_iter().flatten().min();
            drop(shard);
            tokio::select! {
                // The channel was drained before the queue was armed, so the next event makes the
                // channel readable again.
                ready = self.channel.readable() => {
                    ready
                        .map_err(|source| Error::tcp("waiting for", "completions", source))?
                        .clear_ready();
                    // Taking the event also lets softroce receive messages, without waking a sender
                    // only for an acknowledgement.
                    self.drain()?;
                }
                () = self.wake.notified() => {}
                () = until(deadline) => {}
            }
            if let Some(shard) = self.shard.upgrade() {
                shard.is_asleep.store(false, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Polls the completion queue until no completion has arrived for the time that the completion
    /// mode sets. Ends earlier if no completion was found and only the driver refers to the shard.
    /// In each round (turn), also posts the staged requests, ends connections whose deadlines have
    /// passed, posts receives for which memory could not be allocated before, and yields to the
    /// executor.
    async fn poll_while_busy(&mut self, shard: &Arc<Shard>) {
        let spin = match shard.profile.completion {
            CompletionMode::Event => Duration::ZERO,
            CompletionMode::Adaptive { spin } => spin,
            CompletionMode::Busy => Duration::MAX,
        };
        let mut quiet_since = Instant::now();
        let mut turn_ended = quiet_since;
        let mut lone_yields = 0;
        // Futures also poll the queue. The completions of the futures count too, because each of
        // their next completions would raise an event if the queue were armed.
        let mut found = shard.found.load(Ordering::Relaxed);
        loop {
            let begun = Instant::now();
            shard.turn.end(&mut self.spare);
            shard.deadlines.expire(begun);
            shard.receives.retry(begun);
            // Polls only once if other tasks run on this thread, to keep their delay short.
            lone_yields = match begun - turn_ended < LONE_YIELD {
                true => u32::saturating_add(lone_yields, 1),
                false => 0,
            };
            let is_alone = lone_yields >= LONE_YIELDS;
            let polls = if is_alone { POLLS_PER_TURN } else { 1 };
            let mut is_quiet = true;
            for _ in 0..polls {
                is_quiet = shard.poll() == Polled::Found(0);
                if !is_quiet {
                    break;
                }
                std::hint::spin_loop();
            }
            turn_ended = Instant::now();
            let found_before = std::mem::replace(&mut found, shard.found.load(Ordering::Relaxed));
            if !is_quiet || found != found_before {
                quiet_since = turn_ended;
            } else if turn_ended - quiet_since >= spin || Arc::strong_count(shard) == 1 {
                return;
            }
            yield_now().await;
        }
    }

    /// Takes the pending completion event, if any, from the completion channel, and records that
    /// the next event must be requested again.
    fn drain(&mut self) -> Result<()> {
        if self.channel.get_ref().next_event()?.is_some() {
            self.is_armed = false;
        }
        Ok(())
    }

    /// Arms the completion queue: requests an event for the next completion, so that the driver
    /// task can sleep. Then polls again, because a completion may have arrived before the request.
    /// Returns `true` if completions were found, and the driver must not sleep.
    async fn arm(&mut self, shard: &Shard) -> Result<bool> {
        shard.is_asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // `Shard::post_at_turn_end` relies on this call: a request that was staged before its task
        // saw `is_asleep` is posted here.
        shard.turn.end(&mut self.spare);
        if self.is_armed {
            self.drain()?;
        }
        self.is_armed = true;
        #[cfg(test)]
        shard.counts.armings.fetch_add(1, Ordering::Relaxed);
        shard.completions.request_notification()?;
        // The device sends no event for completions that arrived before the request, so the queue
        // is polled again.
        loop {
            match shard.poll() {
                Polled::Found(0) => return Ok(false),
                Polled::Found(_) => {
                    #[cfg(test)]
                    shard.counts.found.fetch_add(1, Ordering::Relaxed);
                    shard.is_asleep.store(false, Ordering::SeqCst);
                    return Ok(true);
                }
                Polled::Busy => yield_now().await,
            }
        }
    }
}

/// Counters for tests: how often a driver (the task that polls a completion queue) has slept, and
/// how often the driver has requested a completion event.
#[cfg(test)]
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Number of requests for a completion event.
    armings: AtomicU64,
    /// Number of these requests after which completions were found.
    found: AtomicU64,
    sleeps: AtomicU64,
}

/// Waits until the time `time`, or forever if `time` is `None`. Used as a branch of `select!`.
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

#[cfg(all(test, not(loom_models)))]
mod tests {
    use std::alloc::Layout;

    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;
    use crate::{Rdma, testing};

    const ROUNDS: u64 = 500;
    const LIMIT: Duration = Duration::from_secs(120);

    async fn pair() -> (Rdma, Rdma) {
        testing::pair(|builder| builder.completion(CompletionMode::Event)).await
    }

    async fn exchange(client: &Rdma, server: &Rdma) {
        let message = client
            .device()
            .alloc_local_mr(Layout::new::<u64>())
            .unwrap();
        let echoing = async {
            for _ in 0..ROUNDS {
                let message = server.receive().await.unwrap();
                server.send(&message).await.unwrap();
            }
        };
        let sending = async {
            for _ in 0..ROUNDS {
                client.send(&message).await.unwrap();
                client.receive().await.unwrap();
            }
        };
        tokio::join!(sending, echoing);
    }

    /// Asserts that the driver (the task that polls the completion queue) wakes up rarely. After
    /// each request for a completion event (arming), the driver must sleep or find completions. The
    /// driver must sleep at most once for each completion.
    async fn assert_few_wakeups(shard: &Shard) {
        let Counts {
            armings,
            found,
            sleeps,
        } = &shard.counts;
        let (before, sleeps_before) = (
            armings.load(Ordering::Relaxed),
            sleeps.load(Ordering::Relaxed),
        );
        // The step after the last arming may not have been counted yet.
        let settled = async {
            while found.load(Ordering::Relaxed) + sleeps.load(Ordering::Relaxed) < before {
                yield_now().await;
            }
        };
        timeout(LIMIT, settled).await.unwrap_or_else(|_| {
            panic!("{before} armings, {found:?} with completions, {sleeps:?} sleeps")
        });
        // A round completes a send and a receive. One of 16 rounds also returns credits.
        assert!(
            (1..3 * ROUNDS).contains(&sleeps_before),
            "{sleeps_before} sleeps"
        );
    }

    #[test]
    fn the_completion_queue_is_armed_once_for_each_sleep() {
        for mut runtime in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, server) = pair().await;
                timeout(LIMIT, exchange(&client, &server))
                    .await
                    .expect("the exchange ends in time");
                assert_few_wakeups(client.connection().shard()).await;
                assert_few_wakeups(server.connection().shard()).await;
            });
        }
    }
    #[tokio::test]
    async fn the_queue_is_not_armed_while_futures_find_completions() {
        const WRITES: u64 = 1000;
        let (client, _server) = testing::pair(|builder| builder).await;
        let layout = Layout::new::<[u8; 64 << 10]>();
        let local = client.device().alloc_local_mr(layout).unwrap();
        let mut remote = client.request_remote_mr(layout).await.unwrap();
        let armings = &client.connection().shard().counts.armings;
        let before = armings.load(Ordering::Relaxed);
        let writing = async {
            for _ in 0..WRITES {
                client.write(&local, &mut remote).await.unwrap();
                yield_now().await;
            }
        };
        timeout(LIMIT, writing)
            .await
            .expect("the writes end in time");
        // The thread may have been preempted for longer than the driver polls.
        let armed = armings.load(Ordering::Relaxed) - before;
        assert!(armed < WRITES / 20, "armed {armed} times");
    }
}
