//! A key-value store with typed errors, unencoded byte strings, a deadline, and the name of the
//! tenant in the metadata.
//!
//! ```text
//! cargo run -p rdma-rpc --example store
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use rdma_rpc::{Address, CallError, Context, Metadata, Payload, Server};
use serde::{Deserialize, Serialize};

/// Error of the service, which reaches the caller with its type.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum StoreError {
    NoTenant,
    NotFound { key: String },
    Full { bytes: u64 },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTenant => f.write_str("the metadata names no tenant"),
            Self::NotFound { key } => write!(f, "there is no key {key}"),
            Self::Full { bytes } => write!(f, "the store has no room for {bytes} bytes"),
        }
    }
}

#[rdma_rpc::service]
trait Store {
    /// Stores a value for the caller's tenant, and returns the previous value of the key.
    async fn put(
        &self,
        cx: &Context,
        key: String,
        value: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns the value of a key of the caller's tenant.
    async fn get(&self, cx: &Context, key: String) -> Result<Vec<u8>, StoreError>;

    /// Returns the bytes in reverse order. The bytes are neither encoded nor decoded.
    #[rpc(raw)]
    async fn reverse(&self, bytes: Payload) -> Result<Vec<u8>, StoreError>;
}

/// Maximum length of a value in bytes, so that the example can show an error of the service.
const MAX_VALUE_LEN: usize = 64 << 10;

#[derive(Default)]
struct InMemory {
    values: Mutex<HashMap<(String, String), Vec<u8>>>,
}

/// Returns the tenant in the metadata of a call; fails if the caller has set none.
fn tenant(cx: &Context) -> Result<String, StoreError> {
    let tenant = cx.metadata().get_str("tenant");
    tenant.map(str::to_owned).ok_or(StoreError::NoTenant)
}

impl Store for InMemory {
    async fn put(
        &self,
        cx: &Context,
        key: String,
        value: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        if value.len() > MAX_VALUE_LEN {
            let bytes = value.len() as u64;
            return Err(StoreError::Full { bytes });
        }
        let place = (tenant(cx)?, key);
        let mut values = self.values.lock().expect("no holder of the lock panics");
        Ok(values.insert(place, value))
    }

    async fn get(&self, cx: &Context, key: String) -> Result<Vec<u8>, StoreError> {
        let place = (tenant(cx)?, key);
        let values = self.values.lock().expect("no holder of the lock panics");
        let value = values.get(&place).cloned();
        value.ok_or(StoreError::NotFound { key: place.1 })
    }

    async fn reverse(&self, bytes: Payload) -> Result<Vec<u8>, StoreError> {
        Ok(bytes.iter().rev().copied().collect())
    }
}

/// Runs the server and its clients in this process, and returns the lines that they print.
pub(crate) async fn run(address: Address) -> Result<Vec<String>, Box<dyn Error>> {
    let server = Server::new(StoreServer::new(InMemory::default()))
        .load_limit(1000)
        .listen(address)
        .await?;
    let anyone = StoreClient::connect(server.address()).await?;
    let blue = anyone.with_metadata(Metadata::default().with("tenant", "blue"));
    let red = anyone.with_metadata(Metadata::default().with("tenant", "red"));
    let colour = || "colour".to_owned();
    let mut lines = Vec::new();

    blue.put(colour(), b"azure".to_vec()).await?;
    let value = String::from_utf8(blue.get(colour()).await?)?;
    lines.push(format!("blue has {value}"));

    let missing = red.get(colour()).await.unwrap_err();
    lines.push(format!("red: {missing}"));
    let full = blue.put("big".to_owned(), vec![0; MAX_VALUE_LEN + 1]).await;
    lines.push(format!("blue: {}", full.unwrap_err()));
    let nobody = anyone.get(colour()).await.unwrap_err();
    assert_eq!(nobody.service(), Some(StoreError::NoTenant));

    let bytes = anyone.reverse(vec![7; 100_000]).await?;
    lines.push(format!("{} bytes came back in reverse order", bytes.len()));

    match blue.with_deadline(Duration::ZERO).get(colour()).await {
        Err(CallError::Rpc(error)) => lines.push(format!("too late: {error}")),
        other => return Err(format!("a call without time has an answer: {other:?}").into()),
    }
    server.shutdown().await;
    Ok(lines)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (rdma, tcp) = ("rdma://127.0.0.1:0".parse()?, "tcp://127.0.0.1:0".parse()?);
    for address in [rdma, tcp, Address::memory()] {
        println!("at {address}:\n{}", run(address.clone()).await?.join("\n"));
    }
    Ok(())
}
