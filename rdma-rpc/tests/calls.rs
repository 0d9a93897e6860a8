//! Calls and their results, on a device.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{assert_echoes, connect, echo, pair, serve, within};
use rdma_rpc::{ApplicationError, Client, Context, Error, Payload, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Notify, oneshot};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    item: String,
    count: u32,
    note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Receipt {
    Accepted { total: u64 },
    Later(Vec<u16>),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_go_there_and_come_back() {
    let router = Router::new()
        .route("test/echo", echo)
        .route("shop/order", async |order: Order| {
            Ok::<_, ApplicationError>(match order.note {
                Some(_) => Receipt::Later(vec![1, 2, 3]),
                None => Receipt::Accepted {
                    total: u64::from(order.count) * order.item.len() as u64,
                },
            })
        })
        .route("test/unit", async |()| Ok::<(), ApplicationError>(()));
    let (_server, client) = pair(router).await;
    assert_echoes(&client).await;
    let mut order = Order {
        item: "anvil".to_owned(),
        count: 3,
        note: None,
    };
    let receipt: Receipt = within("an order", client.call("shop/order", &order))
        .await
        .unwrap();
    assert_eq!(receipt, Receipt::Accepted { total: 15 });
    order.note = Some("no hurry".to_owned());
    let receipt: Receipt = within("an order", client.call("shop/order", &order))
        .await
        .unwrap();
    assert_eq!(receipt, Receipt::Later(vec![1, 2, 3]));
    within("nothing", client.call::<_, ()>("test/unit", &()))
        .await
        .unwrap();
}

#[tokio::test]
async fn one_thread_is_enough() {
    let (_server, client) = pair(Router::new().route("test/echo", echo)).await;
    for _ in 0..20 {
        assert_echoes(&client).await;
    }
}

/// Numbers whose handlers wait for permission to answer.
type Waiting = Arc<Mutex<Vec<(u64, oneshot::Sender<()>)>>>;

/// Checks answers in another order than that of the calls: all handlers wait until all have been
/// called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_get_their_own_answers() {
    const CALLS: u64 = 64;
    let waiting = Waiting::default();
    let arrived = Arc::new(Notify::new());
    let router = {
        let (waiting, arrived) = (Arc::clone(&waiting), Arc::clone(&arrived));
        Router::new().route("test/square", move |number: u64| {
            let (waiting, arrived) = (Arc::clone(&waiting), Arc::clone(&arrived));
            async move {
                let (turn, my_turn) = oneshot::channel();
                waiting.lock().await.push((number, turn));
                arrived.notify_one();
                my_turn.await.expect("everybody's turn comes");
                Ok::<_, ApplicationError>(number * number)
            }
        })
    };
    let (_server, client) = pair(router).await;
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let square: u64 = client.call("test/square", &number).await.unwrap();
                assert_eq!(square, number * number);
            })
        })
        .collect();
    within("the calls' arrival", async {
        while waiting.lock().await.len() < CALLS as usize {
            arrived.notified().await;
        }
    })
    .await;
    let mut waiting = std::mem::take(&mut *waiting.lock().await);
    // This order is neither that of the calls nor its reverse.
    waiting.sort_by_key(|&(number, _)| number * 37 % CALLS);
    for (_, turn) in waiting {
        turn.send(()).unwrap();
        tokio::task::yield_now().await;
    }
    for call in calls {
        within("an answer", call).await.unwrap();
    }
}

#[derive(Debug)]
enum StoreError {
    NotFound { key: String },
}

impl From<StoreError> for ApplicationError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound { key } => Self::new(404, "no such key").with_details(&key),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handlers_error_reaches_its_caller() {
    let router = Router::new()
        .route("test/echo", echo)
        .route("store/get", async |key: String| {
            Err::<String, _>(StoreError::NotFound { key })
        });
    let (_server, client) = pair(router).await;
    let error = within(
        "the answer",
        client.call::<_, String>("store/get", "colour"),
    )
    .await
    .unwrap_err();
    let Error::Application(error) = error else {
        panic!("the handler's error: {error}");
    };
    assert_eq!(error.code(), 404);
    assert_eq!(error.message(), "no such key");
    assert_eq!(error.details::<String>().unwrap(), "colour");
    assert_echoes(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handlers_panic_is_its_callers_error_and_nothing_else() {
    let (release, released) = oneshot::channel::<()>();
    let released = Mutex::new(Some(released));
    let released = Arc::new(released);
    let router = Router::new()
        .route("test/echo", echo)
        .route(
            "test/panic",
            async |text: String| -> Result<(), ApplicationError> {
                panic!("asked to, with {text}")
            },
        )
        .route(
            "test/panic_at_once",
            |_: ()| -> std::future::Ready<Result<(), ApplicationError>> { panic!("asked to") },
        )
        .route("test/wait", move |()| {
            let released = Arc::clone(&released);
            async move {
                let released = released.lock().await.take().expect("it is called once");
                released.await.expect("it is released");
                Ok::<_, ApplicationError>("done".to_owned())
            }
        });
    let (_server, client) = pair(router).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.call::<_, String>("test/wait", &()).await }
    });
    for _ in 0..3 {
        let error = within("the answer", client.call::<_, ()>("test/panic", "pleasure"))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Panicked), "{error:?}");
    }
    let error = within(
        "the answer",
        client.call::<_, ()>("test/panic_at_once", &()),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, Error::Panicked), "{error:?}");
    assert_echoes(&client).await;
    release.send(()).unwrap();
    let waited = within("the other call", waiting).await.unwrap();
    assert_eq!(waited.unwrap(), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_two_ends_disagree_about_is_told() {
    let router = Router::new()
        .route("test/echo", echo)
        .raw("test/raw", async |bytes: Payload| {
            Ok::<_, ApplicationError>(bytes)
        });
    let (_server, client) = pair(router).await;

    let error = within("the answer", client.call::<_, ()>("test/missing", &()))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::UnknownMethod { method } if method == "test/missing"),
        "{error:?}"
    );
    let too_long = "m".repeat(100_000);
    let error = within("the answer", client.call::<_, ()>(&too_long, &()))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::UnknownMethod { .. }), "{error:?}");

    // The answer is not a valid string: its length prefix is larger than its length.
    let error = within("the answer", client.call::<_, String>("test/echo", &200_u8))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::BadRequest { .. }), "{error:?}");
    let error = within(
        "the answer",
        client.call::<_, Vec<String>>("test/echo", "text"),
    )
    .await
    .unwrap_err();
    assert!(matches!(error, Error::Decode(_)), "{error:?}");

    let error = within("the answer", client.call_raw("test/echo", b"raw"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::BadRequest { .. }), "{error:?}");
    let error = within("the answer", client.call::<_, String>("test/raw", "text"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::BadRequest { .. }), "{error:?}");

    assert_echoes(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_need_no_codec() {
    let router = Router::new().raw("test/reverse", async |bytes: Payload| {
        Ok::<_, ApplicationError>(bytes.iter().rev().copied().collect::<Vec<u8>>())
    });
    let (_server, client) = pair(router).await;
    for len in [0, 1, 5000, 100_000] {
        let bytes: Vec<u8> = (0..len).map(|at: u32| at as u8).collect();
        let mut answer = within("the answer", client.call_raw("test/reverse", &bytes))
            .await
            .unwrap()
            .to_vec();
        answer.reverse();
        assert_eq!(answer, bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_knows_who_waits_and_how_long() {
    let router = Router::new().route_with_context("test/context", async |context: Context, ()| {
        let remaining = context.remaining().expect("every call has a deadline");
        Ok::<_, ApplicationError>((context.peer_address(), remaining))
    });
    let (_server, client) = pair(router).await;
    let (peer, remaining): (std::net::SocketAddr, std::time::Duration) =
        within("the answer", client.call("test/context", &()))
            .await
            .unwrap();
    assert!(peer.ip().is_loopback());
    assert!(remaining <= client.deadline(), "{remaining:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_has_many_clients() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let router = Router::new().route("test/count", move |number: usize| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<_, ApplicationError>(number) }
    });
    let server = serve(router).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(&server).await);
    }
    let tasks: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(index, client): (usize, Client)| {
            tokio::spawn(async move {
                for round in 0..25 {
                    let number = index * 1000 + round;
                    let answer: usize = client.call("test/count", &number).await.unwrap();
                    assert_eq!(answer, number);
                }
            })
        })
        .collect();
    for task in tasks {
        within("a client's calls", task).await.unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 100);
}
