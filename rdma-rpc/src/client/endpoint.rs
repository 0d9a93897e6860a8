//! [`Endpoint`]: a server that a client of several servers connects to, again and again.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::builder::ClientBuilder;
use super::calls::calls;
use super::{Client, Handle};
use crate::address::{Address, ToAddress};
use crate::error::{CallError, Error, Result};
use crate::health::{HealthClient, HealthState};

/// Server of a client of several servers: an address, and other addresses of the same server, which
/// are used if the first one cannot be connected to.
///
/// ```
/// use rdma_rpc::Endpoint;
///
/// # fn main() -> Result<(), rdma_rpc::Error> {
/// let endpoint = Endpoint::new("rdma://10.77.0.1:7471")?.or("tcp://10.77.0.1:7472")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Addresses in the order of preference; at least one.
    addresses: Vec<Address>,
}

impl Endpoint {
    /// Creates an endpoint with one address.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is no address.
    pub fn new(address: impl ToAddress) -> Result<Self> {
        Ok(Self {
            addresses: vec![address.to_address()?],
        })
    }

    /// Adds an address that is used if none of the earlier ones can be connected to, such as one of
    /// TCP for hosts without an RDMA device. Using it is logged once.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is no address.
    pub fn or(mut self, address: impl ToAddress) -> Result<Self> {
        self.addresses.push(address.to_address()?);
        Ok(self)
    }
}

/// A value that is an [`Endpoint`], or an address of one.
pub trait ToEndpoint {
    /// Returns the endpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is no address.
    fn to_endpoint(&self) -> Result<Endpoint>;
}

impl ToEndpoint for Endpoint {
    fn to_endpoint(&self) -> Result<Endpoint> {
        Ok(self.clone())
    }
}

impl<T: ToAddress + ?Sized> ToEndpoint for T {
    fn to_endpoint(&self) -> Result<Endpoint> {
        Endpoint::new(self)
    }
}

/// Settings of the connections to endpoints.
#[derive(Debug, Clone)]
pub(super) struct Upkeep {
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
    /// Time between two health checks, which is also the time within which a check must be
    /// answered.
    pub(super) health_check: Option<Duration>,
}

/// Connection to an endpoint, with its state.
#[derive(Debug)]
pub(super) struct Place {
    state: Mutex<State>,
    /// Number of calls in progress.
    pub(super) in_flight: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Handle>>,
    is_unhealthy: bool,
    /// Error of the last attempt to connect, or reason for the end of the connection.
    error: Option<Error>,
    has_fallen_back: bool,
}

impl Place {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            in_flight: Arc::default(),
        }
    }

    /// Returns the connection if calls can be made on it.
    pub(super) fn usable(&self) -> Option<Arc<Handle>> {
        let state = self.state.lock();
        let connection = state.connection.as_ref().filter(|_| !state.is_unhealthy)?;
        let core = &connection.core;
        let is_usable = core.end().is_none() && !calls(core).is_closing();
        is_usable.then(|| Arc::clone(connection))
    }

    /// Returns the connection, whether calls can be made on it or not.
    pub(super) fn connection(&self) -> Option<Arc<Handle>> {
        self.state.lock().connection.clone()
    }

    /// Returns the reason why the endpoint has no usable connection; `None` if none is known yet.
    pub(super) fn error(&self) -> Option<Error> {
        let state = self.state.lock();
        if state.is_unhealthy {
            return Some(Error::disconnected(
                "the server says that it does not serve",
            ));
        }
        state.error.clone()
    }

    /// Connects to an endpoint whenever there is no connection to it. Never returns.
    pub(super) async fn keep_connected(
        self: Arc<Self>,
        endpoint: Endpoint,
        builder: ClientBuilder,
        upkeep: Upkeep,
        changed: Arc<Notify>,
    ) {
        let mut pause = upkeep.first_pause;
        loop {
            match self.connect(&endpoint, &builder).await {
                Ok(connection) => {
                    pause = upkeep.first_pause;
                    self.state.lock().connection = Some(Arc::clone(&connection));
                    changed.notify_waiters();
                    let error = self.watch(&connection, &upkeep, &changed).await;
                    let mut state = self.state.lock();
                    state.error = Some(error);
                    state.connection = None;
                    state.is_unhealthy = false;
                }
                Err(error) => {
                    tracing::debug!(?endpoint, %error, "could not connect");
                    self.state.lock().error = Some(error);
                }
            }
            changed.notify_waiters();
            sleep(jittered(pause)).await;
            pause = (2 * pause).min(upkeep.longest_pause);
        }
    }

    /// Connects to the first address of an endpoint that can be connected to.
    async fn connect(&self, endpoint: &Endpoint, builder: &ClientBuilder) -> Result<Arc<Handle>> {
        let mut failed = None;
        for address in &endpoint.addresses {
            match builder.clone().connect(address).await {
                Ok(client) => {
                    if let Some((preferred, error)) = failed {
                        let is_first =
                            !std::mem::replace(&mut self.state.lock().has_fallen_back, true);
                        if is_first {
                            tracing::warn!(%preferred, %address, %error, "fell back");
                        }
                    }
                    return client.into_handle();
                }
                Err(error) => failed = Some((address, error)),
            }
        }
        Err(failed.map_or_else(
            || Error::disconnected("it has no address"),
            |(_, error)| error,
        ))
    }

    /// Checks the health of a connection until it has ended. Returns the reason.
    async fn watch(&self, connection: &Arc<Handle>, upkeep: &Upkeep, changed: &Notify) -> Error {
        let core = &connection.core;
        let Some(interval) = upkeep.health_check else {
            return core.ended().await;
        };
        let client = HealthClient::new(Client::of(Arc::clone(connection), interval));
        loop {
            tokio::select! {
                end = core.ended() => return end,
                () = sleep(interval) => {}
            }
            if !core.outbox.has_room() || !calls(core).has_free() {
                // The check would wait for the calls in progress, whose deadlines find a dead
                // server.
                continue;
            }
            let is_healthy = match timeout(interval, client.check(String::new())).await {
                Ok(Ok(state)) => state == HealthState::Serving,
                // A server without the service answers too.
                Ok(Err(CallError::Rpc(Error::UnknownMethod { .. } | Error::Overloaded { .. }))) => {
                    true
                }
                Ok(Err(CallError::Rpc(Error::DeadlineExceeded { .. }))) | Err(_) => {
                    let reason = format!("no answer to a health check within {interval:?}");
                    core.fail(Error::disconnected(reason));
                    return core.ended_now();
                }
                // The end of the connection is the reason.
                Ok(Err(_)) => continue,
            };
            let was_unhealthy = std::mem::replace(&mut self.state.lock().is_unhealthy, !is_healthy);
            if was_unhealthy == is_healthy {
                changed.notify_waiters();
            }
        }
    }
}

/// Returns a random time between the half of a pause and all of it, so that many clients do not
/// connect at the same moment.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) as u32;
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Call in progress, counted until this value is dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<AtomicUsize>);

impl InFlight {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
