//! Measures a web server (axum, HTTP/2) and its client (hyper) over RDMA or over TCP.
//!
//! Without a host, `web` is the server, which exits after one measurement. With a host, `web` is
//! the client, which prints the result as a line of JSON.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use clap::{Parser, ValueEnum};
use futures_util::stream;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rdma_async::{RdmaBuilder, RdmaStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Length of the body of a request and of its response, in bytes.
const SIZE: usize = 32;
/// Length of a download, in bytes.
const DOWNLOAD: usize = 64 << 20;
/// Length of a piece of a download, in bytes.
const PIECE: usize = 64 << 10;
/// Flow control windows of HTTP/2, in bytes. The default of 64 KiB would limit a download over both
/// protocols.
const WINDOW: u32 = 4 << 20;
/// Number of requests before the measurement, which fill caches and create connections.
const WARM_UP: usize = 100;
/// Name of the JSON format. The number at its end is incremented when the meaning of a field
/// changes.
const SCHEMA: &str = "rdma-bench/web/1";

/// Measures a web server.
#[derive(Debug, Parser)]
struct CommandLine {
    /// Quantity to measure.
    #[arg(value_enum)]
    quantity: Quantity,
    /// Protocol below HTTP.
    #[arg(long = "by", value_enum)]
    protocol: Protocol,
    /// Port of the server.
    #[arg(short = 'p', long)]
    port: u16,
    /// Approximate duration of the measurement.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500)]
    time: u64,
    /// Address of the server.
    host: Option<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Quantity {
    /// Downloaded bytes per second.
    Bandwidth,
    /// Time from a request to its response.
    Latency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Rdma,
    Tcp,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let line = CommandLine::parse();
    let done = match line.host {
        None => serve(&line).await,
        Some(host) => measure(&line, SocketAddr::new(host, line.port)).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("web: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Serves requests until a client requests `/end`.
async fn serve(line: &CommandLine) -> anyhow::Result<()> {
    let is_over = Arc::new(Notify::new());
    let ending = Arc::clone(&is_over);
    let end = move || async move { ending.notify_one() };
    let router = Router::new()
        .route("/echo", post(|body: Bytes| async { body }))
        .route("/download", get(download))
        .route("/end", post(end));
    let over = async move { is_over.notified().await };
    let address = SocketAddr::new([0, 0, 0, 0].into(), line.port);
    match line.protocol {
        Protocol::Rdma => {
            let listener = RdmaBuilder::default().bind(address).await?;
            axum::serve(listener, router)
                .with_graceful_shutdown(over)
                .await?;
        }
        Protocol::Tcp => {
            use axum::serve::ListenerExt as _;
            let listener = TcpListener::bind(address).await?.tap_io(|stream| {
                // An error only makes the measurement slower.
                let _ = stream.set_nodelay(true);
            });
            axum::serve(listener, router)
                .with_graceful_shutdown(over)
                .await?;
        }
    }
    Ok(())
}

/// Returns a response body of [`DOWNLOAD`] bytes, sent in pieces.
async fn download() -> Body {
    let piece = Bytes::from(vec![0x5a; PIECE]);
    let pieces = std::iter::repeat_n(Ok::<_, Infallible>(piece), DOWNLOAD / PIECE);
    Body::from_stream(stream::iter(pieces))
}

/// Connects to the server, measures the quantity that `line` selects, and prints the result.
async fn measure(line: &CommandLine, server: SocketAddr) -> anyhow::Result<()> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(PIECE as u32);
    let mut sender = match line.protocol {
        Protocol::Rdma => {
            let stream = TokioIo::new(RdmaStream::connect(server).await?);
            let (sender, connection) = builder.handshake(stream).await?;
            tokio::spawn(connection);
            sender
        }
        Protocol::Tcp => {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender
        }
    };
    let time = Duration::from_millis(line.time);
    let document = match line.quantity {
        Quantity::Latency => latency(&mut sender, time).await?,
        Quantity::Bandwidth => bandwidth(&mut sender, time).await?,
    };
    println!("{document}");
    request(&mut sender, Method::POST, "/end", Bytes::new()).await?;
    Ok(())
}

type Sender = SendRequest<Full<Bytes>>;

/// Measures the times from a request to its response, and returns their median as JSON.
async fn latency(sender: &mut Sender, time: Duration) -> anyhow::Result<serde_json::Value> {
    let body = Bytes::from_static(&[0x5a; SIZE]);
    let mut samples = Vec::new();
    let mut begun = Instant::now();
    for number in 0.. {
        if number == WARM_UP {
            begun = Instant::now();
            samples.clear();
        }
        let sent = Instant::now();
        let len = request(sender, Method::POST, "/echo", body.clone()).await?;
        samples.push(sent.elapsed().as_nanos() as f64 / 1e3);
        ensure!(len == SIZE, "a response of {len} bytes");
        if number > WARM_UP && begun.elapsed() >= time {
            break;
        }
    }
    samples.sort_unstable_by(f64::total_cmp);
    Ok(serde_json::json!({
        "schema": SCHEMA,
        "unit": "usec",
        "count": samples.len(),
        "figure": samples[samples.len() / 2],
    }))
}

/// Measures the rate of downloaded bytes, and returns it as JSON.
async fn bandwidth(sender: &mut Sender, time: Duration) -> anyhow::Result<serde_json::Value> {
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let len = request(sender, Method::GET, "/download", Bytes::new()).await?;
        ensure!(len == DOWNLOAD, "a download of {len} bytes");
        count += 1;
    }
    Ok(serde_json::json!({
        "schema": SCHEMA,
        "unit": "1/s",
        "count": count,
        "figure": (count * DOWNLOAD) as f64 / begun.elapsed().as_secs_f64(),
    }))
}

/// Sends a request, and returns the number of bytes of the response's body.
async fn request(
    sender: &mut Sender,
    method: Method,
    path: &str,
    body: Bytes,
) -> anyhow::Result<usize> {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://server{path}"))
        .body(Full::new(body))?;
    sender.ready().await?;
    let response = sender
        .send_request(request)
        .await
        .context(path.to_owned())?;
    let mut body = response.into_body();
    let mut len = 0;
    while let Some(frame) = body.frame().await {
        len += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(len)
}
