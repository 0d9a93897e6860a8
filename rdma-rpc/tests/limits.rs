//! Tests of deadlines, cancellation, panics, size limits and load limits over every transport.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::{Duration, Instant};

use common::held::{HeldClient, assert_answers, held, held_pair};
use common::{LIMIT, another, assert_echoes, client, connect, over_every_transport, pair, within};
use rdma_rpc::{Address, CallError, Context, Error, Metadata, Server};

over_every_transport! {
    a_deadline_ends_the_call_and_its_handler;
    the_longest_and_the_shortest_deadline_are_accepted;
    dropping_a_call_drops_its_handler;
    a_late_answer_is_ignored;
    calls_dropped_at_any_time_leave_the_connection_usable;
    many_cancellations_leave_no_handler_running;
    a_panic_fails_only_its_call;
    a_panic_of_a_codec_fails_only_its_call;
    a_handler_gets_the_deadline_the_peer_and_the_metadata;
    a_task_can_wait_for_the_end_of_a_call;
    the_waker_of_a_dropped_wait_is_released;
    requests_and_responses_above_the_limit_are_refused;
    calls_above_the_concurrency_wait;
    the_time_that_a_call_waits_for_a_slot_counts_towards_its_deadline;
    a_call_that_gets_a_slot_after_its_deadline_frees_the_slot;
    concurrent_first_calls_all_get_a_slot;
    load_above_the_limit_is_refused;
    a_method_can_have_a_separate_limit;
    a_handler_that_blocks_delays_calls_but_loses_none;
}

fn rpc<T, E: std::fmt::Debug>(outcome: Result<T, CallError<E>>) -> Error {
    match outcome {
        Err(CallError::Rpc(error)) => error,
        Err(other) => panic!("an error of the framework: {other:?}"),
        Ok(_) => panic!("an error"),
    }
}

async fn a_deadline_ends_the_call_and_its_handler(address: Address) {
    let (_server, client, holding) = held_pair(address).await;
    let short = client.with_deadline(Duration::from_millis(100));
    // On a loaded machine, a deadline may pass before the call reaches the server.
    let begun = Instant::now();
    while holding.arrived.count() < 3 {
        assert!(begun.elapsed() < LIMIT, "the calls do not arrive");
        let error = rpc(within("the deadline", short.wait("never".to_owned())).await);
        assert!(
            matches!(&error, Error::DeadlineExceeded { method, .. } if method == "Held.wait"),
            "{error:?}"
        );
        assert_answers(&client).await;
    }
    holding.dropped.reached("the end of the handlers", 3).await;
    assert!(client.client().failure().is_none());
}

async fn the_longest_and_the_shortest_deadline_are_accepted(address: Address) {
    let (_server, client, _) = held_pair(address).await;
    for far in [Duration::MAX, Duration::from_micros(u64::MAX)] {
        assert_answers(&client.with_deadline(far)).await;
    }
    let near = client.with_deadline(Duration::ZERO);
    let error = rpc(within("the deadline", near.echo("?".to_owned())).await);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
    assert_answers(&client).await;
}

async fn dropping_a_call_drops_its_handler(address: Address) {
    let (_server, client, holding) = held_pair(address).await;
    for round in 1..=10 {
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.wait("never".to_owned()).await }
        });
        holding.arrived.reached("the call's arrival", round).await;
        call.abort();
        holding
            .dropped
            .reached("the end of the handler", round)
            .await;
    }
    assert_answers(&client).await;
}

async fn a_late_answer_is_ignored(address: Address) {
    let (server, holding) = held(address, |server| server).await;
    // With a single slot, a late answer arrives when another call uses the slot.
    let connecting = client().concurrency(1).connect(server.address());
    let client = HeldClient::new(within("connecting", connecting).await.unwrap());
    for round in 1..=5 {
        {
            let call = client.wait("too late".to_owned());
            tokio::select! {
                answer = call => panic!("it is not released: {answer:?}"),
                () = holding.arrived.reached("the call's arrival", round) => {}
            }
        }
        // The handler may return before its cancellation.
        holding.release.add_permits(1);
        assert_answers(&client).await;
        holding.release.forget_permits(1);
    }
}

async fn yields(times: u64) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

async fn calls_dropped_at_any_time_leave_the_connection_usable(address: Address) {
    let (_server, client) = pair(address).await;
    let text = "x".repeat(20_000);
    for round in 0..200_u64 {
        let text = if round % 2 == 0 { "short" } else { &text };
        let call = client.echo(text.to_owned());
        tokio::select! {
            biased;
            answer = call => assert_eq!(answer.unwrap(), text),
            () = yields(round % 7) => {}
        }
    }
    assert_echoes(&client).await;
}

/// Cancels as many calls as possible in a few seconds; the environment variable `STORM` sets
/// another number.
async fn many_cancellations_leave_no_handler_running(address: Address) {
    let calls = std::env::var("STORM")
        .ok()
        .and_then(|calls| calls.parse().ok());
    let calls: usize = calls.unwrap_or(5_000);
    let (_server, client, holding) = held_pair(address).await;
    let callers: Vec<_> = (0..8_u64)
        .map(|caller| {
            let client = client.clone();
            tokio::spawn(async move {
                for round in 0..calls as u64 / 8 {
                    let call = client.wait("never".to_owned());
                    tokio::select! {
                        biased;
                        answer = call => panic!("it is not released: {answer:?}"),
                        () = yields((round + caller) % 3) => {}
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        within("a caller's calls", caller).await.unwrap();
    }
    assert_answers(&client).await;
    // Calls that were cancelled before they arrived were not started.
    holding
        .dropped
        .reached("the end of the handlers", holding.arrived.count())
        .await;
    assert_eq!(holding.dropped.count(), holding.arrived.count());
}

async fn a_panic_fails_only_its_call(address: Address) {
    let (_server, client, holding) = held_pair(address).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.wait("done".to_owned()).await }
    });
    holding.arrived.reached("the call's arrival", 1).await;
    for late in [false, true, false] {
        let error = rpc(within("the answer", client.panic(late)).await);
        assert!(matches!(error, Error::Panicked), "{error:?}");
        assert_answers(&client).await;
    }
    holding.release.add_permits(1);
    let waited = within("the other call", waiting).await.unwrap();
    assert_eq!(waited.unwrap(), "done");
}

/// A value whose encoding or decoding panics.
#[derive(Debug)]
struct Explosive {
    at_decoding: bool,
}

impl serde::Serialize for Explosive {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(self.at_decoding, "asked to");
        serializer.serialize_unit()
    }
}

impl<'de> serde::Deserialize<'de> for Explosive {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("asked to")
    }
}

#[rdma_rpc::service]
trait Explosives {
    async fn fine(&self, late: bool) -> Result<bool, ()>;
    async fn take(&self, value: Explosive) -> Result<(), ()>;
    async fn give(&self, late: bool) -> Result<Explosive, ()>;
}

struct Store;

impl Explosives for Store {
    async fn fine(&self, late: bool) -> Result<bool, ()> {
        Ok(late)
    }

    async fn take(&self, _: Explosive) -> Result<(), ()> {
        Ok(())
    }

    async fn give(&self, late: bool) -> Result<Explosive, ()> {
        if late {
            tokio::task::yield_now().await;
        }
        Ok(Explosive { at_decoding: false })
    }
}

async fn a_panic_of_a_codec_fails_only_its_call(address: Address) {
    let server = common::listen(Server::new(ExplosivesServer::new(Store)), address).await;
    let client = ExplosivesClient::new(connect(&server).await);
    for late in [false, true, false] {
        let error = rpc(within("the answer", client.give(late)).await);
        assert!(matches!(error, Error::Panicked), "{error:?}");
        let value = Explosive { at_decoding: true };
        let error = rpc(within("the answer", client.take(value)).await);
        assert!(matches!(error, Error::BadRequest { .. }), "{error:?}");
        let fine = within("the answer", client.fine(late)).await;
        assert_eq!(fine.unwrap(), late);
    }
}

async fn a_handler_gets_the_deadline_the_peer_and_the_metadata(address: Address) {
    let (_server, client, _) = held_pair(address).await;
    let tenant = Metadata::default()
        .with("other", [0xff])
        .with("tenant", "blue");
    let client = client.with_metadata(tenant);
    let (left, peer, tenant) = within("the answer", client.context()).await.unwrap();
    let limit = u64::try_from(client.client().deadline().as_millis()).unwrap();
    assert!(left.unwrap() <= limit, "{left:?}");
    assert!(peer == "memory" || peer.contains("://127.0.0.1:"), "{peer}");
    assert_eq!(tenant, "blue");
    let far = client.with_deadline(Duration::from_secs(100_000));
    let (left, ..) = within("the answer", far.context()).await.unwrap();
    assert_eq!(left, None);
}

async fn a_task_can_wait_for_the_end_of_a_call(address: Address) {
    let (_server, client, holding) = held_pair(address).await;
    for round in 1..=3 {
        {
            let call = client.watched();
            tokio::select! {
                answer = call => panic!("it does not return: {answer:?}"),
                () = holding.arrived.reached("the call's arrival", round) => {}
            }
        }
        holding.ended.reached("the end of the call", round).await;
    }
}

#[rdma_rpc::service]
trait Watching {
    /// Waits briefly for the end of the call, and then drops the future. Returns the number of
    /// remaining references to its waker.
    async fn briefly(&self, cx: &Context) -> Result<u64, ()>;
}

struct Watcher;

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

impl Watching for Watcher {
    async fn briefly(&self, cx: &Context) -> Result<u64, ()> {
        let waker = Arc::new(Nobody);
        {
            let ended = std::pin::pin!(cx.cancelled());
            let waker = Waker::from(Arc::clone(&waker));
            assert!(
                ended
                    .poll(&mut TaskContext::from_waker(&waker))
                    .is_pending()
            );
        }
        Ok(Arc::strong_count(&waker) as u64)
    }
}

async fn the_waker_of_a_dropped_wait_is_released(address: Address) {
    let server = common::listen(Server::new(WatchingServer::new(Watcher)), address).await;
    let client = WatchingClient::new(connect(&server).await);
    let count = within("the answer", client.briefly()).await.unwrap();
    assert_eq!(count, 1);
}

/// Checks requests that are within the limit of the settings but exceed the limit of the server's
/// transport.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_the_server_refuses_to_receive_are_too_large() {
    let listener = common::transport().message_limit(8 << 10);
    let listener = within("listening", listener.bind("127.0.0.1:0")).await;
    let service = common::EverythingServer::new(common::Computing::default());
    let server = Server::new(service).serve(listener.unwrap()).unwrap();
    let client = common::EverythingClient::new(connect(&server).await);
    let text = "x".repeat(20_000);
    let error = within("a one-way call", client.note(text.clone())).await;
    let error = error.unwrap_err();
    let is_right = |error| matches!(error, Error::TooLarge { len, .. } if len > 20_000);
    assert!(is_right(error.clone()), "{error:?}");
    let error = rpc(within("a call", client.echo(text)).await);
    assert!(is_right(error.clone()), "{error:?}");
    assert_echoes(&client).await;
}

async fn requests_and_responses_above_the_limit_are_refused(address: Address) {
    const LEAST: usize = 8 << 10;
    let service = || common::EverythingServer::new(common::Computing::default());
    let limited = Server::new(service()).message_limit(LEAST);
    let limited = common::listen(limited, another(&address)).await;
    let unlimited = common::listen(Server::new(service()), address).await;
    let connecting = client().message_limit(LEAST).connect(unlimited.address());
    let clients = [
        connect(&limited).await,
        within("connecting", connecting).await.unwrap(),
    ];
    for client in clients.map(common::EverythingClient::new) {
        for outcome in [
            within("the answer", client.echo("x".repeat(LEAST))).await,
            within("the answer", client.text(LEAST as u64)).await,
        ] {
            let error = rpc(outcome);
            assert!(
                matches!(error, Error::TooLarge { len, limit: LEAST } if len > LEAST),
                "{error:?}"
            );
            assert_echoes(&client).await;
        }
        let text = within("the answer", client.text(5000)).await.unwrap();
        assert_eq!(text.len(), 5000);
    }
}

async fn calls_above_the_concurrency_wait(address: Address) {
    let (server, holding) = held(address, |server| server.concurrency(3)).await;
    let client = HeldClient::new(connect(&server).await);
    // The number of calls also exceeds the receive queue.
    let calls: Vec<_> = (0..200_u64)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { assert_eq!(client.busy(number).await.unwrap(), number) })
        })
        .collect();
    for call in calls {
        within("an answer", call).await.unwrap();
    }
    assert!(holding.most.load(Ordering::SeqCst) <= 3);
    // The deadline also applies while a call waits.
    for _ in 0..3 {
        let client = client.clone();
        tokio::spawn(async move { client.wait("never".to_owned()).await });
    }
    holding.arrived.reached("the calls' arrival", 3).await;
    let short = client.with_deadline(Duration::from_millis(20));
    let error = rpc(within("the deadline", short.echo("?".to_owned())).await);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
    holding.release.add_permits(3);
    assert_answers(&client).await;
}

async fn the_time_that_a_call_waits_for_a_slot_counts_towards_its_deadline(address: Address) {
    const LIMIT: Duration = Duration::from_secs(20);
    const WAIT: Duration = Duration::from_millis(300);
    let (server, holding) = held(address, |server| server.concurrency(1)).await;
    let client = HeldClient::new(connect(&server).await).with_deadline(LIMIT);
    let running = {
        let client = client.clone();
        tokio::spawn(async move { client.wait("first".to_owned()).await })
    };
    holding.arrived.reached("the call's arrival", 1).await;
    let waiting = tokio::spawn(async move { client.context().await });
    // Long enough that the second call waits for the slot of the first call.
    tokio::time::sleep(2 * WAIT).await;
    holding.release.add_permits(1);
    within("the first call", running).await.unwrap().unwrap();
    let (left, ..) = within("the second call", waiting).await.unwrap().unwrap();
    let left = Duration::from_millis(left.unwrap());
    assert!(left <= LIMIT - WAIT, "{left:?} are left");
}

async fn a_call_that_gets_a_slot_after_its_deadline_frees_the_slot(address: Address) {
    const SHORT: Duration = Duration::from_millis(100);
    let (server, holding) = held(address, |server| server.concurrency(1)).await;
    let client = HeldClient::new(connect(&server).await);
    let running = {
        let client = client.clone();
        tokio::spawn(async move { client.wait("first".to_owned()).await })
    };
    holding.arrived.reached("the call's arrival", 1).await;
    let late = client.with_deadline(SHORT);
    let mut waiting = pin!(late.echo("late".to_owned()));
    let mut cx = TaskContext::from_waker(Waker::noop());
    assert!(
        waiting.as_mut().poll(&mut cx).is_pending(),
        "no slot is free"
    );
    holding.release.add_permits(1);
    within("the first call", running).await.unwrap().unwrap();
    tokio::time::sleep(2 * SHORT).await;
    let error = rpc(within("the end of the call", waiting).await);
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error:?}");
    assert_answers(&client).await;
}

/// The calls begin while the connection learns how many calls the server accepts. No call ends, so
/// only that can give a slot to a call that waits.
async fn concurrent_first_calls_all_get_a_slot(address: Address) {
    const CALLS: usize = 8;
    let (server, holding) = held(address, |server| server).await;
    for round in 1..=40 {
        let client = HeldClient::new(connect(&server).await);
        let calls = [(); CALLS].map(|()| {
            let client = client.clone();
            tokio::spawn(async move { client.wait("never".to_owned()).await })
        });
        let expected = round * CALLS;
        holding.arrived.reached("the first calls", expected).await;
        calls.iter().for_each(|call| call.abort());
    }
}

async fn load_above_the_limit_is_refused(address: Address) {
    let (server, holding) = held(address, |server| server.load_limit(1)).await;
    let [first, second] = [connect(&server).await, connect(&server).await].map(HeldClient::new);
    let waiting = tokio::spawn(async move { first.wait("done".to_owned()).await });
    holding.arrived.reached("the call's arrival", 1).await;
    let error = rpc(within("the answer", second.echo("?".to_owned())).await);
    assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
    holding.release.add_permits(1);
    within("the other call", waiting).await.unwrap().unwrap();
    // The permit is released shortly after the response was sent.
    let admitted = async {
        while second.echo("?".to_owned()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    within("a call after the others", admitted).await;
}

async fn a_method_can_have_a_separate_limit(address: Address) {
    let (server, holding) = held(address, |server| server.method_limit("Held.wait", 2)).await;
    let client = Arc::new(HeldClient::new(connect(&server).await));
    let waiting = [(); 2].map(|()| {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.wait("done".to_owned()).await })
    });
    holding.arrived.reached("the calls' arrival", 2).await;
    let error = rpc(within("the answer", client.wait("third".to_owned())).await);
    assert!(matches!(error, Error::Overloaded { .. }), "{error:?}");
    assert_answers(&client).await;
    holding.release.add_permits(2);
    for waiting in waiting {
        within("a call", waiting).await.unwrap().unwrap();
    }
}

async fn a_handler_that_blocks_delays_calls_but_loses_none(address: Address) {
    let (_server, client, holding) = held_pair(address).await;
    for _ in 0..3 {
        within("sending", client.block()).await.unwrap();
    }
    assert_answers(&client).await;
    holding.arrived.reached("the one-way calls", 3).await;
}
