//! [`LastTask`]: the task that last asked for permission to poll for its own result.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::task::Waker;

/// Number of times in a row that a task may itself poll the completion queue for its result,
/// instead of sleeping until the result arrives. The task must then sleep once, so that other tasks
/// of its thread run. This delays only every eighth result.
const MAX_IN_ROW: i32 = 7;

/// Number of times that a task must wait without polling, after a poll that found no result. A poll
/// often finds no result if the peer is distant or runs on the same thread. The waits keep such
/// useless polls rare.
const WAITS_AFTER_FAILURE: i32 = 16;

/// Identity of the task that last asked for permission to poll the completion queue for its own
/// result. The first request of another task is refused: if several tasks polled alternately, each
/// poll would delay the other tasks.
#[derive(Debug, Default)]
pub(super) struct LastTask {
    /// Address of the data of the task's waker.
    waker_data: AtomicUsize,
    /// Number of permissions of the task since it last had to wait. If negative, the number of
    /// times that the task must still wait.
    in_row: AtomicI32,
}

impl LastTask {
    /// Returns whether the task of `waker` may poll the completion queue for its own result, and
    /// stores the task for the next call. A poll avoids a wakeup, but delays other tasks of the
    /// thread. Therefore returns `false` for:
    /// - a call of another task than the task of the previous call;
    /// - one call after [`MAX_IN_ROW`] permissions in a row;
    /// - [`WAITS_AFTER_FAILURE`] calls after a poll without a result ([`Self::poll_failed`]).
    pub(super) fn replace(&self, waker: &Waker) -> bool {
        // Two tasks have different addresses while both exist. `Waker::will_wake` also compares the
        // addresses of the virtual tables, which can differ for the same task.
        let task = waker.data().addr();
        let is_same = self.waker_data.swap(task, Ordering::Relaxed) == task;
        let in_row = self.in_row.load(Ordering::Relaxed);
        let may_poll = is_same && (0..MAX_IN_ROW).contains(&in_row);
        let is_waiting = is_same && in_row < 0;
        let next = if may_poll || is_waiting {
            in_row + 1
        } else {
            0
        };
        self.in_row.store(next, Ordering::Relaxed);
        may_poll
    }

    /// Records that a permitted poll has not found the result of the task. The next
    /// [`WAITS_AFTER_FAILURE`] calls of [`Self::replace`] for this task return `false`. A call for
    /// another task cancels this effect.
    pub(super) fn poll_failed(&self) {
        self.in_row.store(-WAITS_AFTER_FAILURE, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    /// A task of a test, whose waker does nothing. Tasks are distinguished by the address of their
    /// data, so the type must not be empty.
    struct Task(#[expect(dead_code, reason = "gives the task an address of its own")] u8);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_task_that_polls_alone_waits_at_every_eighth_time() {
        let last = LastTask::default();
        let task = Waker::from(Arc::new(Task(1)));
        assert!(!last.replace(&task));
        for _ in 0..3 {
            assert!((0..MAX_IN_ROW).all(|_| last.replace(&task)));
            assert!(!last.replace(&task), "other tasks must run");
        }
    }

    #[test]
    fn a_task_waits_repeatedly_after_a_poll_without_a_result() {
        let last = LastTask::default();
        let task = Waker::from(Arc::new(Task(1)));
        assert!(!last.replace(&task) && last.replace(&task));
        last.poll_failed();
        assert!((0..WAITS_AFTER_FAILURE).all(|_| !last.replace(&task)));
        assert!(last.replace(&task));
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
