//! The health service, by which clients learn whether a server accepts calls.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::stream::Sender;

/// Health of a server or of a single service: whether calls are accepted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum HealthState {
    /// The service accepts calls.
    #[default]
    Serving,
    /// The service does not accept calls now, for example because the service is starting or
    /// because a component that the service needs is unavailable.
    NotServing,
    /// The program has not set the state of this service.
    Unknown,
}

/// Health service that a server can offer in addition to its own services: the program adds
/// `HealthServer::new(HealthStates::default())` to the server. [`HealthStates`] implements this
/// trait. [Clients of several servers](crate::ClientBuilder::connect_any) call the service in the
/// interval that [`ClientBuilder::health_check`](crate::ClientBuilder::health_check) sets.
#[rdma_rpc_macros::service]
pub trait Health {
    /// Returns the state of the service with this name, or of the whole server for an empty name.
    /// [`HealthStates`] never returns the error, which contains no information.
    async fn check(&self, service: String) -> Result<HealthState, ()>;
    /// Sends the current state of a service, and then each new state, until the caller drops the
    /// stream.
    async fn watch(&self, service: String, states: Sender<HealthState>) -> Result<(), ()>;
}

/// Health of a server and of its services, set by the program and reported to clients by the
/// [`Health`] service.
///
/// ```
/// use std::sync::Arc;
///
/// use rdma_rpc::{Address, HealthClient, HealthServer, HealthState, HealthStates, Server};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), rdma_rpc::CallError<()>> {
/// let states = Arc::new(HealthStates::default());
/// let server = Server::new(HealthServer::shared(Arc::clone(&states)));
/// let server = server.listen(Address::memory()).await?;
/// states.set("", HealthState::NotServing);
///
/// let client = HealthClient::connect(server.address()).await?;
/// assert_eq!(client.check(String::new()).await?, HealthState::NotServing);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HealthStates {
    states: watch::Sender<HashMap<String, HealthState>>,
}

impl Default for HealthStates {
    /// Creates health states in which the server as a whole is [`Serving`](HealthState::Serving),
    /// and no service has a state.
    fn default() -> Self {
        let server = (String::new(), HealthState::Serving);
        Self {
            states: watch::Sender::new(HashMap::from([server])),
        }
    }
}

impl HealthStates {
    /// Sets the state of the service with this name, or of the whole server for an empty name.
    /// [`Health::watch`] sends the new state to its callers.
    pub fn set(&self, service: &str, state: HealthState) {
        self.states.send_modify(|states| {
            states.insert(service.to_owned(), state);
        });
    }

    /// Returns the state of the service with this name, or of the whole server for an empty name.
    /// Returns [`HealthState::Unknown`] if the program has not set a state.
    pub fn state(&self, service: &str) -> HealthState {
        state(&self.states.borrow(), service)
    }
}

fn state(states: &HashMap<String, HealthState>, service: &str) -> HealthState {
    let known = states.get(service).copied();
    known.unwrap_or(HealthState::Unknown)
}

impl Health for HealthStates {
    async fn check(&self, service: String) -> Result<HealthState, ()> {
        Ok(self.state(&service))
    }

    async fn watch(&self, service: String, mut states: Sender<HealthState>) -> Result<(), ()> {
        let mut changes = self.states.subscribe();
        let mut last = None;
        loop {
            let now = state(&changes.borrow_and_update(), &service);
            if last != Some(now) {
                // An error means that the caller has dropped the stream.
                states.send(now).await.map_err(|_| ())?;
                last = Some(now);
            }
            changes.changed().await.map_err(|_| ())?;
        }
    }
}
