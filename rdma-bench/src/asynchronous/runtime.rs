//! The tokio runtime of a test, and periodic checks during the test that the peer is alive.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use crate::control::{Control, Watch};
use crate::error::{Error, Result};

/// Interval between two checks whether the peer has finished or exited. The interval is long, so
/// that the checks do not disturb the measurement.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Builds a tokio runtime with `threads` worker threads in addition to this thread. With 0 or 1,
/// all tasks run on this thread.
pub(crate) fn build(threads: usize) -> Result<Runtime> {
    let mut builder = match threads {
        0 | 1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    let built = builder.enable_all().build();
    built.map_err(Error::control("starting the runtime"))
}

/// A counter of completed operations, by which a stalled test is detected: the counter then no
/// longer changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Counts a completed operation. If two threads count at the same time, the counter can miss
    /// one of the operations. A missed operation does not matter for the detection of a stall.
    #[inline]
    pub(crate) fn increment(&self) {
        let count = self.0.load(Ordering::Relaxed);
        self.0.store(count.wrapping_add(1), Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs the future `work`, such as the operations of a test, and returns its result. While `work`
/// runs, checks periodically that the peer is alive and that the operation counter `progress`
/// increases. If `ends_with_peer` is set, stops when the peer has finished the test, and returns
/// `None`.
///
/// # Errors
///
/// The errors of `work`. The errors of [`Watch::check`] if the peer has exited or no operation
/// completes for too long.
pub(crate) fn run<T>(
    runtime: &Runtime,
    control: &Control,
    ends_with_peer: bool,
    progress: &Progress,
    work: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    let watch = control.watch(ends_with_peer)?;
    runtime.block_on(async {
        let work = pin!(work);
        tokio::select! {
            biased;
            result = work => result.map(Some),
            ended = watch_peer(watch, progress) => ended.map(|()| None),
        }
    })
}

/// Checks the peer periodically while the operations of a test run. Fails if the peer has exited,
/// or if the operation counter `progress` has not changed for too long. Returns when the peer has
/// finished the test, if this process must then also stop (a setting of `watch`).
async fn watch_peer(mut watch: Watch, progress: &Progress) -> Result<()> {
    let mut seen = progress.count();
    loop {
        sleep(CHECK_INTERVAL).await;
        let now = progress.count();
        if now != seen {
            watch.busy();
        }
        seen = now;
        if watch.check()? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::control::Message;

    fn pair(limit: Duration) -> (Control, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        (
            Control::new(server, limit).unwrap(),
            Control::new(client, limit).unwrap(),
        )
    }

    #[test]
    fn a_run_ends_with_its_work_the_peer_or_a_timeout() {
        let runtime = build(1).unwrap();
        let progress = Progress::default();
        let (mut server, client) = pair(Duration::from_millis(200));
        let done = run(&runtime, &client, false, &progress, async { Ok(7) });
        assert_eq!(done.unwrap(), Some(7));
        let forever = || future::pending::<Result<()>>();
        let silent = run(&runtime, &client, false, &progress, forever()).unwrap_err();
        assert!(matches!(silent, Error::TimedOut { .. }), "{silent}");
        server.send(&Message::Finished(None)).unwrap();
        let ended = run(&runtime, &client, true, &progress, forever());
        assert_eq!(ended.unwrap(), None);
        let (server, client) = pair(Duration::from_secs(60));
        drop(server);
        let gone = run(&runtime, &client, false, &progress, forever()).unwrap_err();
        assert!(matches!(gone, Error::PeerGone), "{gone}");
    }
}
