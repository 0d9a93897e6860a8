//! Ends of servers, clients and connections, on a device.

mod common;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{LIMIT, assert_echoes, connect, echo, listen, pair, serve, within};
use rdma_async::{LocalMrWriteAccess, Rdma, RdmaBuilder};
use rdma_rpc::{ApplicationError, Error, Router, Server};
use tokio::sync::Notify;

/// Returns a router with a method that notifies `arrived` and returns after `release`.
fn waiting(arrived: &Arc<Notify>, release: &Arc<Notify>) -> Router {
    let (arrived, release) = (Arc::clone(arrived), Arc::clone(release));
    Router::new()
        .route("test/echo", echo)
        .route("test/wait", move |()| {
            let (arrived, release) = (Arc::clone(&arrived), Arc::clone(&release));
            async move {
                arrived.notify_one();
                release.notified().await;
                Ok::<_, ApplicationError>("finished".to_owned())
            }
        })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_server_fails_every_call() {
    const CALLS: usize = 16;
    let called = Arc::new((AtomicUsize::new(0), Notify::new()));
    let counted = Arc::clone(&called);
    let router = Router::new().route("test/hang", move |()| {
        counted.0.fetch_add(1, Ordering::SeqCst);
        counted.1.notify_one();
        pending::<Result<(), ApplicationError>>()
    });
    // The future that serves this connection can be dropped during a call, as if the server had
    // crashed.
    let mut listener = within("listening", RdmaBuilder::default().bind("127.0.0.1:0"))
        .await
        .expect("these tests need an RDMA device");
    let address = listener.local_address().unwrap();
    let server = tokio::spawn(async move {
        let rdma = listener.accept().await.unwrap();
        Server::new(router).serve_connection(rdma).await
    });
    let connecting = common::client().deadline(LIMIT).connect(address);
    let client = within("connecting", connecting).await.unwrap();
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<_, ()>("test/hang", &()).await })
        })
        .collect();
    within("the calls' arrival", async {
        while called.0.load(Ordering::SeqCst) < CALLS {
            called.1.notified().await;
        }
    })
    .await;
    server.abort();
    for call in calls {
        let error = within("the end of a call", call)
            .await
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, Error::Transport(_)), "{error:?}");
    }
    let error = within(
        "a call after the end",
        client.call::<_, ()>("test/hang", &()),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, Error::Transport(_)), "{error:?}");
    assert!(client.failure().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_finishes_what_runs_and_refuses_what_is_new() {
    let (arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (server, client) = pair(waiting(&arrived, &release)).await;
    let address = server.local_address();
    let running = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, String>("test/wait", &()).await }
    });
    within("the call's arrival", arrived.notified()).await;
    let shutdown = tokio::spawn(server.shutdown());
    // Calls are answered until the server has begun to shut down.
    within("a refusal", async {
        loop {
            match client.call::<_, String>("test/echo", "still there?").await {
                Ok(_) => tokio::task::yield_now().await,
                Err(Error::ShuttingDown) => break,
                Err(other) => panic!("a refusal: {other:?}"),
            }
        }
    })
    .await;
    assert!(!shutdown.is_finished(), "a call still runs");
    release.notify_one();
    let answer = within("the running call", running).await.unwrap();
    assert_eq!(answer.unwrap(), "finished");
    within("the end of the server", shutdown).await.unwrap();
    let error = within(
        "a call after the end",
        client.call::<_, String>("test/echo", "?"),
    )
    .await
    .unwrap_err();
    assert!(
        matches!(error, Error::ShuttingDown | Error::Transport(_)),
        "{error:?}"
    );
    within("connecting in vain", common::client().connect(address))
        .await
        .expect_err("nobody listens any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_does_not_finish_is_given_up_after_the_grace_period() {
    let (arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = Server::new(waiting(&arrived, &release)).grace(Duration::from_millis(100));
    let server = listen(server).await;
    let client = connect(&server).await;
    let running = tokio::spawn(async move { client.call::<_, String>("test/wait", &()).await });
    within("the call's arrival", arrived.notified()).await;
    within("the end of the server", server.shutdown()).await;
    let error = within("the end of the call", running)
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(error, Error::ShuttingDown | Error::Transport(_)),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_handle_ends_the_server() {
    let (server, client) = pair(Router::new().route("test/echo", echo)).await;
    assert_echoes(&client).await;
    drop(server);
    within("the end of the connection", async {
        while client.failure().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let error = within(
        "a call after the end",
        client.call::<_, String>("test/echo", "?"),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, Error::ShuttingDown), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_in_mid_call_disturbs_nobody() {
    let (arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = serve(waiting(&arrived, &release)).await;
    let other = connect(&server).await;
    for _ in 0..3 {
        let client = connect(&server).await;
        let call = tokio::spawn(async move { client.call::<_, String>("test/wait", &()).await });
        within("the call's arrival", arrived.notified()).await;
        call.abort();
        assert_echoes(&other).await;
    }
}

/// Sends bytes as a message.
async fn say(rdma: &Rdma, bytes: &[u8]) {
    let layout = std::alloc::Layout::from_size_align(bytes.len(), 1).unwrap();
    let mut region = rdma.alloc_local_mr(layout).unwrap();
    region.as_mut_slice().copy_from_slice(bytes);
    // The server may end before it confirms the arrival.
    drop(rdma.send(&region).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_its_connection_and_no_other() {
    let (server, client) = pair(Router::new().route("test/echo", echo)).await;
    let mut request_of_a_later_version = [0; 32];
    request_of_a_later_version[..2].copy_from_slice(&[2, 1]);
    let mut answer = [0; 24];
    answer[..2].copy_from_slice(&[1, 2]);
    let garbage: [&[u8]; 5] = [
        b"x",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &[0xff; 3000],
        &request_of_a_later_version,
        &answer,
    ];
    for garbage in garbage {
        let connecting = RdmaBuilder::default().connect(server.local_address());
        let rdma = within("connecting", connecting).await.unwrap();
        within("saying it", say(&rdma, garbage)).await;
        within("the end of the connection", rdma.ended()).await;
        assert_echoes(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_garbage_fails_every_call() {
    let mut listener = within("listening", RdmaBuilder::default().bind("127.0.0.1:0"))
        .await
        .expect("these tests need an RDMA device");
    let address = listener.local_address().unwrap();
    let server = tokio::spawn(async move {
        let rdma = listener.accept().await.unwrap();
        drop(rdma.receive().await.unwrap());
        say(&rdma, b"what?").await;
        rdma.ended().await;
    });
    let connecting = common::client().deadline(LIMIT).connect(address);
    let client = within("connecting", connecting).await.unwrap();
    let error = within(
        "the end of the call",
        client.call::<_, ()>("test/echo", &()),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error:?}");
    assert!(matches!(client.failure(), Some(Error::Protocol { .. })));
    drop(client);
    within("the end of the connection", server).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_do_not_outlive_the_runtime_of_their_client() {
    let (arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = serve(waiting(&arrived, &release)).await;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let connecting = common::client()
        .deadline(LIMIT * 2)
        .connect(server.local_address());
    let client = within("connecting", runtime.spawn(connecting))
        .await
        .unwrap()
        .unwrap();
    let call = tokio::spawn(async move { client.call::<_, String>("test/wait", &()).await });
    within("the call's arrival", arrived.notified()).await;
    runtime.shutdown_background();
    let error = within("the end of the call", call)
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::Transport(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_calls_does_not_keep_a_server_from_ending() {
    let (server, client) = pair(Router::new().route("test/echo", echo)).await;
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                while client.call::<_, String>("test/echo", "more").await.is_ok() {}
            })
        })
        .collect();
    assert_echoes(&client).await;
    within("the end of the server", server.shutdown()).await;
    for caller in callers {
        within("the end of a caller", caller).await.unwrap();
    }
    // The notice of the shutdown comes after the answers, which may have been refusals.
    let goodbye = async {
        loop {
            match client.failure() {
                Some(failure) => return failure,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let failure = within("the server's goodbye", goodbye).await;
    assert!(matches!(failure, Error::ShuttingDown), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_an_error() {
    // A socket that is bound and does not listen reserves the port.
    let unused = tokio::net::TcpSocket::new_v4().unwrap();
    unused.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = unused.local_addr().unwrap();
    let error = within("connecting in vain", common::client().connect(address))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Transport(_)), "{error:?}");
}
