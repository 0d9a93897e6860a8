//! The server: publishes the buckets, and executes the changes that clients send.

use std::alloc::Layout;
use std::sync::Arc;

use anyhow::Context as _;
use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, Published, Rdma, RdmaDevice};
use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

use crate::bucket::{BUCKETS, CAPACITY, bucket_of, with_entry};

/// The hash table: all buckets, each with a copy of its published bytes, from which the changed
/// bucket is computed.
#[derive(Debug)]
struct Store {
    buckets: Vec<(Published, Vec<u8>)>,
}

impl Store {
    fn new(device: &RdmaDevice) -> anyhow::Result<Self> {
        let bucket = |_| Ok((device.publish(CAPACITY)?, Vec::new()));
        let buckets = (0..BUCKETS).map(bucket).collect::<anyhow::Result<_>>()?;
        Ok(Self { buckets })
    }

    /// Sets the value of a key. Returns `false` if its bucket is full.
    fn put(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<bool> {
        let (published, bytes) = &mut self.buckets[bucket_of(key)];
        let Some(changed) = with_entry(bytes, key, value) else {
            return Ok(false);
        };
        published.update(&changed)?;
        *bytes = changed;
        Ok(true)
    }

    /// Returns the concatenated tokens of all buckets.
    fn tokens(&self) -> Vec<u8> {
        let tokens = self.buckets.iter().map(|(bucket, _)| bucket.token());
        tokens.flat_map(|token| token.to_bytes()).collect()
    }
}

/// Serves a store until standard input ends or, if `once` is set, until the first client has
/// disconnected.
pub(crate) async fn serve(address: &str, once: bool) -> anyhow::Result<()> {
    let device = RdmaDevice::open_default()?;
    let mut listener = device.builder().bind(address).await?;
    let store = Arc::new(Mutex::new(Store::new(&device)?));
    println!("listening at {}", listener.local_address()?);
    if once {
        let client = listener.accept().await?;
        return serve_client(&client, &store).await;
    }
    let mut stdin = tokio::io::stdin();
    loop {
        let mut input = [0; 64];
        tokio::select! {
            read = stdin.read(&mut input) => if read? == 0 {
                return Ok(());
            },
            accepted = listener.accept() => match accepted {
                Ok(rdma) => {
                    let store = Arc::clone(&store);
                    tokio::spawn(async move {
                        if let Err(error) = serve_client(&rdma, &store).await {
                            eprintln!("a client: {error:#}");
                        }
                    });
                }
                Err(error) => eprintln!("accepting: {error}"),
            },
        }
    }
}

/// Sends the tokens of all buckets to a client, and then executes the client's changes until it
/// closes the connection.
async fn serve_client(rdma: &Rdma, store: &Mutex<Store>) -> anyhow::Result<()> {
    let tokens = store.lock().await.tokens();
    rdma.send(&message(rdma, &tokens)?).await?;
    // An error means that the client has closed the connection.
    while let Ok(request) = rdma.receive().await {
        let (lengths, rest) = request
            .as_slice()
            .split_first_chunk::<2>()
            .context("a request without a key")?;
        let (key, value) = rest
            .split_at_checked(usize::from(u16::from_be_bytes(*lengths)))
            .context("a request that is too short")?;
        let is_done = store.lock().await.put(key, value)?;
        rdma.send(&message(rdma, &[u8::from(is_done)])?).await?;
    }
    Ok(())
}

/// Allocates registered memory, and copies `bytes` into it.
pub(crate) fn message(rdma: &Rdma, bytes: &[u8]) -> anyhow::Result<LocalMr> {
    let layout = Layout::from_size_align(bytes.len(), 1)?;
    let mut region = rdma.alloc_local_mr_stale(layout)?;
    region.as_mut_slice().copy_from_slice(bytes);
    Ok(region)
}
