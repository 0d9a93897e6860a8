//! [`LastTask`]: the task that polled for its own result last.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

/// Identity of the task that was the last to poll for its own result. If several tasks polled in
/// turn, each poll would delay the other tasks, so a task may poll only if no other task has polled
/// since.
#[derive(Debug, Default)]
pub(super) struct LastTask {
    /// Address of the data of the task's waker.
    waker_data: AtomicUsize,
}

impl LastTask {
    /// Stores the identity of the task of `waker`. Returns whether the same task was already
    /// stored, so that the task may poll.
    pub(super) fn replace(&self, waker: &Waker) -> bool {
        // Two tasks have different addresses while both exist. `Waker::will_wake` also compares the
        // addresses of the virtual tables, which can differ for the same task.
        let task = waker.data().addr();
        self.waker_data.swap(task, Ordering::Relaxed) == task
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    /// A test's task, whose waker does nothing. Not empty, so that two tasks have different
    /// addresses.
    struct Task(#[expect(dead_code, reason = "gives the task an address of its own")] u8);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_task_may_poll_only_while_no_other_task_does() {
        let last = LastTask::default();
        let [one, other] = [1, 2].map(|number| Waker::from(Arc::new(Task(number))));
        assert!(!last.replace(&one));
        assert!(last.replace(&one));
        assert!(last.replace(&one.clone()), "a clone belongs to the task");
        for _ in 0..2 {
            assert!(!last.replace(&other));
            assert!(!last.replace(&one), "two tasks poll in turn");
        }
    }
}
