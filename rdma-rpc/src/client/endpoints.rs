//! [`Endpoints`]: connections to several servers of the same services, between which calls are distributed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::Handle;
use super::builder::ClientBuilder;
use super::calls::calls;
use super::endpoint::{Endpoint, InFlight, Place, Upkeep};
use crate::core::Core;
use crate::error::{Error, Result};

/// Choice of the server of a call, among those that are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Balance {
    /// Each server in turn.
    #[default]
    RoundRobin,
    /// The server with the fewest calls of this client in progress.
    LeastInFlight,
}

/// Connections to several servers. They end when this value is dropped.
#[derive(Debug)]
pub(super) struct Endpoints {
    places: Vec<Arc<Place>>,
    tasks: Vec<AbortHandle>,
    balance: Balance,
    next: AtomicUsize,
    /// Notification of each change of a connection.
    changed: Arc<Notify>,
}

/// Connection that was chosen for a call.
#[derive(Debug)]
pub(super) struct Chosen {
    handle: Arc<Handle>,
    index: usize,
    _in_flight: InFlight,
}

impl Chosen {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

impl Endpoints {
    /// Connects to endpoints. Waits until one is connected, or no attempt is in progress.
    pub(super) async fn connect(
        endpoints: Vec<Endpoint>,
        builder: &ClientBuilder,
        balance: Balance,
        upkeep: &Upkeep,
    ) -> Result<Self> {
        let changed = Arc::new(Notify::new());
        let mut this = Self {
            places: Vec::new(),
            tasks: Vec::new(),
            balance,
            next: AtomicUsize::new(0),
            changed: Arc::clone(&changed),
        };
        for endpoint in endpoints {
            let place = Arc::new(Place::new());
            this.places.push(Arc::clone(&place));
            let (builder, changed) = (builder.clone(), Arc::clone(&changed));
            let task = place.keep_connected(endpoint, builder, upkeep.clone(), changed);
            this.tasks.push(tokio::spawn(task).abort_handle());
        }
        loop {
            let mut changed = std::pin::pin!(changed.notified());
            changed.as_mut().enable();
            if this.places.iter().any(|place| place.usable().is_some()) {
                return Ok(this);
            }
            if this.places.iter().all(|place| place.error().is_some()) {
                return Err(this.error());
            }
            changed.await;
        }
    }

    /// Returns the reason why no endpoint is usable.
    pub(super) fn error(&self) -> Error {
        let known = self.places.iter().find_map(|place| place.error());
        known.unwrap_or_else(|| Error::disconnected("it has no endpoints"))
    }

    /// Returns any connection, preferably a usable one.
    pub(super) fn any(&self) -> Option<Arc<Handle>> {
        let usable = self.places.iter().find_map(|place| place.usable());
        usable.or_else(|| self.places.iter().find_map(|place| place.connection()))
    }

    /// Returns all connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = Arc<Handle>> {
        self.places.iter().filter_map(|place| place.connection())
    }

    /// Chooses a connection, except those to the endpoints `excluded`, or that to the endpoint
    /// `pinned`.
    fn choose(&self, excluded: &[usize], pinned: Option<usize>) -> Option<Chosen> {
        let count = self.places.len();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..count).map(|offset| start.wrapping_add(offset) % count);
        let usable = in_turn
            .filter(|index| !excluded.contains(index))
            .filter(|index| pinned.is_none_or(|pinned| pinned == *index))
            .filter_map(|index| Some((index, self.places[index].usable()?)));
        let load = |index: usize| self.places[index].in_flight.load(Ordering::Relaxed);
        let mut usable = usable;
        let (index, handle) = match self.balance {
            Balance::RoundRobin => usable.next()?,
            // The first of several minima, in turn.
            Balance::LeastInFlight => usable.min_by_key(|(index, _)| load(*index))?,
        };
        Some(Chosen {
            handle,
            index,
            _in_flight: InFlight::new(&self.places[index].in_flight),
        })
    }

    /// Begins the search of a connection for a call that must be answered within `limit`.
    pub(super) fn search(&self, limit: Duration) -> Search<'_> {
        Search {
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

/// Search of a connection on which a call is started.
pub(super) struct Search<'e> {
    endpoints: &'e Endpoints,
    latest: Option<Instant>,
    /// Endpoints that have refused the call.
    excluded: Vec<usize>,
    /// The only endpoint that may get the call.
    pinned: Option<usize>,
    /// Error of the last server that has refused the call and is still connected.
    refused: Option<Error>,
    /// Error of the last connection that has ended.
    last: Option<Error>,
}

impl Search<'_> {
    /// Waits for a connection, at most until the deadline of the call.
    pub(super) async fn next(&mut self) -> Result<Chosen> {
        loop {
            let mut changed = std::pin::pin!(self.endpoints.changed.notified());
            changed.as_mut().enable();
            if let Some(chosen) = self.endpoints.choose(&self.excluded, self.pinned) {
                return Ok(chosen);
            }
            // Every server that is connected has refused the call.
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

    fn unavailable(&mut self) -> Error {
        let cause = self.last.take().unwrap_or_else(|| self.endpoints.error());
        Error::Unavailable {
            reason: cause.to_string(),
        }
    }

    /// Returns the time that is left for the call.
    pub(super) fn left(&self) -> Duration {
        self.latest.map_or(Duration::MAX, |latest| {
            latest.saturating_duration_since(Instant::now())
        })
    }

    /// Allows only the endpoint of a connection from now on.
    pub(super) fn pin(&mut self, chosen: &Chosen) {
        self.pinned = Some(chosen.index);
        self.excluded.clear();
        self.refused = None;
    }

    /// Takes over the error of a call that the server of a connection has not started.
    pub(super) fn failed(&mut self, chosen: &Chosen, error: Error) {
        // A connection that has ended or is closing is not chosen again, but the next one to its
        // server is.
        let core = chosen.core();
        if core.end().is_none() && !calls(core).is_closing() {
            self.excluded.push(chosen.index);
            self.refused = Some(error);
        } else {
            self.last = Some(error);
        }
    }
}
