//! [`Within`]: the future of [`Rdma::within`](crate::Rdma::within).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::connection::Connection;
use crate::error::Result;
use crate::shard::DeadlineKey;

/// Future of an operation with a time limit. If the limit is exceeded, the connection ends, and the
/// operation fails with `Error::DeadlineExceeded`.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct Within<F> {
    operation: Pin<F>,
    deadline: Deadline,
}

/// Time limit of one operation: the connection ends at this deadline. The time starts when the
/// operation first has to wait. Dropping the value, for example because the operation has
/// completed, cancels the deadline.
#[derive(Debug)]
struct Deadline {
    connection: Arc<Connection>,
    limit: Duration,
    /// Key of the deadline in the shard's timers, or `None` before the operation has to wait.
    key: Option<DeadlineKey>,
}

impl<F> Within<F> {
    pub(crate) fn new(connection: &Arc<Connection>, limit: Duration, operation: Pin<F>) -> Self {
        Self {
            operation,
            deadline: Deadline {
                connection: Arc::clone(connection),
                limit,
                key: None,
            },
        }
    }
}

impl<T, F> Future for Within<&mut F>
where
    F: Future<Output = Result<T>>,
{
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let polled = this.operation.as_mut().poll(cx);
        if polled.is_pending() && this.deadline.key.is_none() {
            this.deadline.begin();
        }
        polled
    }
}

impl Deadline {
    /// Starts the time limit: adds the deadline to the timers that the connection shares with other
    /// connections. These timers end the connection when the deadline passes.
    fn begin(&mut self) {
        let weak = Arc::downgrade(&self.connection);
        self.key = Some(self.connection.shard().add_deadline(weak, self.limit));
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.connection.shard().cancel_deadline(key);
        }
    }
}
