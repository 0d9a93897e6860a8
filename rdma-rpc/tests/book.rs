//! Checks that the service on the book's page "Remote procedure calls" compiles, and that its
//! client has the functions in the table.

mod common;

use common::{connect, listen, memory, within};
use rdma_rpc::{CallError, Context, Error, Payload, Receiver, Response, Sender, Server, Streaming};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum StoreError {
    Absent,
}

#[derive(Debug, Serialize, Deserialize)]
struct Event;

#[rdma_rpc::service]
trait Store {
    /// One request, one response. The context is optional.
    async fn get(&self, cx: &Context, key: String) -> Result<Vec<u8>, StoreError>;
    /// A stream from the caller.
    async fn load(&self, pairs: Receiver<(String, Vec<u8>)>) -> Result<u64, StoreError>;
    /// A stream to the caller.
    async fn watch(&self, prefix: String, events: Sender<Event>) -> Result<(), StoreError>;
    /// Streams in both directions.
    async fn copy(&self, keys: Receiver<String>, values: Sender<Vec<u8>>)
    -> Result<(), StoreError>;
    /// Bytes without encoding.
    #[rpc(raw)]
    async fn digest(&self, bytes: Payload) -> Result<Vec<u8>, StoreError>;
    /// No response.
    #[rpc(oneway)]
    async fn note(&self, text: String);
}

struct Empty;

impl Store for Empty {
    async fn get(&self, _: &Context, _: String) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::Absent)
    }

    async fn load(&self, _: Receiver<(String, Vec<u8>)>) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn watch(&self, _: String, mut events: Sender<Event>) -> Result<(), StoreError> {
        events.send(Event).await.map_err(|_| StoreError::Absent)
    }

    async fn copy(&self, _: Receiver<String>, _: Sender<Vec<u8>>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn digest(&self, bytes: Payload) -> Result<Vec<u8>, StoreError> {
        Ok(bytes.into_vec())
    }

    async fn note(&self, _: String) {}
}

#[test]
fn the_book_shows_this_service() {
    let book = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/rpc.md");
    let book = std::fs::read_to_string(book).unwrap();
    let this = include_str!("book.rs");
    let begin = this.find("#[rdma_rpc::service]\n").unwrap();
    let end = this.find("\nstruct Empty;").unwrap();
    let service = this[begin..end].trim_end();
    assert!(book.contains(service), "the book does not show\n{service}");
}

/// Makes every call in the table. The types of the results are those of the column "returns".
async fn table(client: StoreClient) -> Result<(), Error> {
    let got: Result<Vec<u8>, CallError<StoreError>> = client.get("key".to_owned()).await;
    assert!(matches!(got, Err(CallError::Service(StoreError::Absent))));
    let (pairs, response) = client.load().await?;
    let pairs: Sender<(String, Vec<u8>)> = pairs;
    let response: Response<u64, StoreError> = response;
    drop(pairs);
    assert_eq!(response.await.ok(), Some(0));
    let mut events: Streaming<Event, (), StoreError> = client.watch(String::new()).await?;
    assert!(matches!(events.next().await, Some(Ok(Event))));
    assert!(events.finish().await.is_ok());
    let (keys, values) = client.copy().await?;
    let keys: Sender<String> = keys;
    let values: Streaming<Vec<u8>, (), StoreError> = values;
    drop(keys);
    assert!(values.finish().await.is_ok());
    for bytes in [&b"bytes"[..], &[7; 300]] {
        let digest: Result<Payload, CallError<StoreError>> = client.digest(bytes).await;
        assert_eq!(digest.ok().as_deref(), Some(bytes));
    }
    client.note("text".to_owned()).await
}

#[tokio::test]
async fn the_client_has_the_functions_of_the_table() {
    let server = listen(Server::new(StoreServer::new(Empty)), memory()).await;
    let client = StoreClient::new(connect(&server).await);
    within("every call", table(client)).await.unwrap();
}
