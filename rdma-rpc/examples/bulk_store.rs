//! A key-value store whose values are transferred as bulk memory, outside of requests and
//! responses.
//!
//! ```text
//! cargo run -p rdma-rpc --example bulk_store -- serve rdma://0.0.0.0:7471
//! cargo run -p rdma-rpc --example bulk_store -- put rdma://10.77.0.1:7471 picture picture.png
//! cargo run -p rdma-rpc --example bulk_store -- get rdma://10.77.0.1:7471 picture copy.png
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, fs, process};

use rdma_rpc::{Bulk, Context, Server};

#[rdma_rpc::service]
trait Values {
    /// Sets a value, which the server reads from the caller's memory. Returns the length of the
    /// previous value.
    async fn put(&self, key: String, value: Bulk) -> Result<Option<u64>, String>;
    /// Returns a value, which the caller reads from the server's memory; `None` if the key does not
    /// exist.
    async fn get(&self, cx: &Context, key: String) -> Result<Option<Bulk>, String>;
    /// Writes the part of a value from `offset` on into the caller's memory `room`, as far as it
    /// fits. Returns the number of written bytes.
    async fn get_into(
        &self,
        cx: &Context,
        key: String,
        offset: u64,
        room: Bulk,
    ) -> Result<u64, String>;
}

/// Implementation of the service: values by key, in the memory of the server.
#[derive(Default)]
struct MemoryStore(Mutex<HashMap<String, Arc<[u8]>>>);

impl MemoryStore {
    fn value(&self, key: &str) -> Option<Arc<[u8]>> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.get(key).cloned()
    }
}

fn text(error: impl Error) -> String {
    error.to_string()
}

impl Values for MemoryStore {
    async fn put(&self, key: String, value: Bulk) -> Result<Option<u64>, String> {
        let bytes = value.read(..).await.map_err(text)?;
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let former = values.insert(key, bytes[..].into());
        Ok(former.map(|former| former.len() as u64))
    }

    async fn get(&self, cx: &Context, key: String) -> Result<Option<Bulk>, String> {
        let Some(value) = self.value(&key) else {
            return Ok(None);
        };
        // Each caller gets separate memory, so that a value can be read and replaced concurrently.
        let mut memory = cx.bulk_memory(value.len()).map_err(text)?;
        memory.copy_from_slice(&value);
        Ok(Some(memory.into()))
    }

    async fn get_into(
        &self,
        cx: &Context,
        key: String,
        offset: u64,
        room: Bulk,
    ) -> Result<u64, String> {
        let value = self.value(&key).ok_or("there is no such key")?;
        let offset = usize::try_from(offset).map_err(text)?;
        let rest = value.get(offset..).ok_or("the value is shorter")?;
        let part = rest.get(..room.len()).unwrap_or(rest);
        let mut memory = cx.bulk_memory(part.len()).map_err(text)?;
        memory.copy_from_slice(part);
        room.write(0, memory).await.0.map_err(text)?;
        Ok(part.len() as u64)
    }
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let server = Server::new(ValuesServer::new(MemoryStore::default()));
    let server = server.listen(address).await?;
    println!("serving at {}", server.address());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}

async fn put(address: &str, key: &str, path: &str) -> Result<(), Box<dyn Error>> {
    let client = ValuesClient::connect(address).await?;
    let bytes = fs::read(path)?;
    let mut memory = client.client().bulk_memory(bytes.len())?;
    memory.copy_from_slice(&bytes);
    match client.put(key.to_owned(), memory.into()).await? {
        Some(former) => println!("{} bytes in place of {former}", bytes.len()),
        None => println!("{} bytes", bytes.len()),
    }
    Ok(())
}

async fn get(address: &str, key: &str, path: &str) -> Result<(), Box<dyn Error>> {
    let client = ValuesClient::connect(address).await?;
    let value = client.get(key.to_owned()).await?;
    let value = value.ok_or("there is no such key")?;
    fs::write(path, &*value.read(..).await?)?;
    println!("{} bytes", value.len());
    Ok(())
}

/// Prints up to 16 bytes of the value of a key, from `offset` on.
async fn peek(address: &str, key: &str, offset: &str) -> Result<(), Box<dyn Error>> {
    let client = ValuesClient::connect(address).await?;
    let room = Bulk::writable(client.client().bulk_memory(16)?);
    let called = client.get_into(key.to_owned(), offset.parse()?, room.clone());
    let len = usize::try_from(called.await?)?;
    let memory = room
        .into_memory()
        .map_err(|_| "a call is still lending the memory")?;
    println!("{:?}", &memory[..len]);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => serve(address).await,
        ["put", address, key, path] => put(address, key, path).await,
        ["get", address, key, path] => get(address, key, path).await,
        ["peek", address, key, offset] => peek(address, key, offset).await,
        _ => {
            eprintln!(
                "usage: bulk_store [serve ADDRESS | put ADDRESS KEY FILE | get ADDRESS KEY FILE | \
                 peek ADDRESS KEY OFFSET]"
            );
            process::exit(2);
        }
    }
}
