//! [`Endpoints`]: the connections of a client of several servers, and the choice between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::Connection;
use super::builder::ClientBuilder;
use super::calls::calls;
use super::endpoint::{Endpoint, EndpointState, InFlight, Reconnect};
use crate::core::Core;
use crate::error::{Error, Result};

/// Policy that chooses the server of a call among the connected servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Balance {
    /// Uses the connected servers in turn.
    #[default]
    RoundRobin,
    /// Uses the server with the fewest calls of this client in progress.
    LeastInFlight,
}

/// Connections of a client to several servers. The connections end when this value is dropped.
#[derive(Debug)]
pub(super) struct Endpoints {
    states: Vec<Arc<EndpointState>>,
    /// Tasks that connect to the endpoints, and reconnect after the end of a connection. Each
    /// endpoint has one task.
    tasks: Vec<AbortHandle>,
    balance: Balance,
    /// Number of calls for which a server was chosen so far. Determines the next server of
    /// [`Balance::RoundRobin`].
    next: AtomicUsize,
    /// Notification that a connection was established or has ended, or that its server has become
    /// healthy or unhealthy. Calls that wait for a server then try again.
    changed: Arc<Notify>,
}

/// Connection that was chosen for a call. The call counts as in progress on its server until this
/// value is dropped.
#[derive(Debug)]
pub(super) struct ChosenConnection {
    connection: Arc<Connection>,
    /// Index of the connection's endpoint in [`Endpoints::states`].
    index: usize,
    _in_flight: InFlight,
}

impl ChosenConnection {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.connection.core
    }
}

impl Endpoints {
    /// Spawns a task for each endpoint (server), which connects and reconnects. Waits until an
    /// endpoint accepts calls, or until the first attempts of all endpoints have ended. Fails if no
    /// endpoint is connected after this wait.
    pub(super) async fn connect(
        endpoints: Vec<Endpoint>,
        builder: &ClientBuilder,
        balance: Balance,
        reconnect: &Reconnect,
    ) -> Result<Self> {
        let changed = Arc::new(Notify::new());
        let mut this = Self {
            states: Vec::new(),
            tasks: Vec::new(),
            balance,
            next: AtomicUsize::new(0),
            changed: Arc::clone(&changed),
        };
        for endpoint in endpoints {
            let state = Arc::new(EndpointState::new());
            this.states.push(Arc::clone(&state));
            let (builder, changed) = (builder.clone(), Arc::clone(&changed));
            let task = state.keep_connected(endpoint, builder, reconnect.clone(), changed);
            this.tasks.push(tokio::spawn(task).abort_handle());
        }
        loop {
            let mut changed = std::pin::pin!(changed.notified());
            changed.as_mut().enable();
            if this.states.iter().any(|state| state.usable().is_some()) {
                return Ok(this);
            }
            if this.states.iter().all(|state| state.error().is_some()) {
                // A connected server that does not serve may serve later.
                let is_connected = this
                    .connections()
                    .any(|connection| connection.core.end().is_none());
                return match is_connected {
                    true => Ok(this),
                    false => Err(this.error()),
                };
            }
            changed.await;
        }
    }

    /// Returns an error that explains why no endpoint (server) accepts calls. Chooses the first
    /// endpoint in the list that has recorded an error, and returns this error.
    pub(super) fn error(&self) -> Error {
        let known = self.states.iter().find_map(|state| state.error());
        known.unwrap_or_else(|| Error::disconnected("the client has no endpoints"))
    }

    /// Returns any connection, preferably a connection that accepts calls, or `None` if no server
    /// is connected.
    pub(super) fn any(&self) -> Option<Arc<Connection>> {
        let usable = self.states.iter().find_map(|state| state.usable());
        usable.or_else(|| self.states.iter().find_map(|state| state.connection()))
    }

    /// Returns the open connections of this client: one for each server that is connected.
    pub(super) fn connections(&self) -> impl Iterator<Item = Arc<Connection>> {
        self.states.iter().filter_map(|state| state.connection())
    }

    /// Chooses a connection for a call by the client's [`Balance`]. Skips the endpoints with the
    /// indices in `excluded`. If `pinned` is given, considers only the endpoint with this index.
    /// Returns `None` if no remaining endpoint accepts calls.
    fn choose(&self, excluded: &[usize], pinned: Option<usize>) -> Option<ChosenConnection> {
        let count = self.states.len();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..count).map(|offset| start.wrapping_add(offset) % count);
        let usable = in_turn
            .filter(|index| !excluded.contains(index))
            .filter(|index| pinned.is_none_or(|pinned| pinned == *index))
            .filter_map(|index| Some((index, self.states[index].usable()?)));
        let load = |index: usize| self.states[index].in_flight.load(Ordering::Relaxed);
        let mut usable = usable;
        let (index, connection) = match self.balance {
            Balance::RoundRobin => usable.next()?,
            // Of several minima, the first in turn is chosen.
            Balance::LeastInFlight => usable.min_by_key(|(index, _)| load(*index))?,
        };
        Some(ChosenConnection {
            connection,
            index,
            _in_flight: InFlight::new(&self.states[index].in_flight),
        })
    }

    /// Begins the search for a connected server that can execute a call. `limit` is the time limit
    /// of the call and thus of the search.
    pub(super) fn search(&self, limit: Duration) -> ConnectionSearch<'_> {
        ConnectionSearch {
            endpoints: self,
            latest: Instant::now().checked_add(limit),
            excluded: Vec::new(),
            pinned: None,
            refused: None,
            last: None,
        }
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Search for a server that accepts a call and begins to execute it. The caller sends the request
/// on each connection that [`Self::next`] returns, until a server accepts the call.
pub(super) struct ConnectionSearch<'e> {
    endpoints: &'e Endpoints,
    /// Deadline of the call.
    latest: Option<Instant>,
    /// Endpoints that refused the call.
    excluded: Vec<usize>,
    /// The only endpoint to which the call may be sent, or `None` if any endpoint may be used.
    pinned: Option<usize>,
    /// Error of the last server that refused the call and is still connected.
    refused: Option<Error>,
    /// Error of the last connection that ended.
    last: Option<Error>,
}

impl ConnectionSearch<'_> {
    /// Waits for the next connection on which the caller should send its call, at most until the
    /// deadline of the call. Fails without waiting if every connected server has refused the call.
    pub(super) async fn next(&mut self) -> Result<ChosenConnection> {
        loop {
            let mut changed = std::pin::pin!(self.endpoints.changed.notified());
            changed.as_mut().enable();
            if let Some(chosen) = self.endpoints.choose(&self.excluded, self.pinned) {
                return Ok(chosen);
            }
            // Every connected server has refused the call.
            if let Some(refused) = self.refused.take() {
                return Err(refused);
            }
            match self.latest {
                None => changed.await,
                Some(latest) => {
                    if timeout_at(latest, changed).await.is_err() {
                        return Err(self.unavailable());
                    }
                }
            }
        }
    }

    /// Returns the error for a call that has found no connection before its deadline.
    fn unavailable(&mut self) -> Error {
        let cause = self.last.take().unwrap_or_else(|| self.endpoints.error());
        Error::Unavailable {
            reason: cause.to_string(),
        }
    }

    /// Returns the remaining time until the deadline of the call, or [`Duration::MAX`] without a
    /// deadline.
    pub(super) fn remaining(&self) -> Duration {
        self.latest.map_or(Duration::MAX, |latest| {
            latest.saturating_duration_since(Instant::now())
        })
    }

    /// Restricts the search to the server of the connection `chosen`, because this server has
    /// perhaps executed the call. From now on, [`Self::next`] returns only connections to this
    /// server, even if the server has refused the call before.
    pub(super) fn pin(&mut self, chosen: &ChosenConnection) {
        self.pinned = Some(chosen.index);
        self.excluded.clear();
        self.refused = None;
    }

    /// Records that a call failed with `error`, and that the server of the connection `chosen` has
    /// not started the call. Afterwards, the search skips this server. If the connection has ended
    /// or is closing, the search does not skip the server, because a new connection could accept
    /// the call.
    pub(super) fn record_failure(&mut self, chosen: &ChosenConnection, error: Error) {
        // If the connection has ended or is closing, its endpoint is not excluded, because a new
        // connection may accept the call.
        let core = chosen.core();
        if core.end().is_none() && !calls(core).is_closing() {
            self.excluded.push(chosen.index);
            self.refused = Some(error);
        } else {
            self.last = Some(error);
        }
    }
}
