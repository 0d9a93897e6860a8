//! [`Endpoint`]: a server to which a client of several servers connects, and the task that connects
//! to this server again whenever the connection has ended.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::builder::ClientBuilder;
use super::calls::calls;
use super::{Client, Connection};
use crate::address::{Address, ToAddress};
use crate::error::{CallError, Error, Result};
use crate::health::{HealthClient, HealthState};

/// Minimum time limit of the first health check on a new connection. Without an answer to this
/// check, the attempt to connect fails. The time limit of later checks is the interval between
/// checks, which can be shorter.
const MIN_FIRST_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Addresses of one of the servers to which a client of several servers connects. The client tries
/// the preferred address first, and then the alternative addresses in order.
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
    /// Addresses in order of preference. Never empty.
    addresses: Vec<Address>,
}

impl Endpoint {
    /// Creates the description of a server that has the address `address`.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is not an address.
    pub fn new(address: impl ToAddress) -> Result<Self> {
        Ok(Self {
            addresses: vec![address.to_address()?],
        })
    }

    /// Adds an alternative address of the server, such as a TCP address for hosts without an RDMA
    /// device. The client uses the address if it cannot connect to any earlier address. When a
    /// client first uses an alternative address of this endpoint, the client logs a warning.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is not an address.
    pub fn or(mut self, address: impl ToAddress) -> Result<Self> {
        self.addresses.push(address.to_address()?);
        Ok(self)
    }
}

/// Conversion to an [`Endpoint`] from an address or another endpoint, for the arguments of
/// [`ClientBuilder::connect_any`].
pub trait ToEndpoint {
    /// Converts this address, text of an address, or endpoint to an endpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if this value is a text that is not an address.
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

/// Settings by which a client of several servers reconnects to a server and checks the health of
/// the servers.
#[derive(Debug, Clone)]
pub(super) struct Reconnect {
    /// Pause after the end of a connection.
    pub(super) first_pause: Duration,
    /// Maximum pause. The pause is doubled after each failed attempt.
    pub(super) longest_pause: Duration,
    /// Time between two health checks, and timeout of each check, or `None` without checks.
    pub(super) health_check: Option<Duration>,
}

/// State of an endpoint (a server of a client with several servers): the connection to the server,
/// and the number of calls in progress. Shared by the calls and the task that reconnects.
#[derive(Debug)]
pub(super) struct EndpointState {
    state: Mutex<State>,
    /// Number of calls in progress at the endpoint.
    pub(super) in_flight: Arc<AtomicUsize>,
}

/// State of a client's connection to one server: the connection and the server's health, or the
/// reason for which the server is not connected.
#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// Set if the last health check of the connection found that the server does not serve.
    is_unhealthy: bool,
    /// Error of the last attempt to connect, or reason for the end of the last connection.
    error: Option<Error>,
    /// Set once the use of an alternative address was logged.
    has_fallen_back: bool,
}

impl EndpointState {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            in_flight: Arc::default(),
        }
    }

    /// Returns the connection if it accepts calls, and `None` otherwise. A connection accepts calls
    /// while it is open and the server is healthy and not shutting down.
    pub(super) fn usable(&self) -> Option<Arc<Connection>> {
        let state = self.state.lock();
        let connection = state.connection.as_ref().filter(|_| !state.is_unhealthy)?;
        let core = &connection.core;
        let is_usable = core.end().is_none() && !calls(core).is_closing();
        is_usable.then(|| Arc::clone(connection))
    }

    /// Returns the connection, even if it does not accept calls, or `None` if the endpoint is not
    /// connected.
    pub(super) fn connection(&self) -> Option<Arc<Connection>> {
        self.state.lock().connection.clone()
    }

    /// Returns the error that explains why calls cannot be sent to this endpoint (server). For
    /// example, the server is unhealthy, the last attempt to connect failed, or the last connection
    /// has ended. Returns `None` if no error is known, such as before the end of the first attempt
    /// to connect. After a later attempt has succeeded, the error stays recorded.
    pub(super) fn error(&self) -> Option<Error> {
        let state = self.state.lock();
        if state.is_unhealthy {
            return Some(Error::disconnected(
                "the server's health check reports that it does not serve",
            ));
        }
        state.error.clone()
    }

    /// Connects to an endpoint, and reconnects whenever the connection has ended. Notifies
    /// `changed` after each change of the state. Never returns.
    pub(super) async fn keep_connected(
        self: Arc<Self>,
        endpoint: Endpoint,
        builder: ClientBuilder,
        reconnect: Reconnect,
        changed: Arc<Notify>,
    ) {
        let mut pause = reconnect.first_pause;
        loop {
            match self.connect(&endpoint, &builder).await {
                Ok(connection) => {
                    pause = reconnect.first_pause;
                    // Checked before the connection gets calls.
                    let is_healthy = match reconnect.health_check {
                        Some(interval) => {
                            check_health(&connection, interval.max(MIN_FIRST_CHECK_TIMEOUT)).await
                        }
                        None => None,
                    };
                    {
                        let mut state = self.state.lock();
                        state.is_unhealthy = is_healthy == Some(false);
                        state.connection = Some(Arc::clone(&connection));
                    }
                    changed.notify_waiters();
                    let error = self.watch(&connection, &reconnect, &changed).await;
                    let mut state = self.state.lock();
                    state.error = Some(error);
                    state.connection = None;
                    state.is_unhealthy = false;
                }
                Err(error) => {
                    tracing::debug!(?endpoint, %error, "connecting to an endpoint failed");
                    self.state.lock().error = Some(error);
                }
            }
            changed.notify_waiters();
            sleep(jittered(pause)).await;
            pause = (2 * pause).min(reconnect.longest_pause);
        }
    }

    /// Tries the addresses of an endpoint in order, and returns the first connection that is
    /// established. Fails with the error of the last address.
    async fn connect(
        &self,
        endpoint: &Endpoint,
        builder: &ClientBuilder,
    ) -> Result<Arc<Connection>> {
        let mut failed = None;
        for address in &endpoint.addresses {
            match builder.clone().connect(address).await {
                Ok(client) => {
                    if let Some((preferred, error)) = failed {
                        let is_first =
                            !std::mem::replace(&mut self.state.lock().has_fallen_back, true);
                        if is_first {
                            tracing::warn!(%preferred, %address, %error, "connected to an alternative address");
                        }
                    }
                    return client.into_connection();
                }
                Err(error) => failed = Some((address, error)),
            }
        }
        Err(failed.map_or_else(
            || Error::disconnected("the endpoint has no address"),
            |(_, error)| error,
        ))
    }

    /// Waits until `connection` has ended, and returns the reason for the end. If health checks are
    /// enabled, also calls the server's health service periodically, and notifies `changed` when
    /// the health has changed. Ends the connection if the server does not answer such a call.
    async fn watch(
        &self,
        connection: &Arc<Connection>,
        reconnect: &Reconnect,
        changed: &Notify,
    ) -> Error {
        let core = &connection.core;
        let Some(interval) = reconnect.health_check else {
            return core.ended().await;
        };
        loop {
            tokio::select! {
                end = core.ended() => return end,
                () = sleep(interval) => {}
            }
            if !core.outbox.has_room() || !calls(core).has_free_slot() {
                // The check would wait for a free slot. The deadlines of the calls in progress
                // detect an unresponsive server.
                continue;
            }
            let Some(is_healthy) = check_health(connection, interval).await else {
                continue;
            };
            let was_unhealthy = std::mem::replace(&mut self.state.lock().is_unhealthy, !is_healthy);
            if was_unhealthy == is_healthy {
                changed.notify_waiters();
            }
        }
    }
}

/// Calls the health service of the server, and returns whether the server reports that it accepts
/// calls. Ends the connection if the server does not answer within `interval`. Returns `None` if
/// the health is not known, for example because the connection has ended.
async fn check_health(connection: &Arc<Connection>, interval: Duration) -> Option<bool> {
    let core = &connection.core;
    // Before the server's settings have arrived, a connection has no free slot.
    core.wait_for_settings().await.ok()?;
    let client = HealthClient::new(Client::of(Arc::clone(connection), interval));
    match timeout(interval, client.check(String::new())).await {
        Ok(Ok(state)) => Some(state == HealthState::Serving),
        // Without the health service, any answer shows that the server is responsive.
        Ok(Err(CallError::Rpc(Error::UnknownMethod { .. } | Error::Overloaded { .. }))) => {
            Some(true)
        }
        Ok(Err(CallError::Rpc(Error::DeadlineExceeded { .. }))) | Err(_) => {
            let reason = format!("no answer to a health check within {interval:?}");
            core.fail(Error::disconnected(reason));
            None
        }
        Ok(Err(_)) => None,
    }
}

/// Returns a random duration between half of `pause` and `pause`, so that many clients do not
/// reconnect at the same time.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) as u32;
    pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Guard that counts a call as in progress at an endpoint (server) until the guard is dropped.
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

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn pauses_are_shortened_randomly_by_at_most_a_half() {
        let pause = Duration::from_secs(1);
        let pauses: Vec<_> = (0..1000).map(|_| jittered(pause)).collect();
        let (shortest, longest) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert!(*shortest >= pause / 2 && *longest <= pause);
        // The pauses are spread over the whole range.
        assert!(*shortest < pause * 6 / 10 && *longest > pause * 9 / 10);
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_between_attempts_are_doubled_up_to_the_maximum() {
        let reconnect = Reconnect {
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(1),
            health_check: None,
        };
        let changed = Arc::new(Notify::new());
        // No server listens at this address.
        let endpoint = Endpoint::new(Address::memory()).unwrap();
        let connecting = Arc::new(EndpointState::new()).keep_connected(
            endpoint,
            ClientBuilder::default(),
            reconnect,
            Arc::clone(&changed),
        );
        let connecting = tokio::spawn(connecting);
        let failure = async || {
            changed.notified().await;
            Instant::now()
        };
        let mut last = failure().await;
        for pause in [100, 200, 400, 800, 1000, 1000, 1000].map(Duration::from_millis) {
            let next = failure().await;
            // The clock of the runtime has a resolution of 1 ms.
            let range = pause / 2..=pause + Duration::from_millis(1);
            let elapsed = next - last;
            assert!(range.contains(&elapsed), "{elapsed:?} and not {pause:?}");
            last = next;
        }
        connecting.abort();
    }
}
