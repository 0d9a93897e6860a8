//! [`Waiters`]: tasks that wait until an item, credit or other resource is available.

use std::pin::pin;
use std::sync::atomic::Ordering;

use super::sync::{AtomicU32, Notify, fence};

/// Waiting tasks. If no task waits, waking costs only a read of the counter.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    count: AtomicU32,
    notify: Notify,
}

impl Waiters {
    /// Wakes all waiting tasks, which then retry their attempt.
    pub(super) fn wake(&self) {
        // Orders the caller's change before the read of the count. A waiter counts itself before it
        // checks for changes, so at least one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            self.notify.notify_waiters();
        }
    }

    /// Wakes all waiting tasks like [`Self::wake`], but without a fence: the caller must have made
    /// its change under a lock that `attempt` of every waiter takes.
    #[inline]
    pub(super) fn wake_in_order(&self) {
        // The lock orders both sides: a waiter counts itself before it takes the lock.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.notify.notify_waiters();
        }
    }

    /// Waits until `attempt` returns a value. Calls it first and after each wake.
    pub(super) async fn wait_for<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        if let Some(value) = attempt() {
            return value;
        }
        let _counted = Counted::new(&self.count);
        loop {
            let mut woken = pin!(self.notify.notified());
            // No wake is missed from this point on.
            woken.as_mut().enable();
            if let Some(value) = attempt() {
                return value;
            }
            woken.await;
        }
    }
}

/// Guard that counts a task as waiting while it lives.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use std::sync::Arc;

    use crossbeam_queue::ArrayQueue;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_wake_is_lost() {
        const ITEMS: usize = 20_000;
        let queue = Arc::new((ArrayQueue::new(4), Waiters::default(), Waiters::default()));
        let taker = {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move {
                let (items, arrived, left) = &*queue;
                for expected in 0..ITEMS {
                    assert_eq!(arrived.wait_for(|| items.pop()).await, expected);
                    left.wake();
                }
            })
        };
        let (items, arrived, left) = &*queue;
        for item in 0..ITEMS {
            left.wait_for(|| items.push(item).ok()).await;
            arrived.wake();
        }
        tokio::time::timeout(std::time::Duration::from_secs(60), taker)
            .await
            .expect("every item is taken within a minute")
            .expect("the taker does not panic");
    }
}
