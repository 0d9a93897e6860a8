//! Checks many requests, some of which are cancelled: the other answers are correct, and no
//! resource is leaked.

#[path = "../../tests/common/held.rs"]
mod held;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rdma_async::{RdmaConnector, RdmaDevice};
use rdma_async_interop::data;
use rdma_async_interop::echo::{EchoClient, EchoServer, Item, Service};
use rdma_async_interop::{builder, in_time, run_within};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Endpoint, Server};

const CONNECTIONS: usize = 100;
const REQUESTS: usize = 100;
/// Number of concurrent requests of one connection, if the protocol permits several.
const CONCURRENT: usize = 10;

const LIMIT: Duration = Duration::from_secs(540);

/// Returns the context of the device under test.
fn context() -> rdma_core::Context {
    let context = match std::env::var_os("RDMA_DEVICE") {
        Some(_) => rdma_core::Context::open_default(),
        None => rdma_core::Context::open("softroce0"),
    };
    context.expect("a device")
}

fn device() -> RdmaDevice {
    let device = match std::env::var_os("RDMA_DEVICE") {
        Some(_) => RdmaDevice::open_default(),
        None => RdmaDevice::open("softroce0"),
    };
    device.expect("a device")
}

/// Generator of pseudo-random numbers, equal in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// Returns a random time limit for one of `share` requests on average, or else `None`.
    fn time_limit(&mut self, share: u64) -> Option<Duration> {
        let is_cancelled = self.below(share) == 0;
        let limit = [100, 1000, 20_000][self.below(3) as usize];
        is_cancelled.then(|| Duration::from_micros(self.below(limit)))
    }

    fn len(&mut self) -> usize {
        let limit = [10, 1000, 60_000][self.below(3) as usize];
        self.below(limit) as usize
    }
}

/// Numbers of answered and of cancelled requests.
#[derive(Default)]
struct Ends {
    answered: AtomicUsize,
    cancelled: AtomicUsize,
}

impl Ends {
    /// Awaits a request for at most `time_limit`, and counts it as answered or cancelled.
    async fn record(&self, time_limit: Option<Duration>, request: impl Future<Output = ()>) {
        let is_answered = match time_limit {
            Some(time_limit) => timeout(time_limit, request).await.is_ok(),
            None => {
                in_time("an answer", request).await;
                true
            }
        };
        let end = if is_answered {
            &self.answered
        } else {
            &self.cancelled
        };
        end.fetch_add(1, Ordering::Relaxed);
    }

    fn check(&self, all: usize) {
        let answered = self.answered.load(Ordering::Relaxed);
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        assert_eq!(answered + cancelled, all);
        assert!(answered > all / 2, "{answered} of {all} answered");
        let has_enough = cancelled > all / 100 || all < CONNECTIONS * REQUESTS;
        assert!(has_enough, "{cancelled} of {all} cancelled");
    }
}

/// Runs `requests` concurrently for a number of connections, each with a connector, the URI of the
/// server, and a seed.
async fn connections<F: Future<Output = ()> + Send + 'static>(
    count: usize,
    address: SocketAddr,
    requests: impl Fn(RdmaConnector, String, u64) -> F,
) {
    let connector = RdmaConnector::new(builder().on(&device()));
    let mut tasks = JoinSet::new();
    for seed in 1..=count as u64 {
        tasks.spawn(requests(
            connector.clone(),
            format!("http://{address}"),
            seed,
        ));
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("right answers");
    }
}

async fn grpc_requests(connector: RdmaConnector, uri: String, seed: u64, ends: Arc<Ends>) {
    let endpoint = Endpoint::from_shared(uri).unwrap();
    let connecting = endpoint.connect_with_connector(connector);
    let client = EchoClient::new(in_time("a channel", connecting).await.unwrap());
    let tasks = (0..CONCURRENT as u64).map(|task| {
        let mut client = client.clone();
        let ends = &ends;
        let mut numbers = Numbers::new(seed * 100 + task);
        async move {
            for number in 0..(REQUESTS / CONCURRENT) as u64 {
                let item = Item {
                    number,
                    text: format!("{seed} {task}"),
                    payload: data::bytes(numbers.len()),
                };
                let request = async {
                    let said = client.say(item.clone()).await.unwrap();
                    assert!(said.into_inner() == item, "item {number} of {}", item.text);
                };
                ends.record(numbers.time_limit(3), request).await;
            }
        }
    });
    join_all(tasks).await;
}

async fn grpc_round(count: usize) {
    let listener = builder().on(&device()).bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    let server = Server::builder().add_service(EchoServer::new(Service));
    let (shutdown, signal) = oneshot::channel();
    let serving = server.serve_with_incoming_shutdown(listener.incoming(), async {
        drop(signal.await);
    });
    let serving = tokio::spawn(serving);
    let ends = Arc::new(Ends::default());
    connections(count, address, |connector, uri, seed| {
        grpc_requests(connector, uri, seed, Arc::clone(&ends))
    })
    .await;
    ends.check(count * REQUESTS);
    shutdown.send(()).unwrap();
    in_time("the server's end", serving).await.unwrap().unwrap();
}

async fn http1_requests(connector: RdmaConnector, uri: String, seed: u64, ends: Arc<Ends>) {
    let mut builder = Client::builder(TokioExecutor::new());
    let client: Client<_, Full<Bytes>> = builder.pool_max_idle_per_host(1).build(connector);
    let mut numbers = Numbers::new(seed);
    for number in 0..REQUESTS {
        let body = data::bytes(numbers.len());
        let path = format!("/{seed}/{number}");
        let request = Request::post(format!("{uri}{path}")).body(Full::new(body.clone()));
        let request = async {
            let response = client.request(request.unwrap()).await.unwrap();
            assert_eq!(response.headers()["x-path"], *path);
            let found = response.into_body().collect().await.unwrap().to_bytes();
            assert!(found == body, "{path}");
        };
        // The client closes the connection of a cancelled request, and connects again.
        ends.record(numbers.time_limit(10), request).await;
    }
}

async fn echo(request: Request<Incoming>) -> Result<Response<Incoming>, Infallible> {
    let path = request.uri().path().parse();
    let mut response = Response::new(request.into_body());
    let path = path.expect("a path is a value of a header");
    response.headers_mut().insert("x-path", path);
    Ok(response)
}

async fn http1_round(count: usize) {
    let listener = builder().on(&device()).bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    let (shutdown, signal) = oneshot::channel();
    let serving = tokio::spawn(async move {
        let mut incoming = listener.incoming().take_until(signal);
        let mut served = JoinSet::new();
        while let Some(stream) = incoming.next().await {
            let stream = TokioIo::new(stream.unwrap());
            let connection = http1::Builder::new().serve_connection(stream, service_fn(echo));
            // Returns an error if the client disconnects during a request.
            served.spawn(connection);
        }
        served.join_all().await;
    });
    let ends = Arc::new(Ends::default());
    connections(count, address, |connector, uri, seed| {
        http1_requests(connector, uri, seed, Arc::clone(&ends))
    })
    .await;
    ends.check(count * REQUESTS);
    shutdown.send(()).unwrap();
    in_time("the server's end", serving).await.unwrap();
}

/// Checks that a round leaks no resource. An earlier small round creates the resources that are
/// created only once in a process.
async fn leaks_nothing(round: impl AsyncFn(usize)) {
    // The tests run one at a time, because they count the objects of the whole process.
    static TURN: Mutex<()> = Mutex::const_new(());
    let _turn = TURN.lock().await;
    round(2).await;
    sleep(Duration::from_secs(1)).await;
    let mut before = held::held();
    round(CONNECTIONS).await;
    held::settle(&mut before, "cancelled requests").await;
}

#[test]
fn ten_thousand_grpc_calls_with_cancellations_are_correct_and_leak_nothing() {
    run_within(LIMIT, leaks_nothing(grpc_round));
}

#[test]
fn ten_thousand_http1_requests_with_cancellations_are_correct_and_leak_nothing() {
    run_within(LIMIT, leaks_nothing(http1_round));
}
