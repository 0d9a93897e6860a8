//! Tests of clients of several servers: distribution, reconnection, failover and health checks.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::held::{HeldClient, HeldServer, Holding, SharedHolding};
use common::{another, client, listen, over_every_transport, transport, within};
use rdma_rpc::{
    Address, Balance, CallError, Client, Endpoint, Error, HealthServer, HealthState, HealthStates,
    Server, ServerHandle,
};

over_every_transport! {
    calls_are_sent_to_the_servers_in_turn;
    calls_are_sent_to_the_server_with_the_fewest_in_flight;
    a_call_that_was_not_started_is_sent_to_another_server;
    calls_refused_by_an_overloaded_server_are_sent_to_another_server;
    calls_wait_for_a_server_and_then_fail;
    streams_and_bulks_work_with_several_servers;
    a_server_that_does_not_serve_gets_no_calls;
    a_server_that_does_not_serve_gets_no_calls_on_a_new_connection;
    a_busy_connection_is_not_checked;
    connecting_fails_if_no_server_listens_at_first;
}

/// Starts a server that returns its name, and whose calls wait until the test releases them.
async fn named(name: &str, address: Address) -> (ServerHandle, Arc<Holding>, Arc<HealthStates>) {
    named_with(name, address, |server| server).await
}

#[rdma_rpc::service]
trait Named {
    async fn name(&self) -> Result<String, String>;
    async fn names(&self, names: rdma_rpc::Sender<String>) -> Result<u32, String>;
    async fn measure(&self, bulk: rdma_rpc::Bulk) -> Result<u64, String>;
}

struct Name(String);

impl Named for Name {
    async fn name(&self) -> Result<String, String> {
        Ok(self.0.clone())
    }

    async fn names(&self, mut names: rdma_rpc::Sender<String>) -> Result<u32, String> {
        for _ in 0..3 {
            let sent = names.send(self.0.clone()).await;
            sent.map_err(|error| error.to_string())?;
        }
        Ok(3)
    }

    async fn measure(&self, bulk: rdma_rpc::Bulk) -> Result<u64, String> {
        let bytes = bulk.read(..).await.map_err(|error| error.to_string())?;
        Ok(bytes.iter().copied().map(u64::from).sum())
    }
}

async fn named_with(
    name: &str,
    address: Address,
    settings: impl FnOnce(Server) -> Server,
) -> (ServerHandle, Arc<Holding>, Arc<HealthStates>) {
    let holding = SharedHolding::default();
    let (state, health) = (Arc::clone(&holding.0), Arc::new(HealthStates::default()));
    let server = Server::new(NamedServer::new(Name(name.to_owned())))
        .service(HeldServer::new(holding))
        .service(HealthServer::shared(Arc::clone(&health)));
    (listen(settings(server), address).await, state, health)
}

async fn connect_any(
    servers: &[&ServerHandle],
    settings: impl FnOnce(rdma_rpc::ClientBuilder) -> rdma_rpc::ClientBuilder,
) -> Client {
    let builder = client().backoff(Duration::from_millis(5), Duration::from_millis(50));
    let addresses = servers.iter().map(|server| server.address().clone());
    let connecting = settings(builder).connect_any(addresses);
    within("connecting", connecting).await.unwrap()
}

/// Makes calls until each server in `names` has answered.
async fn reached(client: &NamedClient, names: &[&str]) {
    within("each server", async {
        let mut missing = names.to_vec();
        while !missing.is_empty() {
            match client.name().await {
                Ok(name) => missing.retain(|missing| **missing != name),
                // The other servers may not be connected yet.
                Err(CallError::Rpc(Error::Overloaded { .. })) => {}
                Err(error) => panic!("{error}"),
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn calls_are_sent_to_the_servers_in_turn(address: Address) {
    let (first, ..) = named("first", another(&address)).await;
    let (second, ..) = named("second", address).await;
    let client = NamedClient::new(connect_any(&[&first, &second], |builder| builder).await);
    reached(&client, &["first", "second"]).await;
    let mut answers = Vec::new();
    for _ in 0..6 {
        answers.push(within("a call", client.name()).await.unwrap());
    }
    for pair in answers.windows(2) {
        assert_ne!(pair[0], pair[1], "{answers:?}");
    }
    assert!(client.client().peer().is_some() && client.client().failure().is_none());
    assert!(client.client().sent().frames > 6);
}

async fn calls_are_sent_to_the_server_with_the_fewest_in_flight(address: Address) {
    let (first, holding, _) = named("first", another(&address)).await;
    let (second, other, _) = named("second", address).await;
    let least = |builder: rdma_rpc::ClientBuilder| builder.balance(Balance::LeastInFlight);
    let client = connect_any(&[&first, &second], least).await;
    let names = NamedClient::new(client.clone());
    reached(&names, &["first", "second"]).await;
    let waiting = tokio::spawn({
        let client = HeldClient::new(client);
        async move { client.wait("done".to_owned()).await }
    });
    within("the call's arrival", async {
        while holding.arrived.count() + other.arrived.count() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let idle = match holding.arrived.count() {
        0 => "first",
        _ => "second",
    };
    for _ in 0..5 {
        assert_eq!(within("a call", names.name()).await.unwrap(), idle);
    }
    holding.release.add_permits(1);
    other.release.add_permits(1);
    within("the call", waiting).await.unwrap().unwrap();
    reached(&names, &["first", "second"]).await;
}

async fn a_call_that_was_not_started_is_sent_to_another_server(address: Address) {
    let (first, holding, _) = named("first", another(&address)).await;
    let short = |server: Server| server.grace(Duration::from_millis(50));
    let (second, other, _) = named_with("second", address, short).await;
    let client = connect_any(&[&first, &second], |builder| builder).await;
    let names = NamedClient::new(client.clone());
    reached(&names, &["first", "second"]).await;
    // The running call delays the end of the first server, which refuses new calls.
    let waiting = tokio::spawn({
        let client = HeldClient::connect(first.address()).await.unwrap();
        async move { client.wait("done".to_owned()).await }
    });
    holding.arrived.reached("the call's arrival", 1).await;
    let shutdown = tokio::spawn(first.shutdown());
    let mut last = Vec::new();
    within("calls of one server alone", async {
        while last.len() < 10 {
            let name = names.name().await.expect("every call is answered");
            match name.as_str() {
                "second" => last.push(name),
                _ => last.clear(),
            }
        }
    })
    .await;
    holding.release.add_permits(1);
    within("the waiting call", waiting).await.unwrap().unwrap();
    within("the end of the server", shutdown).await.unwrap();
    for _ in 0..10 {
        assert_eq!(within("a call", names.name()).await.unwrap(), "second");
    }
    // A running call whose server ends is not repeated.
    let waiting = tokio::spawn({
        let client = HeldClient::new(client);
        async move { client.watched().await }
    });
    other.arrived.reached("the call's arrival", 1).await;
    drop(second);
    let outcome = within("the end of the call", waiting).await.unwrap();
    assert!(matches!(outcome, Err(CallError::Rpc(_))), "{outcome:?}");
}

async fn calls_refused_by_an_overloaded_server_are_sent_to_another_server(address: Address) {
    let full = |server: Server| server.load_limit(0);
    let (first, ..) = named_with("first", another(&address), full).await;
    let (second, ..) = named("second", address).await;
    let client = NamedClient::new(connect_any(&[&first, &second], |builder| builder).await);
    reached(&client, &["second"]).await;
    for _ in 0..4 {
        assert_eq!(within("a call", client.name()).await.unwrap(), "second");
    }
    let client = NamedClient::new(connect_any(&[&first, &first], |builder| builder).await);
    let refused = within("a call", client.name()).await.unwrap_err().rpc();
    assert!(
        matches!(refused, Some(Error::Overloaded { .. })),
        "{refused:?}"
    );
}

async fn calls_wait_for_a_server_and_then_fail(address: Address) {
    let (server, ..) = named("first", address).await;
    let place = server.address().clone();
    let client = NamedClient::new(connect_any(&[&server], |builder| builder).await);
    within("the end of the server", server.shutdown()).await;
    within("the end of the connection", async {
        while client.client().failure().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let limited = client.with_deadline(Duration::from_millis(100));
    let late = within("a call", limited.name()).await.unwrap_err().rpc();
    assert!(matches!(late, Some(Error::Unavailable { .. })), "{late:?}");
    assert!(client.client().failure().is_some());
    if place.to_string() == "memory" {
        // Each address in memory can be used by one server only.
        return;
    }
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.name().await }
    });
    let (_server, ..) = named("again", place).await;
    let name = within("a call", waiting).await.unwrap().unwrap();
    assert_eq!(name, "again");
}

async fn streams_and_bulks_work_with_several_servers(address: Address) {
    let (first, ..) = named("first", another(&address)).await;
    let (second, ..) = named("second", address).await;
    let client = NamedClient::new(connect_any(&[&first, &second], |builder| builder).await);
    reached(&client, &["first", "second"]).await;
    let mut senders = Vec::new();
    for _ in 0..2 {
        let mut names = within("a stream", client.names()).await.unwrap();
        senders.push(within("an item", names.next()).await.unwrap().unwrap());
        assert_eq!(within("the end", names.finish()).await.unwrap(), 3);
    }
    senders.sort();
    assert_eq!(senders, ["first", "second"]);
    let mut memory = client.client().bulk_memory(1000).unwrap();
    memory.fill(2);
    let bulk = rdma_rpc::Bulk::from(memory);
    // Memory of one connection can be used with the other connection.
    for _ in 0..4 {
        let sum = within("a bulk", client.measure(bulk.clone())).await;
        assert_eq!(sum.unwrap(), 2000);
    }
    assert_eq!(bulk.into_memory().expect("it is back").len(), 1000);
}

async fn a_server_that_does_not_serve_gets_no_calls(address: Address) {
    let (first, _, health) = named("first", another(&address)).await;
    let (second, ..) = named("second", address).await;
    let checked =
        |builder: rdma_rpc::ClientBuilder| builder.health_check(Duration::from_millis(200));
    let client = NamedClient::new(connect_any(&[&first, &second], checked).await);
    reached(&client, &["first", "second"]).await;
    health.set("", HealthState::NotServing);
    within("the health check", async {
        let mut in_turn = 0;
        while in_turn < 10 {
            match client.name().await.unwrap().as_str() {
                "second" => in_turn += 1,
                _ => in_turn = 0,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    health.set("", HealthState::Serving);
    reached(&client, &["first", "second"]).await;
}

async fn a_server_that_does_not_serve_gets_no_calls_on_a_new_connection(address: Address) {
    let (first, holding, health) = named("first", another(&address)).await;
    let checked = |builder: rdma_rpc::ClientBuilder| {
        builder
            .health_check(Duration::from_secs(5))
            .backoff(Duration::from_millis(1), Duration::from_millis(1))
    };
    health.set("", HealthState::NotServing);
    let client = connect_any(&[&first], checked).await;
    assert!(client.peer().is_some() && client.failure().is_none());
    let held = HeldClient::new(client.with_deadline(Duration::from_millis(100)));
    let call = within("a call", held.wait(String::new())).await;
    let refused = call.unwrap_err().rpc();
    assert!(
        matches!(refused, Some(Error::Unavailable { .. })),
        "{refused:?}"
    );
    assert_eq!(holding.arrived.count(), 0);
}

async fn a_busy_connection_is_not_checked(address: Address) {
    let (server, holding, _) = named("first", address).await;
    let interval = Duration::from_millis(30);
    let one = |builder: rdma_rpc::ClientBuilder| builder.concurrency(1).health_check(interval);
    let client = HeldClient::new(connect_any(&[&server], one).await);
    let waiting = tokio::spawn(async move { client.wait("done".to_owned()).await });
    holding.arrived.reached("the call's arrival", 1).await;
    // The call occupies the only slot for several intervals.
    tokio::time::sleep(10 * interval).await;
    holding.release.add_permits(1);
    let outcome = within("the call", waiting).await.unwrap();
    assert_eq!(outcome.unwrap(), "done");
}

async fn connecting_fails_if_no_server_listens_at_first(address: Address) {
    let (server, ..) = named("first", address).await;
    let gone = server.address().clone();
    within("the end of the server", server.shutdown()).await;
    let builder = client();
    let connecting = builder.connect_any([gone]);
    within("connecting in vain", connecting)
        .await
        .expect_err("nobody listens");
    let none: [Address; 0] = [];
    let connecting = client().connect_any(none);
    within("connecting to nothing", connecting)
        .await
        .expect_err("there are no endpoints");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_rdma_is_reached_by_tcp() {
    let (server, ..) = named("tcp", common::tcp()).await;
    // The device does not exist, as on a host without an RDMA device.
    let builder = Client::builder().transport(transport().device("no_such_device"));
    let endpoint = Endpoint::new("rdma://127.0.0.1:9")
        .and_then(|endpoint| endpoint.or(server.address()))
        .unwrap();
    let client = within("connecting", builder.connect_any([endpoint])).await;
    let client = NamedClient::new(client.unwrap());
    assert_eq!(within("a call", client.name()).await.unwrap(), "tcp");
    let peer = client.client().peer().unwrap();
    assert_eq!(peer.transport(), rdma_rpc::Transport::Tcp);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_reconnects_to_a_server_that_does_not_answer_its_health_check() {
    use common::frames::{frame, message};
    use common::raw::Raw;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let silent = tokio::spawn(async move {
        let mut connections = Vec::new();
        // The server sends its settings to every client, and answers no call.
        for _ in 0..2 {
            let mut raw = Raw::Tcp(listener.accept().await.unwrap().0);
            let settings = [1 << 16, 8, 0, 0_u32].map(u32::to_be_bytes).concat();
            raw.say(&message(&[frame(8, 0, 0, (0, 0), &settings)]))
                .await;
            connections.push(raw);
        }
    });
    let builder = client()
        .health_check(Duration::from_millis(50))
        .backoff(Duration::from_millis(5), Duration::from_millis(5));
    // Connecting succeeds only with a server that answers.
    let (server, ..) = named("first", common::tcp()).await;
    let addresses = [address, server.address().to_string()];
    let _client = within("connecting", builder.connect_any(addresses))
        .await
        .unwrap();
    within("the second connection", silent).await.unwrap();
}
