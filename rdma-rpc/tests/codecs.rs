//! Tests of services with the codecs JSON and Protocol Buffers, and of clients that use another
//! codec or another type.

mod common;

use common::{connect, listen, over_every_transport, within};
use rdma_rpc::{Address, CallError, Error, Json, Postcard, Prost, Server};
use serde::{Deserialize, Serialize};

over_every_transport! {
    json_values_are_echoed;
    messages_of_protocol_buffers_are_echoed;
    a_mismatch_of_codecs_or_types_is_an_error;
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    item: String,
    count: u32,
}

/// A newer version of `Order`, with a field that older ends do not send.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct NewOrder {
    item: String,
    count: u32,
    #[serde(default)]
    note: Option<String>,
}

mod newer {
    use super::{Json, NewOrder};

    #[rdma_rpc::service(codec = Json)]
    pub(super) trait Shop {
        async fn order(&self, order: NewOrder) -> Result<u64, String>;
        async fn both(&self, left: u32, right: String) -> Result<(String, u32), String>;
    }
}

#[rdma_rpc::service(codec = Json)]
trait Shop {
    async fn order(&self, order: Order) -> Result<u64, String>;
    async fn both(&self, left: u32, right: String) -> Result<(String, u32), String>;
}

struct Counting;

impl newer::Shop for Counting {
    async fn order(&self, order: NewOrder) -> Result<u64, String> {
        match order.note {
            Some(note) => Err(note),
            None => Ok(u64::from(order.count) * order.item.len() as u64),
        }
    }

    async fn both(&self, left: u32, right: String) -> Result<(String, u32), String> {
        Ok((right, left))
    }
}

fn order() -> Order {
    Order {
        item: "anvil".to_owned(),
        count: 3,
    }
}

async fn json_values_are_echoed(address: Address) {
    let server = listen(Server::new(newer::ShopServer::new(Counting)), address).await;
    let connection = connect(&server).await;
    let older = ShopClient::new(connection.clone());
    assert_eq!(within("an order", older.order(order())).await.unwrap(), 15);
    let newer = newer::ShopClient::new(connection);
    let noted = NewOrder {
        item: "anvil".to_owned(),
        count: 1,
        note: Some("no hurry".to_owned()),
    };
    let error = within("an order", newer.order(noted)).await.unwrap_err();
    assert_eq!(error.service().as_deref(), Some("no hurry"));
    let both = within("both", newer.both(7, "text".to_owned()))
        .await
        .unwrap();
    assert_eq!(both, ("text".to_owned(), 7));
}

// prost implements `Message` for strings and numbers, as `StringValue` and `UInt64Value`.
#[rdma_rpc::service(codec = Prost)]
trait Protocol {
    async fn length(&self, text: String) -> Result<u64, String>;
    async fn nothing(&self) -> Result<(), String>;
}

struct Lengths;

impl Protocol for Lengths {
    async fn length(&self, text: String) -> Result<u64, String> {
        match text.as_str() {
            "" => Err("there is no text".to_owned()),
            text => Ok(text.len() as u64),
        }
    }

    async fn nothing(&self) -> Result<(), String> {
        Ok(())
    }
}

async fn messages_of_protocol_buffers_are_echoed(address: Address) {
    let server = listen(Server::new(ProtocolServer::new(Lengths)), address).await;
    let client = ProtocolClient::new(connect(&server).await);
    let length = client.length("four".to_owned());
    assert_eq!(within("a length", length).await.unwrap(), 4);
    within("nothing", client.nothing()).await.unwrap();
    let error = within("a length", client.length(String::new())).await;
    assert_eq!(
        error.unwrap_err().service().as_deref(),
        Some("there is no text")
    );
}

mod disagreeing {
    use super::Postcard;

    // A client with the methods of the service above, but another codec and other types.
    #[rdma_rpc::service(codec = Postcard)]
    pub(super) trait Protocol {
        async fn length(&self, text: String) -> Result<u64, String>;
    }

    #[rdma_rpc::service(codec = super::Json)]
    pub(super) trait Shop {
        async fn order(&self, order: Vec<u32>) -> Result<u64, String>;
        async fn both(&self, left: u32, right: String) -> Result<u8, String>;
    }
}

async fn a_mismatch_of_codecs_or_types_is_an_error(address: Address) {
    let server = Server::new(ProtocolServer::new(Lengths));
    let server = server.service(newer::ShopServer::new(Counting));
    let server = listen(server, address).await;
    let connection = connect(&server).await;
    let codec = disagreeing::ProtocolClient::new(connection.clone());
    let outcome = within("the answer", codec.length("four".to_owned())).await;
    let CallError::Rpc(Error::BadRequest { reason }) = outcome.unwrap_err() else {
        panic!("the codecs differ");
    };
    assert_eq!(reason, "the codec is 1 and not 3");
    let types = disagreeing::ShopClient::new(connection.clone());
    let outcome = within("the answer", types.order(vec![1])).await;
    let error = outcome.unwrap_err().rpc();
    assert!(matches!(error, Some(Error::BadRequest { .. })), "{error:?}");
    let outcome = within("the answer", types.both(1, "text".to_owned())).await;
    let error = outcome.unwrap_err().rpc();
    assert!(matches!(error, Some(Error::Decode(_))), "{error:?}");
    let client = ProtocolClient::new(connection);
    within("nothing", client.nothing()).await.unwrap();
}
