//! Tests of the end of servers, clients and connections over every transport.

mod common;

use std::time::Duration;

use common::frames::{message, request, settings};
use common::held::{HeldClient, HeldServer, SharedHolding, assert_answers, held, held_pair};
use common::raw::Raw;
use common::{client, connect, over_every_transport, transport, within};
use rdma_rpc::{Address, CallError, Error, Server};

over_every_transport! {
    a_shutdown_completes_running_calls_and_refuses_new_calls;
    a_call_that_does_not_finish_is_dropped_after_the_grace_period;
    dropping_the_handle_ends_the_server;
    a_client_that_disconnects_during_a_call_affects_no_other_client;
    calls_do_not_outlive_the_runtime_of_their_client;
    a_server_shuts_down_under_a_flood_of_calls;
}

fn is_end(error: &CallError<String>) -> bool {
    matches!(
        error,
        CallError::Rpc(
            Error::ShuttingDown
                | Error::Cancelled
                | Error::Disconnected { .. }
                | Error::Transport(_)
                | Error::Tcp { .. }
        )
    )
}

async fn a_shutdown_completes_running_calls_and_refuses_new_calls(address: Address) {
    let (server, client, holding) = held_pair(address).await;
    let address = server.address().clone();
    let running = tokio::spawn({
        let client = client.clone();
        async move { client.wait("finished".to_owned()).await }
    });
    holding.arrived.reached("the call's arrival", 1).await;
    let shutdown = tokio::spawn(server.shutdown());
    // Calls are answered until the shutdown begins.
    let refusal = async {
        loop {
            match client.echo("still there?".to_owned()).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(CallError::Rpc(Error::ShuttingDown)) => break,
                Err(other) => panic!("a refusal: {other:?}"),
            }
        }
    };
    within("a refusal", refusal).await;
    assert!(!shutdown.is_finished(), "a call still runs");
    holding.release.add_permits(1);
    let answer = within("the running call", running).await.unwrap();
    assert_eq!(answer.unwrap(), "finished");
    within("the end of the server", shutdown).await.unwrap();
    let error = within("a call after the end", client.echo("?".to_owned())).await;
    assert!(is_end(&error.unwrap_err()));
    within("connecting in vain", common::client().connect(&address))
        .await
        .expect_err("nobody listens any more");
}

async fn a_call_that_does_not_finish_is_dropped_after_the_grace_period(address: Address) {
    let grace = Duration::from_millis(100);
    let (server, holding) = held(address, |server| server.grace(grace)).await;
    let client = HeldClient::new(connect(&server).await);
    let running = tokio::spawn(async move { client.wait("never".to_owned()).await });
    holding.arrived.reached("the call's arrival", 1).await;
    within("the end of the server", server.shutdown()).await;
    let error = within("the end of the call", running).await.unwrap();
    assert!(is_end(&error.unwrap_err()));
    holding.dropped.reached("the end of the handler", 1).await;
}

async fn dropping_the_handle_ends_the_server(address: Address) {
    let (server, client, _) = held_pair(address).await;
    assert_answers(&client).await;
    drop(server);
    let end = within("the end of the connection", client.client().ended()).await;
    assert!(matches!(end, Error::ShuttingDown), "{end:?}");
    let error = within("a call after the end", client.echo("?".to_owned())).await;
    let error = error.unwrap_err().rpc();
    assert!(matches!(error, Some(Error::ShuttingDown)), "{error:?}");
}

async fn a_client_that_disconnects_during_a_call_affects_no_other_client(address: Address) {
    let (server, holding) = held(address, |server| server).await;
    let other = HeldClient::new(connect(&server).await);
    for round in 1..=3 {
        let client = HeldClient::new(connect(&server).await);
        let call = tokio::spawn(async move { client.wait("never".to_owned()).await });
        holding.arrived.reached("the call's arrival", round).await;
        call.abort();
        assert_answers(&other).await;
        holding
            .dropped
            .reached("the end of the handler", round)
            .await;
    }
}

async fn calls_do_not_outlive_the_runtime_of_their_client(address: Address) {
    let (server, holding) = held(address, |server| server).await;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let connecting = client().connect(server.address().clone());
    let client = within("connecting", runtime.spawn(connecting)).await;
    let client = HeldClient::new(client.unwrap().unwrap());
    let call = tokio::spawn(async move { client.wait("never".to_owned()).await });
    holding.arrived.reached("the call's arrival", 1).await;
    runtime.shutdown_background();
    let error = within("the end of the call", call).await.unwrap();
    assert!(is_end(&error.unwrap_err()));
}

async fn a_server_shuts_down_under_a_flood_of_calls(address: Address) {
    let (server, client, _) = held_pair(address).await;
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { while client.echo("more".to_owned()).await.is_ok() {} })
        })
        .collect();
    assert_answers(&client).await;
    within("the end of the server", server.shutdown()).await;
    for caller in callers {
        within("the end of a caller", caller).await.unwrap();
    }
    let end = within("the end of the connection", client.client().ended()).await;
    assert!(matches!(end, Error::ShuttingDown), "{end:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_server_fails_every_call() {
    const CALLS: usize = 16;
    // Dropping the future that serves the connection ends it during a call, like a crash of the
    // server.
    let mut listener = within("listening", transport().bind("127.0.0.1:0"))
        .await
        .expect("these tests need an RDMA device");
    let address = listener.local_address().unwrap();
    let holding = SharedHolding::default();
    let service = HeldServer::new(holding.clone());
    let server = tokio::spawn(async move {
        let rdma = listener.accept().await.unwrap();
        Server::new(service).serve_connection(rdma).await
    });
    let client = within("connecting", client().connect(address))
        .await
        .unwrap();
    let client = HeldClient::new(client);
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.wait("never".to_owned()).await })
        })
        .collect();
    holding.0.arrived.reached("the calls' arrival", CALLS).await;
    server.abort();
    for call in calls {
        let error = within("the end of a call", call).await.unwrap();
        assert!(is_end(&error.unwrap_err()));
    }
    let error = within("a call after the end", client.echo("?".to_owned())).await;
    assert!(is_end(&error.unwrap_err()));
    assert!(client.client().failure().is_some());
    holding
        .0
        .dropped
        .reached("the end of the handlers", CALLS)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_during_a_shutdown_over_tcp_receives_its_last_answer() {
    const LEN: usize = 300_000;
    let (server, _) = held(common::tcp(), |server| server).await;
    let address = server.address().to_string();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    // Most of the answer stays in the memory of the server's system until the client reads.
    socket.set_recv_buffer_size(4096).unwrap();
    let address = address.strip_prefix("tcp://").unwrap().parse().unwrap();
    let mut raw = Raw::Tcp(within("connecting", socket.connect(address)).await.unwrap());
    within("the settings", raw.hear()).await.unwrap();
    let body = [&[0xe0, 0xa7, 0x12][..], &[b'x'; LEN]].concat();
    let echo = |slot| message(&[request("Held.echo", (slot, 0), &body)]);
    let hello = message(&[settings()]);
    assert!(within("the settings", raw.say(&hello)).await);
    assert!(within("a call", raw.say(&echo(0))).await);
    // Time for the response, and for the end of the shutdown if the server does not wait.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let shutdown = tokio::spawn(server.shutdown());
    tokio::time::sleep(Duration::from_millis(200)).await;
    raw.say(&message(&[request("Held.echo", (1, 0), b"\x01x")]))
        .await;
    let mut longest = 0;
    while let Some(message) = within("a message", raw.hear()).await {
        longest = longest.max(message.len());
    }
    assert!(longest > LEN, "{longest} bytes");
    drop(raw);
    within("the end of the server", shutdown).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_without_a_server_is_an_error() {
    // The socket reserves the port but does not listen.
    let unused = tokio::net::TcpSocket::new_v4().unwrap();
    unused.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = unused.local_addr().unwrap();
    for address in [format!("rdma://{address}"), format!("tcp://{address}")] {
        let error = within("connecting in vain", client().connect(address)).await;
        let error = error.unwrap_err();
        assert!(
            matches!(error, Error::Transport(_) | Error::Tcp { .. }),
            "{error:?}"
        );
    }
    let error = client().connect("nowhere").await.unwrap_err();
    assert!(matches!(error, Error::Address { .. }), "{error:?}");
    let error = client().connect(Address::memory()).await.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error:?}");
}
