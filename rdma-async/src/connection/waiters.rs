//! [`Waiters`]: tasks that wait for a resource, such as a message, a credit or room in the send
//! queue.

use std::pin::pin;
use std::sync::atomic::Ordering;

use super::sync::{AtomicU32, Notify, fence};

/// List of the tasks that wait for one kind of resource of a connection, such as credits
/// (permissions to send). Waking an empty list only reads a counter.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    count: AtomicU32,
    notify: Notify,
}

impl Waiters {
    /// Wakes all waiting tasks. Each woken task then tries again, for example to find room in the
    /// send queue.
    pub(super) fn wake(&self) {
        // Orders the caller's change before the read of the count. A task increments the count
        // before its last attempt, so either this thread sees the task or the task sees the change.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            self.notify.notify_waiters();
        }
    }

    /// Wakes all waiting tasks like [`Self::wake`], but without a memory fence. The caller must
    /// have made the resource available under a lock. A waiting task must take the same lock when
    /// it tries again.
    #[inline]
    pub(super) fn wake_without_fence(&self) {
        // The lock orders both sides, because a task increments the count before its attempt takes
        // the lock.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.notify.notify_waiters();
        }
    }

    /// Waits until `attempt` returns a value. Calls `attempt` first, and again after each wakeup by
    /// [`Self::wake`].
    pub(super) async fn wait_for<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        if let Some(value) = attempt() {
            return value;
        }
        let _counted = Counted::new(&self.count);
        loop {
            let mut woken = pin!(self.notify.notified());
            // From here on, every wakeup reaches this task.
            woken.as_mut().enable();
            if let Some(value) = attempt() {
                return value;
            }
            woken.await;
        }
    }
}

/// Guard that counts a task as waiting until the guard is dropped. [`Waiters::wake`] does nothing
/// if the count is 0, because waking costs time.
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
    async fn no_wakeup_is_lost() {
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
