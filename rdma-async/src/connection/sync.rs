//! Atomics, locks and notifications that futures share with the polling thread. The types come from
//! the standard library, `parking_lot` and tokio. Loom models use the types of loom, which explores
//! every interleaving of the threads.

pub(super) use choice::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Notify, fence};

#[cfg(not(all(test, loom_models)))]
mod choice {
    pub(in crate::connection) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

    pub(in crate::connection) use parking_lot::{Mutex, MutexGuard};
    pub(in crate::connection) use tokio::sync::Notify;
}

#[cfg(all(test, loom_models))]
mod choice {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    pub(in crate::connection) use loom::sync::MutexGuard;
    pub(in crate::connection) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

    /// Mutex of loom with the interface of `parking_lot::Mutex`.
    #[derive(Debug, Default)]
    pub(in crate::connection) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(in crate::connection) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(in crate::connection) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("a thread that panics ends the model")
        }
    }

    /// Replacement for `tokio::sync::Notify`, which loom cannot model. A future of tokio waits from
    /// its creation, and a future of this type only from the call of `enable`.
    #[derive(Debug, Default)]
    pub(in crate::connection) struct Notify(Mutex<State>);

    #[derive(Debug, Default)]
    struct State {
        /// Number of calls of `notify_waiters`.
        count: u64,
        wakers: Vec<Waker>,
    }

    impl Notify {
        pub(in crate::connection) fn notify_waiters(&self) {
            let wakers = {
                let mut state = self.0.lock();
                state.count += 1;
                std::mem::take(&mut state.wakers)
            };
            wakers.into_iter().for_each(Waker::wake);
        }

        pub(in crate::connection) fn notified(&self) -> Notified<'_> {
            Notified {
                notify: self,
                count: None,
            }
        }
    }

    #[derive(Debug)]
    pub(in crate::connection) struct Notified<'n> {
        notify: &'n Notify,
        /// Number of calls of `notify_waiters` at the time of `enable`.
        count: Option<u64>,
    }

    impl Notified<'_> {
        pub(in crate::connection) fn enable(mut self: Pin<&mut Self>) -> bool {
            let now = self.notify.0.lock().count;
            *self.count.get_or_insert(now) != now
        }
    }

    impl Future for Notified<'_> {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            let mut state = self.notify.0.lock();
            let now = state.count;
            if *self.count.get_or_insert(now) != now {
                return Poll::Ready(());
            }
            state.wakers.push(cx.waker().clone());
            Poll::Pending
        }
    }
}
