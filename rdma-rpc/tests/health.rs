//! Tests of the health service.

mod common;

use std::sync::Arc;

use common::{connect, listen, over_every_transport, within};
use rdma_rpc::{Address, HealthClient, HealthServer, HealthState, HealthStates, Server};

over_every_transport! {
    states_are_those_that_the_program_has_set;
    a_watcher_gets_the_state_and_each_change;
}

async fn serve(address: Address) -> (rdma_rpc::ServerHandle, HealthClient, Arc<HealthStates>) {
    let states = Arc::new(HealthStates::default());
    let server = Server::new(HealthServer::shared(Arc::clone(&states)));
    let server = listen(server, address).await;
    let client = HealthClient::new(connect(&server).await);
    (server, client, states)
}

async fn states_are_those_that_the_program_has_set(address: Address) {
    let (_server, client, states) = serve(address).await;
    let state = async |service: &str| {
        let checked = within("a check", client.check(service.to_owned())).await;
        checked.unwrap()
    };
    assert_eq!(state("").await, HealthState::Serving);
    assert_eq!(state("Store").await, HealthState::Unknown);
    states.set("Store", HealthState::NotServing);
    assert_eq!(state("Store").await, HealthState::NotServing);
    assert_eq!(state("").await, HealthState::Serving);
}

async fn a_watcher_gets_the_state_and_each_change(address: Address) {
    let (_server, client, states) = serve(address).await;
    let watching = within("a watch", client.watch("Store".to_owned())).await;
    let mut watched = watching.unwrap();
    let mut next = async || {
        let state = within("a state", watched.next()).await;
        state.expect("the stream continues").unwrap()
    };
    assert_eq!(next().await, HealthState::Unknown);
    for state in [
        HealthState::Serving,
        HealthState::NotServing,
        HealthState::Serving,
    ] {
        // The state of the whole server is another one.
        states.set("", HealthState::NotServing);
        states.set("Store", state);
        assert_eq!(next().await, state);
    }
    drop(watched);
    let checked = within("a check", client.check(String::new())).await;
    assert_eq!(checked.unwrap(), HealthState::NotServing);
}
