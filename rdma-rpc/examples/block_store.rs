//! A block store that is replicated on three servers and keeps every acknowledged block if one
//! server fails.
//!
//! A server copies each written block to its peers, and acknowledges the write when two of the
//! three servers have the block. A reader queries two servers and takes the newer version. A
//! restarted server copies the blocks of its peers before it serves. Blocks are kept in memory, so
//! at most one server may be down at a time. Every server must know the others by the same
//! addresses.
//!
//! ```text
//! cargo run -p rdma-rpc --example block_store -- serve rdma://10.77.0.1:7471 PEER PEER
//! cargo run -p rdma-rpc --example block_store -- write 7 text ADDRESS ADDRESS ADDRESS
//! cargo run -p rdma-rpc --example block_store -- read 7 ADDRESS ADDRESS ADDRESS
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{env, process};

use rdma_rpc::{Bulk, Client, Context, Server};
use tokio::sync::{OnceCell, mpsc};
use tokio::time::sleep;

/// Maximum length of a block in bytes. Short enough that a bulk with a block is transferred in one
/// piece.
const BLOCK: usize = 64 << 10;

/// Time after which a request to a peer server fails. Short, because a write waits for this time if
/// both peers have failed.
const PEER: Duration = Duration::from_secs(1);

/// Version of a block: a counter that each write increments, and the number of the server that
/// wrote the block, so that two servers never create the same version. The number of a server is
/// the rank of its address among the three servers.
type Version = (u64, u64);

/// Version and content of a block.
type Block = (Version, Arc<[u8]>);

#[rdma_rpc::service]
trait Blocks {
    /// Writes a block to this server and its peers. Returns the version when two servers have
    /// stored the block.
    async fn write(&self, number: u64, bytes: Bulk) -> Result<Version, String>;
    /// Returns the newer of this server's block and a peer's block, with its version; `None` if
    /// neither has the block.
    async fn read(&self, cx: &Context, number: u64) -> Result<Option<(Version, Bulk)>, String>;
    /// Stores a block that a peer has written, unless this server has a newer version.
    async fn copy(&self, number: u64, version: Version, bytes: Bulk) -> Result<(), String>;
    /// Returns the version of this server's copy of a block; (0, 0) without a copy.
    async fn version(&self, number: u64) -> Result<Version, String>;
    /// Returns this server's copy of a block, with its version; `None` without a copy.
    async fn fetch(&self, cx: &Context, number: u64) -> Result<Option<(Version, Bulk)>, String>;
    /// Returns the numbers and versions of all blocks that this server stores.
    async fn versions(&self) -> Result<Vec<(u64, Version)>, String>;
}

/// Another server of the store, and the connection to this server, which is established at its
/// first use.
struct Peer {
    address: String,
    client: OnceCell<BlocksClient>,
}

impl Peer {
    /// Returns the client of the peer, after connecting to the peer if necessary.
    async fn client(&self) -> Result<&BlocksClient, String> {
        let connect = || async {
            let builder = Client::builder()
                .deadline(PEER)
                .backoff(Duration::from_millis(10), Duration::from_millis(200));
            let client = builder.connect_any([&self.address]).await.map_err(text)?;
            Ok(BlocksClient::new(client))
        };
        self.client.get_or_try_init(connect).await
    }
}

/// State of one server: its blocks and its peers.
struct Node {
    /// Rank of the server's address among the three servers, for the versions that this server
    /// creates.
    number: u64,
    blocks: Mutex<HashMap<u64, Block>>,
    peers: Vec<Arc<Peer>>,
}

/// Implementation of the service. The program also uses the node directly, in order to copy missing
/// blocks at its start.
struct Shared(Arc<Node>);

fn text(error: impl Error) -> String {
    error.to_string()
}

impl Node {
    fn block(&self, number: u64) -> Option<Block> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.get(&number).cloned()
    }

    /// Stores a block with a new version, which is newer than this server's version of the block
    /// and than `theirs`, the version of a peer. Returns the new version.
    fn store_newer(&self, number: u64, theirs: Version, bytes: Arc<[u8]>) -> Version {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let own = blocks.get(&number).map_or((0, 0), |(version, _)| *version);
        // The lock ensures that concurrent writes get different versions.
        let version = (own.max(theirs).0 + 1, self.number);
        blocks.insert(number, (version, bytes));
        version
    }

    /// Stores a block, unless this server has a newer version.
    fn store(&self, number: u64, version: Version, bytes: Arc<[u8]>) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = (version, bytes);
        let known = blocks.entry(number).or_insert_with(|| newer.clone());
        if known.0 < newer.0 {
            *known = newer;
        }
    }

    /// Sends a request to all peers, and returns the first successful answer. Including this
    /// server, two of three servers have then handled the request.
    async fn query<T, F>(&self, request: impl Fn(Arc<Peer>) -> F) -> Result<T, String>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let (answers, mut answered) = mpsc::channel(self.peers.len().max(1));
        for peer in &self.peers {
            let (requested, answers) = (request(Arc::clone(peer)), answers.clone());
            // A separate task, so that the slower peer also completes its request.
            tokio::spawn(async move { answers.send(requested.await).await });
        }
        drop(answers);
        let mut refused = "there are no peers".to_owned();
        while let Some(answer) = answered.recv().await {
            match answer {
                Ok(answer) => return Ok(answer),
                Err(reason) => refused = reason,
            }
        }
        Err(format!("no peer has answered: {refused}"))
    }

    /// Copies all blocks of which the peers have a newer version, after a restart of this server. A
    /// block that two of the three servers have may be missing on either of the peers, so both are
    /// needed.
    async fn catch_up(&self) -> Result<(), String> {
        for peer in &self.peers {
            let client = peer.client().await?;
            for (number, newest) in client.versions().await.map_err(text)? {
                if self.block(number).is_some_and(|own| own.0 >= newest) {
                    continue;
                }
                if let Some((version, bulk)) = client.fetch(number).await.map_err(text)? {
                    let bytes = bulk.read(..).await.map_err(text)?;
                    self.store(number, version, bytes[..].into());
                }
            }
        }
        Ok(())
    }
}

/// Returns a bulk with a copy of `bytes`, in memory that the connection of the call can transfer
/// without another copy.
fn lent(cx: &Context, bytes: &[u8]) -> Result<Bulk, String> {
    let mut memory = cx.bulk_memory(bytes.len()).map_err(text)?;
    memory.copy_from_slice(bytes);
    Ok(memory.into())
}

impl Blocks for Shared {
    async fn write(&self, number: u64, bytes: Bulk) -> Result<Version, String> {
        if bytes.len() > BLOCK {
            return Err(format!("a block has at most {BLOCK} bytes"));
        }
        let node = &self.0;
        let bytes: Arc<[u8]> = bytes.read(..).await.map_err(text)?[..].into();
        // The new version must be newer than the versions of two of three servers.
        let theirs = node.query(move |peer| async move {
            let client = peer.client().await?;
            client.version(number).await.map_err(text)
        });
        let version = node.store_newer(number, theirs.await?, Arc::clone(&bytes));
        node.query(move |peer| {
            let bytes = Arc::clone(&bytes);
            async move {
                let client = peer.client().await?;
                // Each peer reads separate memory, because a bulk can be lent to one call at a
                // time.
                let bulk = Bulk::from(bytes.to_vec());
                client.copy(number, version, bulk).await.map_err(text)
            }
        })
        .await?;
        Ok(version)
    }

    async fn read(&self, cx: &Context, number: u64) -> Result<Option<(Version, Bulk)>, String> {
        let theirs = self.0.query(move |peer| async move {
            let client = peer.client().await?;
            let Some((version, bulk)) = client.fetch(number).await.map_err(text)? else {
                return Ok(None);
            };
            let bytes: Arc<[u8]> = bulk.read(..).await.map_err(text)?[..].into();
            Ok(Some((version, bytes)))
        });
        let (theirs, own) = (theirs.await?, self.0.block(number));
        let newest = theirs
            .into_iter()
            .chain(own)
            .max_by_key(|(version, _)| *version);
        let newest = newest.map(|(version, bytes)| Ok((version, lent(cx, &bytes)?)));
        newest.transpose()
    }

    async fn copy(&self, number: u64, version: Version, bytes: Bulk) -> Result<(), String> {
        let bytes = bytes.read(..).await.map_err(text)?;
        self.0.store(number, version, bytes[..].into());
        Ok(())
    }

    async fn version(&self, number: u64) -> Result<Version, String> {
        Ok(self.0.block(number).map_or((0, 0), |(version, _)| version))
    }

    async fn fetch(&self, cx: &Context, number: u64) -> Result<Option<(Version, Bulk)>, String> {
        let own = self.0.block(number);
        let own = own.map(|(version, bytes)| Ok((version, lent(cx, &bytes)?)));
        own.transpose()
    }

    async fn versions(&self) -> Result<Vec<(u64, Version)>, String> {
        let blocks = self.0.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = blocks.iter().map(|(number, block)| (*number, block.0));
        Ok(versions.collect())
    }
}

/// Runs the server at `address`, whose peers are at the addresses `peers`. `is_new` is set for the
/// first start of the store, when there are no blocks to copy from the peers.
async fn serve(address: &str, peers: &[&str], is_new: bool) -> Result<(), Box<dyn Error>> {
    let peer = |address: &&str| {
        Arc::new(Peer {
            address: (*address).to_owned(),
            client: OnceCell::new(),
        })
    };
    let node = Arc::new(Node {
        number: peers.iter().filter(|peer| **peer < address).count() as u64,
        blocks: Mutex::default(),
        peers: peers.iter().map(peer).collect(),
    });
    // At the first start, the peers have no blocks.
    while !is_new && node.catch_up().await.is_err() {
        sleep(Duration::from_millis(50)).await;
    }
    let server = Server::new(BlocksServer::new(Shared(Arc::clone(&node))));
    let server = server.listen(address).await?;
    // Copies blocks that were written during the first copy.
    while !is_new && node.catch_up().await.is_err() {
        sleep(Duration::from_millis(50)).await;
    }
    println!("serving at {}", server.address());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}

async fn connect(addresses: &[&str]) -> Result<BlocksClient, Box<dyn Error>> {
    let builder = Client::builder().deadline(Duration::from_secs(5));
    Ok(BlocksClient::new(builder.connect_any(addresses).await?))
}

/// Writes a block. If the server fails, the write is repeated, which is harmless for the same
/// bytes.
async fn write(number: u64, text: &str, addresses: &[&str]) -> Result<(), Box<dyn Error>> {
    let client = connect(addresses).await?;
    let bytes = text.as_bytes().to_vec();
    let mut attempts = 0;
    loop {
        attempts += 1;
        match client.write(number, bytes.clone().into()).await {
            Ok(_) => break,
            Err(error) if attempts == 10 => return Err(error.into()),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
    println!("acknowledged");
    Ok(())
}

async fn read(number: u64, addresses: &[&str]) -> Result<(), Box<dyn Error>> {
    let client = connect(addresses).await?;
    let mut attempts = 0;
    let block = loop {
        attempts += 1;
        match client.read(number).await {
            Ok(block) => break block,
            Err(error) if attempts == 10 => return Err(error.into()),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    };
    match block {
        Some((_, bulk)) => println!("{}", String::from_utf8_lossy(&bulk.read(..).await?)),
        None => println!("no such block"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        ["first", address, peers @ ..] => serve(address, peers, true).await,
        ["serve", address, peers @ ..] => serve(address, peers, false).await,
        ["write", number, text, addresses @ ..] => write(number.parse()?, text, addresses).await,
        ["read", number, addresses @ ..] => read(number.parse()?, addresses).await,
        _ => {
            eprintln!(
                "usage: block_store [first ADDRESS PEER... | serve ADDRESS PEER... | \
                 write NUMBER TEXT ADDRESS... | read NUMBER ADDRESS...]"
            );
            process::exit(2);
        }
    }
}
