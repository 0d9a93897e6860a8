//! Checks remote procedure calls by tarpc.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use rdma_async_interop::data;
use rdma_async_interop::{Transport, in_time, over_each_transport, pair};
use tarpc::client::{Config, RpcError};
use tarpc::context;
use tarpc::serde_transport;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::{Bincode, Json};
use tarpc::tokio_util::codec::LengthDelimitedCodec;
use tokio::task::JoinHandle;

over_each_transport!(
    calls_in_bincode_are_answered,
    calls_in_json_are_answered,
    a_call_after_its_deadline_fails_and_later_calls_are_answered,
);

#[tarpc::service]
trait Calculator {
    async fn add(a: u64, b: u64) -> u64;
    async fn reversed(bytes: Vec<u8>) -> Vec<u8>;
    async fn never();
}

#[derive(Clone)]
struct Server;

impl Calculator for Server {
    async fn add(self, _: context::Context, a: u64, b: u64) -> u64 {
        a + b
    }

    async fn reversed(self, _: context::Context, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.reverse();
        bytes
    }

    async fn never(self, _: context::Context) {
        std::future::pending().await
    }
}

macro_rules! served {
    ($transport:ty, $codec:expr) => {{
        let (client, server) = pair::<$transport>().await;
        let framed = |stream| LengthDelimitedCodec::builder().new_framed(stream);
        let server = serde_transport::new(framed(server), $codec);
        let requests = BaseChannel::with_defaults(server).execute(Server.serve());
        let served = tokio::spawn(requests.for_each_concurrent(None, |response| response));
        let transport = serde_transport::new(framed(client), $codec);
        let new = CalculatorClient::new(Config::default(), transport);
        (new.spawn(), served)
    }};
}

fn context() -> context::Context {
    let mut context = context::current();
    context.deadline = Instant::now() + Duration::from_secs(60);
    context
}

async fn check_calls(client: CalculatorClient, served: JoinHandle<()>) {
    let calls = (0..1000).map(|number| {
        let client = &client;
        async move {
            let sum = client.add(context(), number, number * number).await;
            assert_eq!(sum.unwrap(), number + number * number);
        }
    });
    in_time("the sums", join_all(calls)).await;
    for len in [0, 1, 5000, 1_000_000] {
        let bytes = data::bytes(len).to_vec();
        let reversed = in_time("an answer", client.reversed(context(), bytes)).await;
        assert!(reversed.unwrap().iter().rev().eq(&data::bytes(len)));
    }
    drop(client);
    in_time("the server's end", served).await.unwrap();
}

async fn calls_in_bincode_are_answered<T: Transport>() {
    let (client, served) = served!(T, Bincode::default());
    check_calls(client, served).await;
}

async fn calls_in_json_are_answered<T: Transport>() {
    let (client, served) = served!(T, Json::default());
    check_calls(client, served).await;
}

async fn a_call_after_its_deadline_fails_and_later_calls_are_answered<T: Transport>() {
    let (client, served) = served!(T, Bincode::default());
    let mut short = context();
    short.deadline = Instant::now() + Duration::from_millis(100);
    let late = in_time("the deadline", client.never(short)).await;
    assert!(matches!(late, Err(RpcError::DeadlineExceeded)), "{late:?}");
    let sum = in_time("an answer", client.add(context(), 2, 3)).await;
    assert_eq!(sum.unwrap(), 5);
    drop(client);
    in_time("the server's end", served).await.unwrap();
}
