//! Checks that operations allocate no memory, except in the first rounds on a connection.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;

use common::{layout, one_thread, pair, pattern, run_on};
use futures_util::future::join_all;
use rdma_async::RemoteMr;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

// SAFETY: every method forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller meets the requirements of the same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller meets the requirements of the same method.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller meets the requirements of the same method.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller meets the requirements of the same method.
        unsafe { System.dealloc(start, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Number of operations in a round.
const OPERATIONS: usize = 200;
/// Number of rounds.
const ROUNDS: usize = 12;

/// Returns the minimum number of allocations of this thread in one of several rounds of operations.
/// The first rounds may allocate memory, which the later rounds reuse.
async fn allocations<F: Future<Output = ()>>(mut operation: impl FnMut() -> F) -> u64 {
    let mut fewest = u64::MAX;
    for round in 0..ROUNDS {
        let before = ALLOCATIONS.get();
        for _ in 0..OPERATIONS {
            operation().await;
        }
        if round >= ROUNDS / 2 {
            fewest = fewest.min(ALLOCATIONS.get() - before);
        }
    }
    fewest
}

#[test]
fn no_operation_allocates() {
    run_on(one_thread(), async {
        let (client, server) = pair().await;
        let (client, server) = (&client, &server);
        let granted = client.request_remote_mr(layout(16 << 10)).await.unwrap();
        let token = granted.token();
        let target = |len| RemoteMr::from_token(token.slice(..len).unwrap());
        for len in [8, 100, 4096] {
            let source = pattern(client, len, 1);
            let source = &source;
            let count = allocations(|| async {
                client.write(source, &mut target(len)).await.unwrap();
            });
            assert_eq!(count.await, 0, "writes of {len} bytes");

            let mut fewest = u64::MAX;
            let mut pipeline = client.pipeline(16);
            for _ in 0..ROUNDS {
                let before = ALLOCATIONS.get();
                for _ in 0..OPERATIONS {
                    pipeline.write(source, &mut target(len)).await.unwrap();
                }
                pipeline.finish().await.unwrap();
                fewest = fewest.min(ALLOCATIONS.get() - before);
            }
            assert_eq!(fewest, 0, "writes of {len} bytes by a pipeline");

            let mut local = client.alloc_local_mr(layout(len)).unwrap();
            let mut fewest = u64::MAX;
            for _ in 0..ROUNDS {
                let before = ALLOCATIONS.get();
                for _ in 0..OPERATIONS {
                    client.read(&mut local, &target(len)).await.unwrap();
                }
                fewest = fewest.min(ALLOCATIONS.get() - before);
            }
            assert_eq!(fewest, 0, "reads of {len} bytes");

            let count = allocations(|| async {
                client.send(source).await.unwrap();
                server.receive().await.unwrap();
            });
            assert_eq!(count.await, 0, "messages of {len} bytes");

            let count = allocations(|| async {
                client.post(source).await.unwrap();
                server.receive().await.unwrap();
            });
            assert_eq!(count.await, 0, "posted messages of {len} bytes");

            let count = allocations(|| async {
                let mut target = target(len);
                let write = client.write_with_immediate(source, &mut target, 7);
                write.await.unwrap();
                server.receive_write_immediate().await.unwrap();
            });
            assert_eq!(count.await, 0, "writes of {len} bytes with immediate data");
        }
        let count = allocations(|| async {
            let mut word = target(8);
            client.fetch_and_add(&mut word, 1).await.unwrap();
            client.compare_and_swap(&mut word, 0, 0).await.unwrap();
        });
        assert_eq!(count.await, 0, "atomics");

        // `join_all` itself allocates memory for its futures.
        let source = pattern(client, 8, 1);
        let source = &source;
        let ready = allocations(|| async {
            drop(join_all((0..8).map(|_| async {})).await);
        });
        let ready = ready.await;
        let writes = allocations(|| async {
            let write = || async { client.write(source, &mut target(8)).await.unwrap() };
            drop(join_all((0..8).map(|_| write())).await);
        });
        assert!(writes.await <= ready, "writes at the same time");
    });
}
