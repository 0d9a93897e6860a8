//! Tests of the client as a tower service under tower's layers.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::held::{Counter, held};
use common::{connect, listen, over_every_transport, within};
use rdma_rpc::{Address, Client, Error, Postcard, Reply, Request, Server, ServerHandle};
use tower::balance::p2c::Balance;
use tower::discover::ServiceList;
use tower::load::{CompleteOnResponse, PendingRequests};
use tower::retry::Policy;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

over_every_transport! {
    a_timeout_cancels_the_call;
    a_concurrency_limit_is_observed;
    a_call_that_was_refused_is_repeated;
    calls_are_balanced_between_clients;
    replies_are_results_and_errors;
}

fn echo(text: &str) -> Request {
    Request::new::<Postcard, _>("Held.echo", &text.to_owned()).unwrap()
}

fn wait() -> Request {
    Request::new::<Postcard, _>("Held.wait", &"held".to_owned()).unwrap()
}

fn text(reply: Reply) -> String {
    reply.decode::<Postcard, String, String>().unwrap()
}

async fn a_timeout_cancels_the_call(address: Address) {
    let (server, holding) = held(address, |server| server).await;
    let service = ServiceBuilder::new()
        .timeout(Duration::from_millis(100))
        .service(connect(&server).await);
    let late = within("the late call", service.clone().oneshot(wait())).await;
    assert!(late.unwrap_err().is::<tower::timeout::error::Elapsed>());
    holding.dropped.reached("the end of the handler", 1).await;
    let patient = ServiceBuilder::new()
        .timeout(common::LIMIT)
        .service(service.into_inner());
    let reply = within("a call", patient.oneshot(echo("hello"))).await;
    assert_eq!(text(reply.unwrap()), "hello");
}

async fn a_concurrency_limit_is_observed(address: Address) {
    let (server, holding) = held(address, |server| server).await;
    let mut service = ServiceBuilder::new()
        .concurrency_limit(2)
        .service(connect(&server).await);
    let mut calls = Vec::new();
    for _ in 0..2 {
        let ready = within("room", service.ready()).await.unwrap();
        calls.push(tokio::spawn(ready.call(wait())));
    }
    holding.arrived.reached("two calls", 2).await;
    let third = tokio::spawn(service.clone().oneshot(wait()));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(holding.arrived.count(), 2);
    holding.release.add_permits(3);
    for call in calls.into_iter().chain([third]) {
        let reply = within("a call", call).await.unwrap();
        assert_eq!(text(reply.unwrap()), "held");
    }
}

/// Retry policy that repeats calls that the server has refused.
#[derive(Clone)]
struct WhileOverloaded(Arc<Counter>);

impl Policy<Request, Reply, Error> for WhileOverloaded {
    type Future = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(
        &mut self,
        _: &mut Request,
        outcome: &mut Result<Reply, Error>,
    ) -> Option<Self::Future> {
        matches!(outcome, Err(Error::Overloaded { .. })).then(|| {
            self.0.add();
            Box::pin(tokio::time::sleep(Duration::from_millis(1))) as Self::Future
        })
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        Some(request.clone())
    }
}

async fn a_call_that_was_refused_is_repeated(address: Address) {
    let (server, holding) = held(address, |server| server.load_limit(1)).await;
    let client = connect(&server).await;
    let running = tokio::spawn(client.clone().oneshot(wait()));
    holding.arrived.reached("the first call", 1).await;
    let refused = Arc::new(Counter::default());
    let service = ServiceBuilder::new()
        .retry(WhileOverloaded(Arc::clone(&refused)))
        .service(client);
    let repeated = tokio::spawn(service.oneshot(echo("again")));
    refused.reached("refusals", 3).await;
    holding.release.add_permits(1);
    within("the first call", running).await.unwrap().unwrap();
    let reply = within("the repeated call", repeated).await.unwrap();
    assert_eq!(text(reply.unwrap()), "again");
}

#[rdma_rpc::service]
trait Counted {
    async fn count(&self) -> Result<(), ()>;
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Counted for Counting {
    async fn count(&self) -> Result<(), ()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

async fn counting(address: Address) -> (ServerHandle, Arc<Counting>, Client) {
    let counting = Arc::new(Counting::default());
    let server = Server::new(CountedServer::shared(Arc::clone(&counting)));
    let server = listen(server, address).await;
    let client = connect(&server).await;
    (server, counting, client)
}

async fn calls_are_balanced_between_clients(address: Address) {
    let another = match address.to_string().as_str() {
        "memory" => Address::memory(),
        text => text.parse().unwrap(),
    };
    let (first, one, first_client) = counting(address).await;
    let (_second, two, second_client) = counting(another).await;
    let clients = [first_client, second_client]
        .map(|client| PendingRequests::new(client, CompleteOnResponse::default()));
    let mut balance = Balance::new(ServiceList::new::<Request>(clients));
    let count = || Request::new::<Postcard, _>("Counted.count", &()).unwrap();
    let mut call =
        async || -> Result<Reply, BoxError> { balance.ready().await?.call(count()).await };
    for _ in 0..40 {
        within("a call", call()).await.unwrap();
    }
    let [a, b] = [&one, &two].map(|counting| counting.0.load(Ordering::Relaxed));
    assert!(a > 0 && b > 0 && a + b == 40, "{a} and {b}");
    // A client whose connection has ended is removed.
    within("the end of a server", first.shutdown()).await;
    let mut answered = 0;
    within("calls", async {
        while answered < 20 {
            // The call during which the connection ends may fail.
            answered += usize::from(call().await.is_ok());
        }
    })
    .await;
    assert_eq!(two.0.load(Ordering::Relaxed), b + 20);
}

async fn replies_are_results_and_errors(address: Address) {
    let (_server, client) = common::pair(address).await;
    let client = client.client();
    let find = Request::new::<Postcard, _>("Everything.find", &"k".to_owned()).unwrap();
    let reply = within("a call", client.request(&find)).await.unwrap();
    assert!(reply.is_error());
    let error = reply
        .decode::<Postcard, u32, common::Refusal>()
        .unwrap_err();
    let expected = common::Refusal::NotFound {
        key: "k".to_owned(),
    };
    assert_eq!(error.service(), Some(expected));
    let missing = Request::encoded("Everything.missing", 1, &[]);
    let error = within("a call", client.request(&missing))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server has no method Everything.missing"
    );
    let raw = Request::encoded("Everything.reverse", 0, &[1; 5000]);
    let reply = within("a call", client.request(&raw)).await.unwrap();
    assert_eq!((reply.codec(), reply.into_body().len()), (0, 5000));
    let late = find.with_deadline(Duration::ZERO);
    let error = within("a call", client.request(&late)).await.unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
}
