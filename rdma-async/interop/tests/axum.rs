//! Checks `axum::serve` with a listener of rdma-async, and clients of hyper-util with its
//! connector.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode, Version};
use axum::routing::{get, post, put};
use axum::serve::{IncomingStream, Listener};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rdma_async::RdmaListener;
use rdma_async_interop::data::{self, Check};
use rdma_async_interop::{Rdma, Transport, in_time, over_each_transport, run};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

over_each_transport!(
    json_is_received_and_returned,
    a_large_upload_is_streamed_to_the_handler,
    a_large_download_is_streamed_from_the_handler,
    one_router_serves_http2_too,
    a_graceful_shutdown_answers_the_running_request_and_refuses_later_ones,
);

const LARGE: usize = 64 << 20;

#[derive(Serialize, Deserialize)]
struct Numbers {
    name: String,
    numbers: Vec<u64>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Sum {
    name: String,
    sum: u64,
}

/// Notifications between a test and the handler of the path `/slow`.
#[derive(Clone, Default)]
struct Slow {
    has_begun: Arc<Notify>,
    may_end: Arc<Notify>,
}

/// Address of the peer.
#[derive(Clone)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, RdmaListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, RdmaListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

async fn sum(Json(Numbers { name, numbers }): Json<Numbers>) -> Json<Sum> {
    let sum = numbers.iter().sum();
    Json(Sum { name, sum })
}

async fn upload(request: Request) -> Result<String, StatusCode> {
    let mut body = request.into_body();
    let mut check = Check::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| StatusCode::BAD_REQUEST)?;
        check.take(frame.data_ref().expect("data"));
    }
    Ok(check.len().to_string())
}

async fn download(Path(len): Path<usize>) -> Body {
    let chunks = data::chunks(len, 100_000).map(Ok::<Bytes, io::Error>);
    Body::from_stream(stream::iter(chunks))
}

async fn slow(State(slow): State<Slow>) -> &'static str {
    slow.has_begun.notify_one();
    slow.may_end.notified().await;
    "done"
}

struct Server {
    address: SocketAddr,
    slow: Slow,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<io::Result<()>>,
}

impl Server {
    async fn start<T: Transport>() -> Self {
        let slow_calls = Slow::default();
        let router = Router::new()
            .route("/sum", post(sum))
            .route("/upload", put(upload))
            .route("/download/{len}", get(download))
            .route("/slow", get(slow))
            .with_state(slow_calls.clone());
        let listener = T::listen().await;
        let address = listener.local_addr().expect("its address");
        let (shutdown, signal) = oneshot::channel();
        let serving = axum::serve(listener, router).with_graceful_shutdown(async {
            drop(signal.await);
        });
        Self {
            address,
            slow: slow_calls,
            shutdown,
            served: tokio::spawn(async move { serving.await }),
        }
    }

    fn request<B>(&self, method: Method, path: &str, body: B) -> axum::http::Request<B> {
        let uri = format!("http://{}{path}", self.address);
        let request = axum::http::Request::builder().method(method).uri(uri);
        let request = request.header("content-type", "application/json");
        request.body(body).expect("a request")
    }

    /// Shuts the server down, and waits for its end.
    async fn stop(self) {
        self.shutdown.send(()).expect("the server runs");
        let served = in_time("the server's end", self.served).await;
        served.unwrap().unwrap();
    }
}

fn client<T: Transport>() -> Client<T::Connector, Body> {
    Client::builder(TokioExecutor::new()).build(T::connector())
}

async fn collected(response: axum::http::Response<hyper::body::Incoming>) -> Bytes {
    assert_eq!(response.status(), StatusCode::OK);
    let body = in_time("a body", response.into_body().collect()).await;
    body.unwrap().to_bytes()
}

async fn json_is_received_and_returned<T: Transport>() {
    let server = Server::start::<T>().await;
    let client = client::<T>();
    let requests = (0..20_u64).map(|count| {
        let numbers = Numbers {
            name: format!("sum {count}"),
            numbers: (0..count * 1000).collect(),
        };
        let body = Body::from(serde_json::to_vec(&numbers).unwrap());
        let (client, server) = (&client, &server);
        async move {
            let request = server.request(Method::POST, "/sum", body);
            let answer = collected(client.request(request).await.unwrap()).await;
            let expected = Sum {
                name: numbers.name,
                sum: numbers.numbers.iter().sum(),
            };
            assert_eq!(serde_json::from_slice::<Sum>(&answer).unwrap(), expected);
        }
    });
    in_time("the answers", join_all(requests)).await;
    let request = server.request(Method::POST, "/sum", Body::from("{"));
    let response = in_time("an answer", client.request(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    drop((response, client));
    server.stop().await;
}

async fn a_large_upload_is_streamed_to_the_handler<T: Transport>() {
    let server = Server::start::<T>().await;
    let chunks = data::chunks(LARGE, 100_000).map(|chunk| Ok::<_, io::Error>(Frame::data(chunk)));
    let body = Body::new(StreamBody::new(stream::iter(chunks)));
    let request = server.request(Method::PUT, "/upload", body);
    let client = client::<T>();
    let response = in_time("the upload", client.request(request)).await;
    assert_eq!(collected(response.unwrap()).await, LARGE.to_string());
    drop(client);
    server.stop().await;
}

async fn a_large_download_is_streamed_from_the_handler<T: Transport>() {
    let server = Server::start::<T>().await;
    let path = format!("/download/{LARGE}");
    let request = server.request(Method::GET, &path, Body::empty());
    let client = client::<T>();
    let response = in_time("a response", client.request(request)).await;
    let mut body = response.unwrap().into_body();
    let mut check = Check::default();
    while let Some(frame) = in_time("a frame", body.frame()).await {
        check.take(frame.unwrap().data_ref().expect("data"));
    }
    assert_eq!(check.len(), LARGE);
    drop(client);
    server.stop().await;
}

#[test]
fn a_handler_gets_the_address_of_the_peer() {
    run(async {
        let who = get(async |ConnectInfo(Peer(address))| address.to_string());
        let service = Router::new().route("/", who);
        let listener = Rdma::listen().await;
        let address = listener.local_address().unwrap();
        let service = service.into_make_service_with_connect_info::<Peer>();
        tokio::spawn(async { axum::serve(listener, service).await });
        let stream = Rdma::connect(address).await;
        let address = stream.local_address();
        let handshake = http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let request = axum::http::Request::get("/").header("host", "server");
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let response = in_time("a response", sender.send_request(request)).await;
        assert_eq!(collected(response.unwrap()).await, address.to_string());
    });
}

async fn one_router_serves_http2_too<T: Transport>() {
    let server = Server::start::<T>().await;
    let mut builder = Client::builder(TokioExecutor::new());
    let client: Client<_, Body> = builder.http2_only(true).build(T::connector());
    let downloads = (0..20).map(|number| {
        let len = number * 10_000;
        let request = server.request(Method::GET, &format!("/download/{len}"), Body::empty());
        let client = &client;
        async move {
            let response = client.request(request).await.unwrap();
            assert_eq!(response.version(), Version::HTTP_2);
            assert!(collected(response).await == data::bytes(len));
        }
    });
    in_time("the downloads", join_all(downloads)).await;
    drop(client);
    server.stop().await;
}

async fn a_graceful_shutdown_answers_the_running_request_and_refuses_later_ones<T: Transport>() {
    let server = Server::start::<T>().await;
    let request = || server.request(Method::GET, "/slow", Body::empty());
    let (running, later) = (request(), request());
    let client = client::<T>();
    let running = tokio::spawn(client.request(running));
    in_time("the handler", server.slow.has_begun.notified()).await;
    let slow = server.slow.clone();
    let stopping = tokio::spawn(server.stop());
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!stopping.is_finished(), "the running request is awaited");
    slow.may_end.notify_one();
    let response = in_time("a response", running).await.unwrap().unwrap();
    assert_eq!(collected(response).await, "done");
    in_time("the shutdown", stopping).await.unwrap();
    assert!(client.request(later).await.unwrap_err().is_connect());
}
