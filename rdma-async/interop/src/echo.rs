//! The gRPC service `interop.Echo`, with one unary method and one of each kind of streaming.

use std::net::SocketAddr;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use tonic::{Request, Response, Status, Streaming};

/// Message that is the argument and the result of all methods of the service.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Item {
    /// Any number.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// Any text.
    #[prost(string, tag = "2")]
    pub text: String,
    /// Any bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub payload: Bytes,
}

mod generated {
    include!(concat!(env!("OUT_DIR"), "/interop.Echo.rs"));
}

pub use self::generated::echo_client::EchoClient;
pub use self::generated::echo_server::EchoServer;

/// Argument for which [`Echo::say`](generated::echo_server::Echo::say) returns an error.
pub const REFUSED: u64 = u64::MAX;

/// Implementation of the service `interop.Echo`, which a test server runs.
#[derive(Debug, Clone, Default)]
pub struct Service;

type Items = Pin<Box<dyn Stream<Item = Result<Item, Status>> + Send>>;

#[tonic::async_trait]
impl generated::echo_server::Echo for Service {
    /// Returns the argument. The text `who` is replaced by the address of the client.
    async fn say(&self, request: Request<Item>) -> Result<Response<Item>, Status> {
        let peer = request.remote_addr();
        let mut item = request.into_inner();
        if item.number == REFUSED {
            return Err(Status::invalid_argument("this number is refused"));
        }
        if item.text == "who" {
            item.text = peer.map_or_else(String::new, |address: SocketAddr| address.to_string());
        }
        Ok(Response::new(item))
    }

    /// Returns the sum of the numbers, and the concatenated payloads.
    async fn sum(&self, request: Request<Streaming<Item>>) -> Result<Response<Item>, Status> {
        let mut items = request.into_inner();
        let mut sum = Item::default();
        let mut payload = Vec::new();
        while let Some(item) = items.try_next().await? {
            sum.number += item.number;
            payload.extend_from_slice(&item.payload);
        }
        sum.payload = payload.into();
        Ok(Response::new(sum))
    }

    type CountStream = Items;

    /// Returns an item for each number below the number of the argument, with its payload.
    async fn count(&self, request: Request<Item>) -> Result<Response<Items>, Status> {
        let Item {
            number, payload, ..
        } = request.into_inner();
        let items = (0..number).map(move |number| {
            Ok(Item {
                number,
                payload: payload.clone(),
                ..Item::default()
            })
        });
        Ok(Response::new(stream::iter(items).boxed()))
    }

    type ChatStream = Items;

    /// Returns each item as soon as the item has arrived.
    async fn chat(&self, request: Request<Streaming<Item>>) -> Result<Response<Items>, Status> {
        Ok(Response::new(request.into_inner().boxed()))
    }
}
