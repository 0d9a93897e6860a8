//! A service whose calls wait until the test releases them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdma_rpc::{Address, Context, Server, ServerHandle};
use tokio::sync::{Notify, Semaphore};

use super::{connect, listen, within};

#[rdma_rpc::service]
pub(crate) trait Held {
    async fn echo(&self, text: String) -> Result<String, String>;
    /// Waits until the test releases the call.
    async fn wait(&self, cx: &Context, text: String) -> Result<String, String>;
    /// Waits, and records the number of concurrent calls.
    async fn busy(&self, number: u64) -> Result<u64, String>;
    async fn panic(&self, late: bool) -> Result<(), String>;
    /// Returns the remaining time in milliseconds, the peer and a value of the metadata.
    async fn context(&self, cx: &Context) -> Result<(Option<u64>, String, String), String>;
    /// Spawns a task that waits until the call has ended.
    async fn watched(&self, cx: &Context) -> Result<(), String>;
    #[rpc(oneway)]
    async fn block(&self);
}

/// Counter that notifies waiting tasks of each change.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    count: AtomicUsize,
    changed: Notify,
}

impl Counter {
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until the counter has reached `count`.
    pub(crate) async fn reached(&self, what: &str, count: usize) {
        within(what, async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.count() >= count {
                    return;
                }
                changed.await;
            }
        })
        .await;
    }
}

/// State of the service.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) arrived: Counter,
    pub(crate) dropped: Counter,
    pub(crate) ended: Counter,
    pub(crate) release: Semaphore,
    running: AtomicUsize,
    pub(crate) most: AtomicUsize,
}

impl Default for Holding {
    fn default() -> Self {
        Self {
            arrived: Counter::default(),
            dropped: Counter::default(),
            ended: Counter::default(),
            release: Semaphore::new(0),
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }
}

/// Guard that counts a handler as dropped.
struct Guard<'h>(&'h Holding);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.dropped.add();
    }
}

/// Service with state that the test shares.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedHolding(pub(crate) Arc<Holding>);

impl Held for SharedHolding {
    async fn echo(&self, text: String) -> Result<String, String> {
        Ok(text)
    }

    async fn wait(&self, _: &Context, text: String) -> Result<String, String> {
        let _guard = Guard(&self.0);
        self.0.arrived.add();
        let permit = self.0.release.acquire().await;
        permit.map_err(|closed| closed.to_string())?.forget();
        Ok(text)
    }

    async fn busy(&self, number: u64) -> Result<u64, String> {
        let now = self.0.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        Ok(number)
    }

    async fn panic(&self, late: bool) -> Result<(), String> {
        if late {
            tokio::task::yield_now().await;
        }
        panic!("asked to")
    }

    async fn context(&self, cx: &Context) -> Result<(Option<u64>, String, String), String> {
        let remaining = cx.remaining();
        let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let tenant = cx.metadata().get_str("tenant").unwrap_or_default();
        Ok((
            remaining.map(millis),
            cx.peer().to_string(),
            tenant.to_owned(),
        ))
    }

    async fn watched(&self, cx: &Context) -> Result<(), String> {
        let (cx, holding) = (cx.clone(), Arc::clone(&self.0));
        tokio::spawn(async move {
            cx.cancelled().await;
            assert!(cx.is_cancelled());
            holding.ended.add();
        });
        self.0.arrived.add();
        std::future::pending().await
    }

    async fn block(&self) {
        // Blocks the thread without an `await`.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        self.0.arrived.add();
    }
}

/// Starts a server of [`Held`] with these settings.
pub(crate) async fn held(
    address: Address,
    settings: impl FnOnce(Server) -> Server,
) -> (ServerHandle, Arc<Holding>) {
    let holding = SharedHolding::default();
    let state = Arc::clone(&holding.0);
    let server = settings(Server::new(HeldServer::new(holding)));
    (listen(server, address).await, state)
}

/// Starts a server of [`Held`], and connects its only client.
pub(crate) async fn held_pair(address: Address) -> (ServerHandle, HeldClient, Arc<Holding>) {
    let (server, holding) = held(address, |server| server).await;
    let client = HeldClient::new(connect(&server).await);
    (server, client, holding)
}

/// Checks that a connection works.
pub(crate) async fn assert_answers(client: &HeldClient) {
    let echoed = within("an echo", client.echo("are you there?".to_owned())).await;
    assert_eq!(echoed.expect("the connection is usable"), "are you there?");
}
