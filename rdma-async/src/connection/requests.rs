//! Requests of the peer for memory, which the control task grants or refuses.
//!
//! The poll that finds a request only queues the request. Allocating, zeroing and registering
//! memory takes time, during which that poll would delay all connections of the shard.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use rdma_core::RemoteMemory;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Connection;
use super::frame::{Kind, Refusal};
use crate::error::Error;
use crate::memory::{Amount, Charge, Exceeded};

/// Maximum number of queued requests of one peer for memory. Limits the memory that the queue uses.
/// If a peer sends more requests, its connection ends.
pub(super) const MAX_WAITING: usize = 4096;

/// Minimum size, in bytes, of memory that is allocated and zeroed on a thread for blocking tasks.
/// For memory of this size, allocating and zeroing take more than about 100 µs.
const LARGE: usize = 1 << 20;

/// A request of the peer for new memory of this end, which the peer will access by RDMA. Contains
/// the size and the alignment in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) size: u64,
    pub(super) align: u64,
}

/// Queue of the peer's requests for memory that this end has not yet answered.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: Mutex<VecDeque<Request>>,
}

impl Requests {
    /// Adds a request to the queue. Returns `false` if the queue then has more than [`MAX_WAITING`]
    /// requests: the caller must then end the connection.
    fn push(&self, request: Request) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.push_back(request);
        waiting.len() <= MAX_WAITING
    }

    /// Removes and returns the oldest request, or `None` if the queue is empty.
    pub(super) fn pop(&self) -> Option<Request> {
        self.waiting.lock().pop_front()
    }
}

impl Connection {
    /// Queues a request of the peer for memory, and wakes the control task of the connection, which
    /// answers the request. Ends the connection if too many requests are queued.
    pub(super) fn queue_request(&self, request: Request) {
        if !self.requests.push(request) {
            return self.fail_for_violation("more requests for memory than can be queued");
        }
        self.control_wakeup.notify_one();
    }

    /// Answers a request of the peer for memory: lends new memory to the peer, or sends the reason
    /// for a refusal. Allocates small memory immediately, and returns `None`. Large memory is
    /// allocated by a task on a blocking thread, which then sends the answer: in this case, returns
    /// the handle of the task. Does nothing, and returns `None`, if the connection has failed.
    pub(super) fn answer(self: &Arc<Self>, request: Request) -> Option<JoinHandle<()>> {
        let Request { id, size, align } = request;
        if self.failure().is_some() {
            return None;
        }
        match self.charge_request(size, align) {
            Err(reason) => self.send_control(Kind::Refuse { id, reason }),
            Ok((layout, charge)) if layout.size() >= LARGE => {
                let connection = Arc::clone(self);
                return Some(spawn_blocking(move || connection.grant(id, layout, charge)));
            }
            Ok((layout, charge)) => self.grant(id, layout, charge),
        }
        None
    }

    /// Checks a request of the peer for `size` bytes with the alignment `align` against the limits
    /// of the settings. Returns the layout of the memory, and a [`Charge`], which counts the memory
    /// as held by the peer until the charge is dropped.
    fn charge_request(&self, size: u64, align: u64) -> Result<(Layout, Charge), Refusal> {
        let (Ok(size), Ok(align)) = (usize::try_from(size), usize::try_from(align)) else {
            return Err(Refusal::Layout);
        };
        let layout = Layout::from_size_align(size, align).map_err(|_| Refusal::Layout)?;
        if size == 0 {
            return Err(Refusal::Layout);
        }
        if self.withholds_memory.load(Ordering::Acquire) {
            return Err(Refusal::Bytes(0));
        }
        // Memory with an alignment greater than its size occupies as many bytes as its alignment.
        let bytes = size.max(align);
        let limits = &self.settings.granted;
        let held = self.leases.granted();
        // An ended lease counts until the peer has returned or released it, because its id is still
        // in use. A returned region counts until the application receives it.
        let returned = self.returned.requested();
        let regions = held.regions + self.leases.unreturned_regions() + returned.regions;
        if regions >= limits.regions {
            return Err(Refusal::Regions(limits.regions as u64));
        }
        let sum = (held.bytes + returned.bytes).checked_add(bytes);
        if sum.is_none_or(|sum| sum > limits.bytes) {
            return Err(Refusal::Bytes(limits.bytes as u64));
        }
        let charge = self.charge_peer(layout)?;
        Ok((layout, charge))
    }

    /// Counts memory of the size and alignment in `layout` as held by the peer until the returned
    /// [`Charge`] is dropped. Fails if the peer's host, or all peers together, would exceed their
    /// limit of bytes.
    pub(super) fn charge_peer(&self, layout: Layout) -> Result<Charge, Refusal> {
        let pool = self.device.pool();
        let amount = Amount {
            bytes: layout.size().max(layout.align()),
            pool_bytes: pool.piece_len(layout).map_err(|_| Refusal::Layout)?,
        };
        let (ledger, limit) = (self.device.ledger(), self.settings.granted.peer_bytes);
        ledger
            .charge(self.peer, amount, limit, pool.limit_of_peers())
            .map_err(|exceeded| match exceeded {
                Exceeded::Peer(limit) => Refusal::PeerBytes(limit as u64),
                Exceeded::AllPeers(limit) => Refusal::AllPeersBytes(limit as u64),
            })
    }

    /// Allocates memory that the peer has requested, with the size and alignment of `layout`. Lends
    /// the memory to the peer, and sends the reply to the request `id`. `charge` counts the memory
    /// towards the peer's limits.
    fn grant(&self, id: u64, layout: Layout, charge: Charge) {
        self.send_control(match self.lend_requested(layout, charge) {
            Ok((lease, memory)) => Kind::Grant { id, lease, memory },
            Err(reason) => Kind::Refuse { id, reason },
        });
    }

    /// Allocates memory that the peer has requested, and lends it to the peer, for at most the time
    /// limit of the settings. `charge` counts the memory towards the peer's limits. Returns the id
    /// of the lease, and the address, length and key of the memory.
    fn lend_requested(
        &self,
        layout: Layout,
        charge: Charge,
    ) -> Result<(u64, RemoteMemory), Refusal> {
        let refuse = |error: &dyn std::fmt::Display| {
            let size = layout.size();
            tracing::warn!(parent: &self.span, %error, size, "memory that the peer requested could not be lent");
            Refusal::Memory
        };
        let region = self
            .device
            .alloc_local_mr(layout)
            .map_err(|error| match error {
                Error::PoolFull { limit, .. } => Refusal::PoolFull(limit as u64),
                error => refuse(&error),
            })?;
        let lent = self
            .leases
            .lend(region, Some(charge), &self.device)
            .map_err(|(_, error)| refuse(&error))?;
        let limit = self.settings.granted.time;
        if let Some(end) = limit.and_then(|limit| Instant::now().checked_add(limit))
            && self.leases.set_expiry(lent.0, end)
        {
            // The control task must wait for the new expiry.
            self.control_wakeup.notify_one();
        }
        Ok(lent)
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use std::alloc::Layout;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::*;
    use crate::testing::pair;

    #[tokio::test]
    async fn an_unauthenticated_peer_gets_no_memory() {
        let (client, server) = pair(|builder| builder).await;
        server.connection().withhold_memory();
        let layout = Layout::new::<[u8; 64]>();
        let error = client.request_remote_mr(layout).await.unwrap_err();
        let reason = error.to_string();
        assert!(reason.contains("at most 0 bytes"), "{reason}");
        assert_eq!(server.granted_memory().regions, 0);
        assert_eq!(server.device().pool_statistics().in_use, 0);
        // The connection remains open, and grants memory once the peer is authenticated.
        server.connection().release_memory();
        client.request_remote_mr(layout).await.unwrap();
    }

    #[tokio::test]
    async fn memory_is_granted_by_the_control_task_and_not_by_the_poll_that_finds_the_request() {
        let (client, server) = pair(|builder| builder).await;
        for size in [64, 4 * LARGE] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            let mut request = pin!(client.request_remote_mr(layout));
            let mut unwoken = Context::from_waker(Waker::noop());
            assert!(request.as_mut().poll(&mut unwoken).is_pending());
            // No other task of this thread runs meanwhile.
            let latest = Instant::now() + Duration::from_secs(60);
            let connection = server.connection();
            while connection.requests.waiting.lock().is_empty() {
                assert!(Instant::now() < latest, "the request does not arrive");
                connection.shard().poll();
            }
            assert_eq!(server.device().pool_statistics().in_use, 0);
            let region = request.await.unwrap();
            assert_eq!(server.granted_memory().bytes, size);
            drop(region);
            while server.granted_memory().regions > 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn unanswered_requests_are_limited() {
        let (client, server) = pair(|builder| builder).await;
        let layout = Layout::new::<[u8; 64]>();
        let mut unwoken = Context::from_waker(Waker::noop());
        let latest = Instant::now() + Duration::from_secs(60);
        // The control task of the server, which answers requests, does not run meanwhile.
        let error = loop {
            assert!(Instant::now() < latest, "requests are not limited");
            let mut request = pin!(client.request_remote_mr(layout));
            match request.as_mut().poll(&mut unwoken) {
                Poll::Ready(outcome) => break outcome.unwrap_err(),
                Poll::Pending => {}
            }
            server.connection().shard().poll();
            client.connection().shard().poll();
        };
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        let is_full = || server.connection().requests.waiting.lock().len() == MAX_WAITING;
        while !is_full() {
            assert!(Instant::now() < latest, "the requests do not arrive");
            server.connection().shard().poll();
            client.connection().shard().poll();
        }
        // Once the peer has answered, further requests succeed.
        while client.request_remote_mr(layout).await.is_err() {
            assert!(Instant::now() < latest, "no request succeeds");
            tokio::task::yield_now().await;
        }
    }
}
