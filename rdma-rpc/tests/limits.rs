//! Deadlines, sizes and load of calls, on a device.

mod common;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{LIMIT, assert_echoes, connect, echo, listen, pair, within};
use rdma_rpc::{ApplicationError, Error, Payload, Router, Server};
use tokio::sync::Notify;

/// Counter of the handlers that were dropped before they returned, with a notification for each.
#[derive(Debug, Default)]
struct Dropped {
    count: AtomicUsize,
    changed: Notify,
}

struct Guard(Arc<Dropped>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.count.fetch_add(1, Ordering::SeqCst);
        self.0.changed.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_the_wait_and_the_work() {
    let (called, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(Dropped::default()));
    let (counted, theirs) = (Arc::clone(&called), Arc::clone(&dropped));
    let router = Router::new()
        .route("test/echo", echo)
        .route("test/hang", move |()| {
            counted.fetch_add(1, Ordering::SeqCst);
            let guard = Guard(Arc::clone(&theirs));
            async move {
                pending::<()>().await;
                drop(guard);
                Ok::<_, ApplicationError>(())
            }
        });
    let (_server, client) = pair(router).await;
    let limit = Duration::from_millis(200);
    // On a machine with other work a deadline may pass before the call reaches the server.
    let begin = Instant::now();
    while called.load(Ordering::SeqCst) < 3 {
        assert!(begin.elapsed() < LIMIT, "the calls do not arrive");
        let call = client.call_within::<_, ()>(limit, "test/hang", &());
        let error = within("the deadline", call).await.unwrap_err();
        assert!(
            matches!(&error, Error::DeadlineExceeded { method, .. } if method == "test/hang"),
            "{error:?}"
        );
        assert_echoes(&client).await;
    }
    within("the server's dropping the work", async {
        while dropped.count.load(Ordering::SeqCst) < 3 {
            dropped.changed.notified().await;
        }
    })
    .await;
    assert!(client.failure().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_can_be_as_far_as_it_gets_and_as_near() {
    let (_server, client) = pair(Router::new().route("test/echo", echo)).await;
    for far in [Duration::MAX, Duration::from_micros(u64::MAX)] {
        assert_echoes(&client.with_deadline(far)).await;
    }
    let near = client.with_deadline(Duration::ZERO);
    let error = within("the deadline", near.call::<_, String>("test/echo", "?"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
    assert_echoes(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_is_nobodys() {
    let (arrived, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let router = {
        let (arrived, release) = (Arc::clone(&arrived), Arc::clone(&release));
        Router::new()
            .route("test/echo", echo)
            .route("test/wait", move |text: String| {
                let (arrived, release) = (Arc::clone(&arrived), Arc::clone(&release));
                async move {
                    arrived.notify_one();
                    release.notified().await;
                    Ok::<_, ApplicationError>(text)
                }
            })
    };
    let server = listen(Server::new(router)).await;
    // With one slot for all calls, a late answer finds another call in its slot.
    let connecting = common::client()
        .concurrency(1)
        .deadline(LIMIT)
        .connect(server.local_address());
    let client = within("connecting", connecting).await.unwrap();
    for _ in 0..5 {
        {
            let call = client.call::<_, String>("test/wait", "too late");
            tokio::select! {
                answer = call => panic!("it is not released: {answer:?}"),
                () = within("the call's arrival", arrived.notified()) => {}
            }
        }
        // The answer of the next call comes after the late one.
        release.notify_one();
        assert_echoes(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_given_up_at_any_moment_leave_the_connection_usable() {
    let (_server, client) = pair(Router::new().route("test/echo", echo)).await;
    let text = "x".repeat(20_000);
    for round in 0..200_u64 {
        let text = if round % 2 == 0 { "short" } else { &text };
        let call = client.call::<_, String>("test/echo", text);
        tokio::select! {
            biased;
            answer = call => assert_eq!(answer.unwrap(), text),
            () = yields(round % 7) => {}
        }
    }
    assert_echoes(&client).await;
}

async fn yields(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mebibyte_goes_there_and_comes_back() {
    let router = Router::new()
        .route("test/numbers", async |mut numbers: Vec<u32>| {
            numbers.reverse();
            Ok::<_, ApplicationError>(numbers)
        })
        .raw("test/raw", async |bytes: Payload| {
            Ok::<_, ApplicationError>(bytes)
        });
    let (_server, client) = pair(router).await;
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 255) as u8).collect();
    for _ in 0..3 {
        let answer = within("the answer", client.call_raw("test/raw", &bytes))
            .await
            .unwrap();
        assert!(*answer == *bytes, "the bytes are others");
    }
    let numbers: Vec<u32> = (0..1 << 18).map(|at| u32::MAX - at).collect();
    let mut answer: Vec<u32> = within("the answer", client.call("test/numbers", &numbers))
        .await
        .unwrap();
    answer.reverse();
    assert!(answer == numbers, "the numbers are others");
    // Several calls are outstanding at the same time.
    let calls: Vec<_> = (0..8_u8)
        .map(|fill| {
            let client = client.clone();
            tokio::spawn(async move {
                let bytes = vec![fill; 1 << 20];
                let answer = client.call_raw("test/raw", &bytes).await.unwrap();
                assert!(*answer == *bytes, "the bytes are others");
            })
        })
        .collect();
    for call in calls {
        within("an answer", call).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_refused_by_whoever_it_is_too_large_for() {
    const LEAST: usize = 8192;
    let router = Router::new()
        .route("test/echo", echo)
        .route("test/text", async |len: usize| {
            Ok::<_, ApplicationError>("x".repeat(len))
        });
    let server = listen(Server::new(router).message_limit(LEAST)).await;
    let too_large = |error: Error, expected: &str| match error {
        Error::TooLarge { what, len, .. } => {
            assert_eq!(what, expected);
            assert!(len > LEAST, "{len}");
        }
        other => panic!("a {expected} that is too large: {other:?}"),
    };
    let long = "x".repeat(LEAST);

    // The limit of the server, for a request and for a response.
    let client = connect(&server).await;
    let call = client.call::<_, String>("test/echo", &long);
    too_large(within("the answer", call).await.unwrap_err(), "request");
    let call = client.call::<_, String>("test/text", &LEAST);
    too_large(within("the answer", call).await.unwrap_err(), "response");
    assert_echoes(&client).await;

    // The limit of the client.
    let connecting = common::client()
        .transport(common::transport().message_limit(LEAST))
        .message_limit(LEAST)
        .connect(server.local_address());
    let client = within("connecting", connecting).await.unwrap();
    let call = client.call::<_, String>("test/echo", &long);
    let error = within("the answer", call).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                limit: Some(LEAST),
                ..
            }
        ),
        "{error:?}"
    );
    too_large(error, "request");
    assert_echoes(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_too_large_for_the_client_is_refused() {
    let router = Router::new()
        .route("test/echo", echo)
        .route("test/text", async |len: usize| {
            Ok::<_, ApplicationError>("x".repeat(len))
        });
    let server = listen(Server::new(router)).await;
    let connecting = common::client()
        .transport(common::transport().message_limit(8192))
        .message_limit(8192)
        .connect(server.local_address());
    let client = within("connecting", connecting).await.unwrap();
    let call = client.call::<_, String>("test/text", &100_000_usize);
    let error = within("the answer", call).await.unwrap_err();
    assert!(
        matches!(&error, Error::TooLarge { what: "response", len, .. } if *len > 100_000),
        "{error:?}"
    );
    assert_echoes(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_calls_than_a_connection_runs_wait() {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let router = {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        Router::new().route("test/busy", move |number: u64| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            async move {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                yields(20).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, ApplicationError>(number)
            }
        })
    };
    let server = listen(Server::new(router).concurrency(3)).await;
    let client = connect(&server).await;
    // The calls are also more than the receive queue holds.
    let calls: Vec<_> = (0..200_u64)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let answer: u64 = client.call("test/busy", &number).await.unwrap();
                assert_eq!(answer, number);
            })
        })
        .collect();
    for call in calls {
        within("an answer", call).await.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_above_the_limit_is_refused() {
    let arrived = Arc::new(Notify::new());
    let release = Arc::new(Notify::new());
    let router = {
        let (arrived, release) = (Arc::clone(&arrived), Arc::clone(&release));
        Router::new()
            .route("test/echo", echo)
            .route("test/wait", move |()| {
                let (arrived, release) = (Arc::clone(&arrived), Arc::clone(&release));
                async move {
                    arrived.notify_one();
                    release.notified().await;
                    Ok::<_, ApplicationError>(())
                }
            })
    };
    let server = listen(Server::new(router).load_limit(1)).await;
    let (first, second) = (connect(&server).await, connect(&server).await);
    let waiting = tokio::spawn(async move { first.call::<_, ()>("test/wait", &()).await });
    within("the call's arrival", arrived.notified()).await;
    let error = within("the answer", second.call::<_, String>("test/echo", "?"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Overloaded), "{error:?}");
    release.notify_one();
    within("the other call", waiting).await.unwrap().unwrap();
    assert_echoes(&second).await;
}
