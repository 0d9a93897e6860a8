//! Checks random operations, a third of whose futures are dropped at a random point: every byte is
//! right, and nothing is left afterwards.
//!
//! The environment variable `SEED` repeats a run; `OPERATIONS` is the number of operations per
//! runtime.

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
const LONGEST: usize = 20_000;

/// Small generator of random numbers (xorshift64).
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

/// Polls a future to its end or, in one of three cases, only a few times. Returns the output, or
/// `None` if the future was dropped.
async fn perhaps<T>(random: &mut Random, future: impl Future<Output = T>) -> Option<T> {
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
async fn settled(region: &mut LocalMr) {
    while region.try_as_mut_slice().is_err() {
        yield_now().await;
    }
}

/// Numbers of additions to the counter by one task.
#[derive(Debug, Default)]
struct Account {
    /// Additions whose futures resolved, and additions whose futures were dropped.
    added: u64,
    dropped: u64,
}

/// Runs random operations on memory of this task and on the counter that all tasks share.
async fn operate(rdma: &Rdma, seed: u64, count: u64, counter: RemoteMr) -> Account {
    let mut random = Random::new(seed);
    let mut account = Account::default();
    let mut remote = rdma.request_remote_mr(layout(LONGEST)).await.unwrap();
    let mut local = rdma.alloc_local_mr(layout(LONGEST)).unwrap();
    let mut counter = RemoteMr::from_token(counter.token());
    for round in 0..count {
        let len = match random.below(4) {
            0 => 1 + random.below(64) as usize,
            1 => 1 + random.below(5000) as usize,
            _ => 1 + random.below(LONGEST as u64) as usize,
        };
        match random.below(3) {
            0 => match perhaps(&mut random, rdma.fetch_and_add(&mut counter, 1)).await {
                Some(found) => {
                    found.unwrap();
                    account.added += 1;
                }
                None => account.dropped += 1,
            },
            1 => {
                let source = pattern(rdma, len, round as u8);
                let mut part = remote.get_mut(0..len).unwrap();
                perhaps(&mut random, rdma.write(&source, &mut part))
                    .await
                    .transpose()
                    .unwrap();
                // The future was dropped before or after the operation was submitted.
            }
            _ => {
                let source = pattern(rdma, len, round as u8);
                let mut part = remote.get_mut(0..len).unwrap();
                rdma.write(&source, &mut part).await.unwrap();
                settled(&mut local).await;
                let from = remote.get(0..len).unwrap();
                let mut to = local.get_mut(0..len).unwrap();
                let read = perhaps(&mut random, rdma.read(&mut to, &from)).await;
                if let Some(outcome) = read {
                    outcome.unwrap();
                    assert!(local.as_slice()[..len] == bytes(len, round as u8));
                }
            }
        }
    }
    settled(&mut local).await;
    account
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
        if let Some(outcome) = perhaps(&mut random, rdma.send(&message)).await {
            outcome.unwrap();
        }
    }
    let mut last = pattern(rdma, 16, 0);
    last.as_mut_slice()[..8].fill(0xff);
    rdma.send(&last).await.unwrap();
}

/// Receives and checks all messages. Dropping the future of a receive must lose no message.
async fn receive(rdma: &Rdma, seed: u64) {
    let mut random = Random::new(seed);
    let mut before = None;
    loop {
        let Some(message) = perhaps(&mut random, rdma.receive()).await else {
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

/// Held by the test that runs: the tests count the resources of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn storm(runtime: Runtime, seed: u64) {
    let operations = variable("OPERATIONS", OPERATIONS);
    // One millisecond for each operation suffices, even on an emulated processor.
    let limit = common::LIMIT + Duration::from_millis(operations);
    let _alone = ALONE.lock().expect("the other test has passed");
    run_within(limit, runtime, async move {
        // Creates the resources that are created once and kept.
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
        let (accounts, (), (), (), ()) = tokio::join!(
            futures_util::future::join_all(tasks),
            send(&client, seed + 100, messages),
            receive(&server, seed + 101),
            send(&server, seed + 102, messages),
            receive(&client, seed + 103),
        );
        let added: u64 = accounts.iter().map(|account| account.added).sum();
        let dropped: u64 = accounts.iter().map(|account| account.dropped).sum();
        let found = client.fetch_and_add(&mut counter, 0).await.unwrap();
        assert!(
            (added..=added + dropped).contains(&found),
            "seed {seed}: {found} is not {added} and up to {dropped} more"
        );
        // All operations whose futures were dropped complete.
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
        settle(&mut before, "the storm").await;
    });
}

#[test]
fn dropped_futures_change_nothing_for_the_others_on_one_thread() {
    storm(one_thread(), variable("SEED", 1));
}

#[test]
fn dropped_futures_change_nothing_for_the_others_on_two_threads() {
    storm(two_threads(), variable("SEED", 2));
}
