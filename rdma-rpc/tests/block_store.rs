//! The block store of the examples, whose servers are killed at random moments while clients write:
//! no acknowledged block is lost.
//!
//! The environment variable `KILLS` is the number of kills, and `SEED` repeats their order.

mod common;

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::chance::Chance;
use common::program::{Program, free, serve};
use common::within;
use futures_util::{StreamExt, future, stream};
use parking_lot::Mutex;
use rdma_rpc::{Bulk, Client};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::sleep;

/// Number of clients that write at the same time.
const WRITERS: usize = 4;

/// Number of reads at the same time at the end of the test.
const READS: usize = 16;

/// Maximum number of blocks that are written for each kill, however slow the machine is.
const BLOCKS: usize = 100;

/// The methods of the block store that clients call.
#[rdma_rpc::service]
trait Blocks {
    async fn write(&self, number: u64, bytes: Bulk) -> Result<(u64, u64), String>;
    async fn read(&self, number: u64) -> Result<Option<((u64, u64), Bulk)>, String>;
}

/// Returns the bytes of a block, which differ from those of any other.
fn content(number: u64) -> Vec<u8> {
    let len = 1000 + number as usize % 3000;
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// The processes of the block store.
struct Store {
    addresses: Vec<String>,
    servers: Vec<Option<Program>>,
}

impl Store {
    fn start(scheme: &str) -> Self {
        let mut store = Self {
            addresses: free(scheme, 3),
            servers: vec![None, None, None],
        };
        (0..3).for_each(|index| store.serve("first", index));
        store
    }

    /// Starts a server, and waits until it serves.
    fn serve(&mut self, command: &str, index: usize) {
        let peers = self.addresses.iter().enumerate();
        let peers = peers.filter(|(at, _)| *at != index);
        let words: Vec<&str> = [command, &self.addresses[index]]
            .into_iter()
            .chain(peers.map(|(_, address)| address.as_str()))
            .collect();
        self.servers[index] = Some(serve("block_store", &words).0);
    }

    async fn client(&self) -> BlocksClient {
        let builder = Client::builder()
            .transport(common::transport())
            .deadline(Duration::from_secs(5))
            .backoff(Duration::from_millis(10), Duration::from_millis(200));
        let client = within("connecting", builder.connect_any(&self.addresses)).await;
        BlocksClient::new(client.expect("a server runs"))
    }
}

/// State that the writers share.
struct Written {
    next: AtomicU64,
    /// One permit for each block that may still be written.
    room: Semaphore,
    acknowledged: Mutex<Vec<u64>>,
    is_over: AtomicBool,
}

/// Writes one block after the other until the end of the test, and reads one of them now and then.
async fn write_blocks(client: BlocksClient, written: Arc<Written>, mut chance: Chance) {
    loop {
        written.room.acquire().await.unwrap().forget();
        if written.is_over.load(Ordering::SeqCst) {
            return;
        }
        let number = written.next.fetch_add(1, Ordering::SeqCst);
        // A write may have been executed although it failed, and its repetition writes the same.
        within("a write", async {
            while client.write(number, content(number).into()).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        written.acknowledged.lock().push(number);
        if chance.within(0, 4) == 0 {
            let read = {
                let acknowledged = written.acknowledged.lock();
                acknowledged[chance.within(0, acknowledged.len() as u64) as usize]
            };
            assert_stored(&client, read).await;
        }
        sleep(Duration::from_millis(chance.within(20, 60))).await;
    }
}

/// Reads a block that was acknowledged.
async fn assert_stored(client: &BlocksClient, number: u64) {
    let block = within("a read", async {
        loop {
            match client.read(number).await {
                Ok(None) => panic!("block {number} is lost"),
                Ok(Some((_, bulk))) => match bulk.read(..).await {
                    Ok(block) => return block,
                    // The server has died meanwhile.
                    Err(_) => sleep(Duration::from_millis(20)).await,
                },
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    });
    assert!(block.await[..] == content(number), "block {number} differs");
}

/// Kills servers, one after the other, while the writers write.
async fn acknowledged_blocks_survive(scheme: &str, kills: u64) {
    let seed = common::chance::seed();
    println!("SEED={seed} KILLS={kills}");
    let mut chance = Chance::new(seed);
    let mut store = block_in_place(|| Store::start(scheme));
    let written = Arc::new(Written {
        next: AtomicU64::new(0),
        room: Semaphore::new(BLOCKS),
        acknowledged: Mutex::default(),
        is_over: AtomicBool::new(false),
    });
    let mut writers: Vec<JoinHandle<()>> = Vec::new();
    for writer in 0..WRITERS {
        let chance = Chance::new(seed + 1 + writer as u64);
        let client = store.client().await;
        writers.push(tokio::spawn(write_blocks(
            client,
            Arc::clone(&written),
            chance,
        )));
    }
    for _ in 0..kills {
        sleep(Duration::from_millis(chance.within(0, 400))).await;
        let victim = chance.within(0, 3) as usize;
        block_in_place(|| store.servers[victim] = None);
        sleep(Duration::from_millis(chance.within(0, 400))).await;
        block_in_place(|| store.serve("serve", victim));
        written.room.add_permits(BLOCKS);
        assert!(
            writers.iter().all(|writer| !writer.is_finished()),
            "a writer has failed"
        );
    }
    written.is_over.store(true, Ordering::SeqCst);
    written.room.add_permits(WRITERS);
    for writer in writers {
        within("the end of a writer", writer).await.unwrap();
    }
    let acknowledged = std::mem::take(&mut *written.acknowledged.lock());
    println!("{} blocks were acknowledged", acknowledged.len());
    // Whichever two servers are left have every block.
    let client = store.client().await;
    for dead in 0..3 {
        block_in_place(|| store.servers[dead] = None);
        let reads = acknowledged
            .iter()
            .map(|&number| assert_stored(&client, number));
        stream::iter(reads)
            .buffer_unordered(READS)
            .for_each(|()| future::ready(()))
            .await;
        block_in_place(|| store.serve("serve", dead));
    }
}

fn kills(default: u64) -> u64 {
    env::var("KILLS").map_or(default, |text| text.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_store_loses_no_acknowledged_block_over_rdma() {
    acknowledged_blocks_survive("rdma", kills(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_store_loses_no_acknowledged_block_over_tcp() {
    acknowledged_blocks_survive("tcp", kills(2)).await;
}
