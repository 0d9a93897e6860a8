//! The health service: whether a server can take calls.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::stream::Sender;

/// State of a server or of one of its services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum HealthState {
    /// The service takes calls.
    #[default]
    Serving,
    /// The service takes no calls now, for example because it is starting or because a component
    /// that it needs is down.
    NotServing,
    /// The server has no state of this service.
    Unknown,
}

/// The health service, which a server offers besides its own:
/// `HealthServer::new(HealthStates::default())`. [Clients of several
/// servers](crate::ClientBuilder::connect_any) call it in the interval that
/// [`ClientBuilder::health_check`](crate::ClientBuilder::health_check) sets.
#[rdma_rpc_macros::service]
pub trait Health {
    /// Returns the state of a service, or of the whole server for an empty name.
    async fn check(&self, service: String) -> Result<HealthState, ()>;
    /// Sends the state of a service, and then each change of it, until the caller drops the stream.
    async fn watch(&self, service: String, states: Sender<HealthState>) -> Result<(), ()>;
}

/// States of a server and of its services, which the program sets.
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
    /// Creates the states of a server that serves.
    fn default() -> Self {
        let server = (String::new(), HealthState::Serving);
        Self {
            states: watch::Sender::new(HashMap::from([server])),
        }
    }
}

impl HealthStates {
    /// Sets the state of a service, or of the whole server for an empty name.
    pub fn set(&self, service: &str, state: HealthState) {
        self.states.send_modify(|states| {
            states.insert(service.to_owned(), state);
        });
    }

    /// Returns the state of a service, or of the whole server for an empty name.
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
                // The caller needs no more.
                states.send(now).await.map_err(|_| ())?;
                last = Some(now);
            }
            changes.changed().await.map_err(|_| ())?;
        }
    }
}
