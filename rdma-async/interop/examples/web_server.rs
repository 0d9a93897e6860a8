//! A web server and a client like curl, over RDMA.
//!
//! ```text
//! web_server serve 127.0.0.1:7474
//! web_server get http://127.0.0.1:7474/notes/today
//! web_server put http://127.0.0.1:7474/notes/today TEXT
//! ```
//!
//! Only the listener and the connector differ from a program that uses TCP.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{Method, Request, StatusCode};
use axum::routing::get;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rdma_async::{RdmaBuilder, RdmaConnector};
use tokio::sync::Mutex;

type Notes = Arc<Mutex<HashMap<String, Bytes>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address] => serve(address).await,
        ["get", url] => request(Method::GET, url, "").await,
        ["put", url, text] => request(Method::PUT, url, text).await,
        _ => Err("usage: web_server serve ADDRESS | get URL | put URL TEXT".into()),
    }
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let router = Router::new()
        .route("/notes/{name}", get(read).put(write))
        .with_state(Notes::default());
    let listener = RdmaBuilder::default().bind(address).await?;
    println!("listening at {}", listener.local_address()?);
    axum::serve(listener, router).await?;
    Ok(())
}

async fn read(State(notes): State<Notes>, Path(name): Path<String>) -> Result<Bytes, StatusCode> {
    let notes = notes.lock().await;
    notes.get(&name).cloned().ok_or(StatusCode::NOT_FOUND)
}

async fn write(State(notes): State<Notes>, Path(name): Path<String>, text: Bytes) {
    notes.lock().await.insert(name, text);
}

/// Sends a request, and prints the body of the response.
async fn request(method: Method, url: &str, text: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build(RdmaConnector::default());
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes()));
    let request = Request::builder().method(method).uri(url).body(body)?;
    let response = client.request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    let mut output = std::io::stdout();
    while let Some(frame) = body.frame().await {
        if let Some(bytes) = frame?.data_ref() {
            output.write_all(bytes)?;
        }
    }
    if !status.is_success() {
        return Err(format!("{url}: {status}").into());
    }
    Ok(())
}
