//! Checks HTTP/1 and HTTP/2 of hyper, by servers and clients of single connections.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::server::conn::{http1 as server_http1, http2 as server_http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rdma_async_interop::data::{self, Check};
use rdma_async_interop::{Transport, in_time, over_each_transport, pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

over_each_transport!(
    http1_requests_reuse_one_connection,
    http1_bodies_of_many_mib_arrive_in_both_directions,
    http1_pipelined_requests_are_answered_in_order,
    an_upgraded_http1_connection_is_a_stream_of_bytes,
    http2_answers_many_concurrent_requests,
    http2_bodies_of_many_mib_arrive_in_both_directions,
);

const LARGE: usize = 24 << 20;

type AnyBody = BoxBody<Bytes, hyper::Error>;

/// Returns the body of the request while the body is arriving.
async fn echo(request: Request<Incoming>) -> Result<Response<AnyBody>, Infallible> {
    let path = request.uri().path().to_owned();
    let mut response = Response::new(request.into_body().boxed());
    let path = path.parse().expect("a path is a value of a header");
    response.headers_mut().insert("x-path", path);
    Ok(response)
}

fn serve_http1(stream: impl Transported) -> JoinHandle<hyper::Result<()>> {
    // The server must also answer a client that has ended its direction of the stream.
    let mut connection = server_http1::Builder::new();
    connection.half_close(true);
    let connection = connection.serve_connection(TokioIo::new(stream), service_fn(echo));
    tokio::spawn(connection)
}

fn serve_http2(stream: impl Transported) -> JoinHandle<hyper::Result<()>> {
    let connection = server_http2::Builder::new(TokioExecutor::new());
    let connection = connection.serve_connection(TokioIo::new(stream), service_fn(echo));
    tokio::spawn(connection)
}

trait Transported: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> Transported for S {}

fn post<B>(path: &str, body: B) -> Request<B> {
    Request::post(path)
        .header("host", "server")
        .body(body)
        .expect("a request")
}

/// Returns a body of unknown length, which is sent in chunks.
fn large_body() -> impl Body<Data = Bytes, Error = Infallible> + Send + Unpin {
    let chunks = data::chunks(LARGE, 50_000);
    StreamBody::new(stream::iter(chunks.map(|chunk| Ok(Frame::data(chunk)))))
}

async fn check_large(response: Response<Incoming>) {
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    let mut check = Check::default();
    while let Some(frame) = in_time("a frame of the body", body.frame()).await {
        check.take(frame.expect("a frame").data_ref().expect("data"));
    }
    assert_eq!(check.len(), LARGE);
}

async fn http1_requests_reuse_one_connection<T: Transport>() {
    let (client, server) = pair::<T>().await;
    let served = serve_http1(server);
    let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
    let connection = tokio::spawn(connection);
    for number in 0..200_usize {
        let body = data::bytes(number * number * 3 % 70_000);
        let path = format!("/{number}");
        sender.ready().await.unwrap();
        let request = post(&path, Full::new(body.clone()));
        let response = in_time("a response", sender.send_request(request)).await;
        let response = response.unwrap();
        assert_eq!(response.headers()["x-path"], *path);
        let collected = in_time("a body", response.into_body().collect()).await;
        assert!(collected.unwrap().to_bytes() == body, "request {number}");
    }
    drop(sender);
    in_time("the client's end", connection)
        .await
        .unwrap()
        .unwrap();
    in_time("the server's end", served).await.unwrap().unwrap();
}

async fn http1_bodies_of_many_mib_arrive_in_both_directions<T: Transport>() {
    let (client, server) = pair::<T>().await;
    let served = serve_http1(server);
    let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
    let connection = tokio::spawn(connection);
    for _ in 0..2 {
        sender.ready().await.unwrap();
        let response = sender.send_request(post("/", large_body())).await.unwrap();
        check_large(response).await;
    }
    drop(sender);
    in_time("the client's end", connection)
        .await
        .unwrap()
        .unwrap();
    in_time("the server's end", served).await.unwrap().unwrap();
}

async fn http1_pipelined_requests_are_answered_in_order<T: Transport>() {
    let (mut client, server) = pair::<T>().await;
    let served = serve_http1(server);
    let mut requests = String::new();
    for number in 0..100 {
        requests += &format!("GET /{number} HTTP/1.1\r\nhost: server\r\n\r\n");
    }
    client.write_all(requests.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut responses = String::new();
    let reading = client.read_to_string(&mut responses);
    in_time("the responses", reading).await.unwrap();
    let paths: Vec<_> = responses
        .lines()
        .filter_map(|line| line.strip_prefix("x-path: /"))
        .collect();
    let expected: Vec<_> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(paths, expected);
    in_time("the server's end", served).await.unwrap().unwrap();
}

async fn an_upgraded_http1_connection_is_a_stream_of_bytes<T: Transport>() {
    let (client, server) = pair::<T>().await;
    let upgrade = service_fn(async |request: Request<Incoming>| {
        tokio::spawn(async move {
            let upgraded = hyper::upgrade::on(request).await.unwrap();
            let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let switch = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let switch = switch
            .header("upgrade", "echo")
            .header("connection", "upgrade");
        Ok::<_, Infallible>(switch.body(Full::<Bytes>::default()).unwrap())
    });
    let connection = server_http1::Builder::new();
    let connection = connection.serve_connection(TokioIo::new(server), upgrade);
    tokio::spawn(connection.with_upgrades());
    let (mut sender, connection) = http1::handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = post("/", Full::<Bytes>::default());
    let headers = request.headers_mut();
    headers.insert("upgrade", "echo".parse().unwrap());
    headers.insert("connection", "upgrade".parse().unwrap());
    let response = in_time("a response", sender.send_request(request)).await;
    let upgraded = hyper::upgrade::on(response.unwrap()).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
    let writing = tokio::spawn(async move {
        for chunk in data::chunks(4 << 20, 10_000) {
            writer.write_all(&chunk).await.unwrap();
        }
        writer.shutdown().await.unwrap();
    });
    let mut found = Vec::new();
    in_time("the echo", reader.read_to_end(&mut found))
        .await
        .unwrap();
    writing.await.unwrap();
    assert!(found == data::bytes(4 << 20));
}

async fn http2_answers_many_concurrent_requests<T: Transport>() {
    const AT_ONCE: usize = 150;
    let (client, server) = pair::<T>().await;
    // The server answers no request before all requests have arrived.
    let (barrier, arrived) = (
        Arc::new(Barrier::new(AT_ONCE)),
        Arc::new(AtomicUsize::new(0)),
    );
    let count = Arc::clone(&arrived);
    let service = service_fn(move |request| {
        let (barrier, arrived) = (Arc::clone(&barrier), Arc::clone(&arrived));
        async move {
            arrived.fetch_add(1, Ordering::Relaxed);
            barrier.wait().await;
            echo(request).await
        }
    });
    let connection = server_http2::Builder::new(TokioExecutor::new());
    tokio::spawn(connection.serve_connection(TokioIo::new(server), service));
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(client));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let requests = (0..AT_ONCE).map(|number| {
        let mut sender = sender.clone();
        async move {
            let body = data::bytes(number * 100);
            let path = format!("/{number}");
            let request = post(&path, Full::new(body.clone()));
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.headers()["x-path"], *path);
            let found = response.into_body().collect().await.unwrap().to_bytes();
            assert!(found == body, "request {number}");
        }
    });
    in_time("the responses", join_all(requests)).await;
    assert_eq!(count.load(Ordering::Relaxed), AT_ONCE);
}

async fn http2_bodies_of_many_mib_arrive_in_both_directions<T: Transport>() {
    let (client, server) = pair::<T>().await;
    let served = serve_http2(server);
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(client));
    let (sender, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let transfers = (0..3).map(|_| {
        let mut sender = sender.clone();
        async move {
            let response = sender.send_request(post("/", large_body())).await.unwrap();
            check_large(response).await;
        }
    });
    join_all(transfers).await;
    drop(sender);
    in_time("the client's end", connection)
        .await
        .unwrap()
        .unwrap();
    in_time("the server's end", served).await.unwrap().unwrap();
}
