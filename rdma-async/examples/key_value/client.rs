//! The client commands: `get` reads one-sided, `put` sends a message.

use std::io::stdin;

use anyhow::{Context as _, ensure};
use rdma_async::{LocalMrReadAccess, PublishedReader, Rdma, RdmaBuilder};
use rdma_core::RemoteMemory;

use crate::bucket::{BUCKETS, bucket_of, find};
use crate::server::message;

/// Connects to the server, and returns the connection and the tokens of the buckets.
async fn connect(server: &str) -> anyhow::Result<(Rdma, Vec<RemoteMemory>)> {
    let rdma = RdmaBuilder::default().connect(server).await?;
    let tokens = rdma.receive().await?;
    let (tokens, rest) = tokens.as_slice().as_chunks();
    ensure!(
        tokens.len() == BUCKETS && rest.is_empty(),
        "the server is not a key-value store"
    );
    let tokens = tokens.iter().map(RemoteMemory::from_bytes).collect();
    Ok((rdma, tokens))
}

/// Sets the value of a key.
pub(crate) async fn put(server: &str, key: &str, value: &str) -> anyhow::Result<()> {
    let (rdma, _) = connect(server).await?;
    let length = u16::try_from(key.len()).context("the key is too long")?;
    let request = [&length.to_be_bytes(), key.as_bytes(), value.as_bytes()].concat();
    rdma.send(&message(&rdma, &request)?).await?;
    let answer = rdma.receive().await?;
    ensure!(answer.as_slice() == [1], "the bucket of {key} is full");
    Ok(())
}

/// Prints the values of keys, one per line, or an empty line for a key without a value.
pub(crate) async fn get(server: &str, keys: &[String], wait: bool) -> anyhow::Result<()> {
    let (rdma, tokens) = connect(server).await?;
    if wait {
        // Before the first read, the device sets up memory that it shares with the server's
        // process, which must be running. Later reads do not need the process.
        for &token in &tokens {
            PublishedReader::new(&rdma, token)?.read().await?;
        }
        println!("connected");
        stdin().read_line(&mut String::new())?;
    }
    for key in keys {
        let token = tokens[bucket_of(key.as_bytes())];
        let mut bucket = PublishedReader::new(&rdma, token)?;
        let value = find(bucket.read().await?, key.as_bytes()).unwrap_or_default();
        println!("{}", String::from_utf8_lossy(value));
    }
    Ok(())
}
