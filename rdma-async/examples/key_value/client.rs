//! The client commands: `get` reads one-sided, `put` sends a message.

use anyhow::{Context as _, ensure};
use rdma_async::{LocalMrReadAccess, PublishedReader, Rdma, RdmaBuilder};
use rdma_core::RemoteMemory;

use crate::bucket::{BUCKETS, bucket_of, find};
use crate::server::message;

/// Connects to the server, and returns the connection and the tokens of the buckets.
pub(crate) async fn connect(server: &str) -> anyhow::Result<(Rdma, Vec<RemoteMemory>)> {
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

/// Reader of values in the memory of the server, by their keys.
#[derive(Debug)]
pub(crate) struct Values<'c> {
    /// Tokens of the buckets.
    tokens: Vec<RemoteMemory>,
    reader: PublishedReader<'c>,
}

impl<'c> Values<'c> {
    pub(crate) fn new(rdma: &'c Rdma, tokens: Vec<RemoteMemory>) -> anyhow::Result<Self> {
        let reader = PublishedReader::new(rdma, tokens[0])?;
        Ok(Self { tokens, reader })
    }

    /// Reads the value of a key. Returns `None` for a key without a value.
    pub(crate) async fn get(&mut self, key: &[u8]) -> rdma_async::Result<Option<&[u8]>> {
        self.reader.switch_to(self.tokens[bucket_of(key)])?;
        Ok(find(self.reader.read().await?, key))
    }
}

/// Sends the server a request to set the value of a key, and waits for its answer. Fails if the
/// bucket of the key is full.
pub(crate) async fn change(rdma: &Rdma, key: &str, value: &[u8]) -> anyhow::Result<()> {
    let length = u16::try_from(key.len()).context("the key is too long")?;
    let request = [&length.to_be_bytes(), key.as_bytes(), value].concat();
    rdma.send(&message(rdma, &request)?).await?;
    let answer = rdma.receive().await?;
    ensure!(answer.as_slice() == [1], "the bucket of {key} is full");
    Ok(())
}

/// Connects to the server, and sets the value of a key.
pub(crate) async fn put(server: &str, key: &str, value: &str) -> anyhow::Result<()> {
    let (rdma, _) = connect(server).await?;
    change(&rdma, key, value.as_bytes()).await
}

/// Prints the values of keys, one per line, or an empty line for a key without a value.
pub(crate) async fn get(server: &str, keys: &[String]) -> anyhow::Result<()> {
    let (rdma, tokens) = connect(server).await?;
    let mut values = Values::new(&rdma, tokens)?;
    for key in keys {
        let value = values.get(key.as_bytes()).await?.unwrap_or_default();
        println!("{}", String::from_utf8_lossy(value));
    }
    Ok(())
}
