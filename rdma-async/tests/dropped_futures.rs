//! Checks random operations, a third of whose futures are dropped at a random point: all
//! transferred bytes are correct, and no resource is leaked.
//!
//! The environment variable `SEED` sets the seed of the random numbers, to repeat a run.
//! `OPERATIONS` sets the number of operations per runtime.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use common::held::{held, settle};
use common::{
    bytes, eventually, layout, one_thread, pair, pair_with, pattern, run_within, two_threads,
    variable,
};
use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaBuilder, RemoteMr};
use tokio::runtime::Runtime;
use tokio::task::yield_now;

/// Default number of operations for each runtime.
const OPERATIONS: u64 = 3000;
/// Number of concurrent tasks on one connection.
const TASKS: u64 = 12;
/// Maximum length of the memory of an operation, in bytes.
const MAX_LEN: usize = 20_000;

/// Generator of random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

/// Awaits a future or, in one of three cases, drops the future after a few polls. Returns the
/// output, or `None` if the future was dropped.
async fn poll_or_drop<T>(random: &mut Random, future: impl Future<Output = T>) -> Option<T> {
    if random.below(3) > 0 {
        return Some(future.await);
    }
    let mut future = pin!(future);
    for _ in 0..random.below(4) {
        let once = std::future::poll_fn(|cx| {
            Poll::Ready(match future.as_mut().poll(cx) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
        });
        if let Some(output) = once.await {
            return Some(output);
        }
        yield_now().await;
    }
    None
}

/// Waits until no operation uses the memory.
async fn wait_until_unused(region: &mut LocalMr) {
    while region.try_as_mut_slice().is_err() {
        yield_now().await;
    }
}

/// Numbers of additions of one task to the counter.
#[derive(Debug, Default)]
struct Additions {
    /// Additions whose futures completed.
    added: u64,
    /// Additions whose futures were dropped. The peer may have executed them.
    dropped: u64,
}

/// Runs random operations on memory of this task, and on the counter that all tasks share.
async fn operate(rdma: &Rdma, seed: u64, count: u64, counter: RemoteMr) -> Additions {
    let mut random = Random::new(seed);
    let mut additions = Additions::default();
    let mut remote = rdma.request_remote_mr(layout(MAX_LEN)).await.unwrap();
    let mut local = rdma.alloc_local_mr(layout(MAX_LEN)).unwrap();
    let mut counter = RemoteMr::from_token(counter.token());
    for round in 0..count {
        let len = match random.below(4) {
            0 => 1 + random.below(64) as usize,
            1 => 1 + random.below(5000) as usize,
            _ => 1 + random.below(MAX_LEN as u64) as usize,
        };
        match random.below(3) {
            0 => match poll_or_drop(&mut random, rdma.fetch_and_add(&mut counter, 1)).await {
                Some(found) => {
                    found.unwrap();
                    additions.added += 1;
                }
                None => additions.dropped += 1,
            },
            1 => {
                let source = pattern(rdma, len, round as u8);
                let mut part = remote.get_mut(0..len).unwrap();
                poll_or_drop(&mut random, rdma.write(&source, &mut part))
                    .await
                    .transpose()
                    .unwrap();
                // If the future was dropped, the operation may still have been posted.
            }
            _ => {
                let source = pattern(rdma, len, round as u8);
                let mut part = remote.get_mut(0..len).unwrap();
                rdma.write(&source, &mut part).await.unwrap();
                wait_until_unused(&mut local).await;
                let from = remote.get(0..len).unwrap();
                let mut to = local.get_mut(0..len).unwrap();
                let read = poll_or_drop(&mut random, rdma.read(&mut to, &from)).await;
                if let Some(outcome) = read {
                    outcome.unwrap();
                    assert!(local.as_slice()[..len] == bytes(len, round as u8));
                }
            }
        }
    }
    wait_until_unused(&mut local).await;
    additions
}

/// Sends numbered messages. A message whose future is dropped arrives at most once.
async fn send(rdma: &Rdma, seed: u64, count: u64) {
    let mut random = Random::new(seed);
    for number in 0..count {
        let len = if random.below(10) == 0 {
            6000
        } else {
            16 + random.below(500) as usize
        };
        let mut message = pattern(rdma, len, number as u8);
        message.as_mut_slice()[..8].copy_from_slice(&number.to_ne_bytes());
        if let Some(outcome) = poll_or_drop(&mut random, rdma.send(&message)).await {
            outcome.unwrap();
        }
    }
    let mut last = pattern(rdma, 16, 0);
    last.as_mut_slice()[..8].fill(0xff);
    rdma.send(&last).await.unwrap();
}

/// Receives and checks all messages. Some receives are dropped, which must not lose a message.
async fn receive(rdma: &Rdma, seed: u64) {
    let mut random = Random::new(seed);
    let mut before = None;
    loop {
        let Some(message) = poll_or_drop(&mut random, rdma.receive()).await else {
            continue;
        };
        let message = message.unwrap();
        let bytes_of = message.as_slice();
        let number = u64::from_ne_bytes(bytes_of[..8].try_into().unwrap());
        assert!(before < Some(number), "{number} after {before:?}");
        before = Some(number);
        if number == u64::MAX {
            return;
        }
        assert!(bytes_of[8..] == bytes(bytes_of.len(), number as u8)[8..]);
    }
}

/// Lock of the running test. The tests run one at a time, because they count the resources of the
/// process.
static TEST_LOCK: Mutex<()> = Mutex::new(());

fn run_random_operations(runtime: Runtime, seed: u64) {
    let operations = variable("OPERATIONS", OPERATIONS);
    // One millisecond for each operation is enough, even on an emulated processor.
    let limit = common::LIMIT + Duration::from_millis(operations);
    let _lock = TEST_LOCK.lock().expect("the other test has passed");
    run_within(limit, runtime, async move {
        // Creates the resources that are created only once in a process.
        drop(pair().await);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut before = held();
        let small = |builder: RdmaBuilder| builder.send_depth(16).receive_depth(8);
        let (client, server) = pair_with(small).await;
        let mut counter = client.request_remote_mr(layout(8)).await.unwrap();
        let tasks = (0..TASKS).map(|task| {
            let counter = RemoteMr::from_token(counter.token());
            operate(&client, seed + task, operations / TASKS / 2, counter)
        });
        let messages = operations / 4;
        let (additions, (), (), (), ()) = tokio::join!(
            futures_util::future::join_all(tasks),
            send(&client, seed + 100, messages),
            receive(&server, seed + 101),
            send(&server, seed + 102, messages),
            receive(&client, seed + 103),
        );
        let added: u64 = additions.iter().map(|task| task.added).sum();
        let dropped: u64 = additions.iter().map(|task| task.dropped).sum();
        let found = client.fetch_and_add(&mut counter, 0).await.unwrap();
        assert!(
            (added..=added + dropped).contains(&found),
            "seed {seed}: {found} is not {added} and up to {dropped} more"
        );
        // Waits until the operations whose futures were dropped have completed.
        eventually(|| {
            client
                .try_post(&pattern(&client, 8, 0))
                .unwrap()
                .then_some(())
        })
        .await;
        server.receive().await.unwrap();
        client.close().await.unwrap();
        drop((server, counter));
        settle(&mut before, "random operations").await;
    });
}

#[test]
fn dropped_futures_do_not_affect_other_operations_on_one_thread() {
    run_random_operations(one_thread(), variable("SEED", 1));
}

#[test]
fn dropped_futures_do_not_affect_other_operations_on_two_threads() {
    run_random_operations(two_threads(), variable("SEED", 2));
}
