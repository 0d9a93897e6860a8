//! Checks the limit and the statistics of a device's registered memory.

mod common;

use std::alloc::Layout;
use std::collections::VecDeque;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::{bytes, check, context, layout, pair_with, pattern, poll_and_drop, run};
use rdma_async::{Error, LocalMrReadAccess, PoolOptions, RdmaDevice};
use rdma_core::memory::HugePages;

const MIB: usize = 1 << 20;

fn limited(bytes: usize) -> RdmaDevice {
    RdmaDevice::with_pool(&context(), &PoolOptions::default().limit(bytes)).unwrap()
}

fn with_watermarks(low: usize, high: usize) -> RdmaDevice {
    let options = PoolOptions::default().kept_watermarks(low, high);
    RdmaDevice::with_pool(&context(), &options).unwrap()
}

#[test]
fn memory_beyond_the_limit_is_refused_until_memory_is_dropped() {
    run(async {
        let device = limited(64 << 10);
        let take = |bytes| device.alloc_local_mr(layout(bytes));
        // A region of 33 KiB occupies a piece of 64 KiB.
        let whole = take(33 << 10).unwrap();
        let statistics = device.pool_statistics();
        assert_eq!(
            (statistics.in_use, statistics.limit),
            (64 << 10, Some(64 << 10))
        );
        match take(1) {
            Err(Error::PoolFull { requested, limit }) => {
                assert_eq!((requested, limit), (64, 64 << 10));
            }
            other => panic!("{other:?}"),
        }
        drop(whole);
        let statistics = device.pool_statistics();
        assert_eq!((statistics.in_use, statistics.highest), (0, 64 << 10));
        assert_eq!(statistics.kept, 64 << 10);
        // When all parts of a piece are dropped, the whole size of the piece is free again.
        for at in [1, 63, 64, 65, 1000] {
            let whole = take(64 << 10).unwrap();
            let (front, back) = whole.split_at(at).unwrap();
            drop(front);
            assert_eq!(device.pool_statistics().in_use, (64 << 10) - at);
            drop(back);
            assert_eq!(device.pool_statistics().in_use, 0);
        }
        let small: Vec<_> = (0..1024).map(|_| take(64).unwrap()).collect();
        assert!(matches!(take(1), Err(Error::PoolFull { .. })));
        drop(small);
        drop(take(64 << 10).unwrap());
    });
}

#[test]
fn memory_of_any_size_counts_until_it_is_dropped() {
    run(async {
        let device = limited(256 << 20);
        // One region is larger than the largest piece; the alignment of the other exceeds that of
        // all pieces.
        let large = device.alloc_local_mr(layout((64 << 20) + 1)).unwrap();
        assert_eq!(device.pool_statistics().in_use, (64 << 20) + 64);
        let aligned = Layout::from_size_align(100, 8192).unwrap();
        let aligned = device.alloc_local_mr(aligned).unwrap();
        assert_eq!(aligned.length(), 100);
        assert_eq!(aligned.as_slice().as_ptr().addr() % 8192, 0);
        assert_eq!(device.pool_statistics().in_use, (64 << 20) + 64 + 128);
        drop((large, aligned));
        let statistics = device.pool_statistics();
        assert_eq!((statistics.in_use, statistics.kept), (0, 0));
        let impossible = Layout::from_size_align(isize::MAX as usize - 64, 1).unwrap();
        assert!(device.alloc_local_mr(impossible).is_err());
        assert_eq!(device.pool_statistics().in_use, 0);
    });
}

#[test]
fn tasks_get_memory_in_order_and_a_dropped_future_does_not_block_others() {
    run(async {
        let device = limited(4096);
        let all = device.alloc_local_mr(layout(4096)).unwrap();
        assert!(poll_and_drop(device.alloc_local_mr_when_free(layout(4096))).is_none());
        let wait = |bytes| Box::pin(device.alloc_local_mr_when_free(layout(bytes)));
        let mut waiting = VecDeque::from([4096, 2048, 64, 4096].map(wait));
        let mut unwoken = Context::from_waker(Waker::noop());
        for future in &mut waiting {
            assert!(future.as_mut().poll(&mut unwoken).is_pending());
        }
        assert_eq!(device.pool_statistics().waiting, 4);
        drop(all);
        // The first task gets all memory. The next two tasks get memory after it is released.
        for pending in [3, 1, 0] {
            let mut got = Vec::new();
            while waiting.len() > pending {
                got.push(waiting.pop_front().unwrap().await.unwrap());
            }
            for future in &mut waiting {
                assert!(future.as_mut().poll(&mut unwoken).is_pending());
            }
        }
        let never = device.alloc_local_mr_when_free(layout(4097)).await;
        assert!(matches!(never, Err(Error::PoolFull { .. })), "{never:?}");
        let statistics = device.pool_statistics();
        assert_eq!((statistics.in_use, statistics.waiting), (0, 0));
    });
}

#[test]
fn connections_work_on_a_device_with_a_limit_and_huge_pages() {
    run(async {
        let options = PoolOptions::default()
            .limit(1 << 20)
            .huge_pages(HugePages::Prefer);
        let device = RdmaDevice::with_pool(&context(), &options).unwrap();
        let (client, server) = pair_with(|builder| builder.on(&device)).await;
        check(&client, &server).await;
        // The limit also applies to memory that a peer requests.
        let refused = client.request_remote_mr(layout(2 << 20)).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
        check(&server, &client).await;
    });
}

#[test]
fn kept_memory_above_the_high_watermark_is_freed_down_to_the_low_one() {
    run(async {
        let device = with_watermarks(2 * MIB, 4 * MIB);
        let take = |bytes| device.alloc_local_mr_stale(layout(bytes)).unwrap();
        let kept = || device.pool_statistics().kept;
        let regions = [(); 5].map(|()| take(MIB));
        assert_eq!(kept(), 0);
        let kept_after = regions.map(|region| {
            drop(region);
            kept() / MIB
        });
        assert_eq!(kept_after, [1, 2, 3, 4, 2]);
        // The pool frees the large region, and then as many small ones as necessary.
        drop(take(64));
        assert!(kept() > 2 * MIB);
        drop(take(4 * MIB));
        assert_eq!(kept(), 2 * MIB);
        drop((take(MIB), take(MIB)));
        assert_eq!(kept(), 2 * MIB);

        let reversed = PoolOptions::default().kept_watermarks(1, 0);
        let refused = RdmaDevice::with_pool(&context(), &reversed);
        assert!(
            matches!(refused, Err(Error::InvalidArgument { .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn watermarks_hold_while_threads_take_and_drop_memory() {
    run(async {
        let device = with_watermarks(MIB, 4 * MIB);
        let use_memory = |seed: usize| {
            let mut held = VecDeque::new();
            for round in 0..300 {
                let len = 64 << ((round * 7 + seed * 3) % 15);
                held.push_back(device.alloc_local_mr_stale(layout(len)).unwrap());
                if held.len() > 8 {
                    held.pop_front();
                }
            }
        };
        thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || use_memory(seed));
            }
        });
        let statistics = device.pool_statistics();
        assert_eq!(statistics.in_use, 0);
        assert!(statistics.kept <= 4 * MIB, "{statistics:?}");
        assert_eq!(device.trim_pool(0), statistics.kept);
        // Memory up to the high watermark is kept, so no freed byte is still counted.
        drop(device.alloc_local_mr(layout(4 * MIB)).unwrap());
        assert_eq!(device.pool_statistics().kept, 4 * MIB);
    });
}

#[test]
fn trimming_frees_no_more_than_necessary() {
    run(async {
        let device = RdmaDevice::new(&context()).unwrap();
        let take = |bytes| device.alloc_local_mr(layout(bytes)).unwrap();
        drop((take(4 * MIB), take(MIB), take(MIB)));
        assert_eq!(device.trim_pool(6 * MIB), 0);
        // The smallest region that suffices is freed.
        assert_eq!(device.trim_pool(6 * MIB - 1), MIB);
        assert_eq!(device.trim_pool(MIB), 4 * MIB);
        let region = take(MIB);
        assert_eq!((device.trim_pool(0), device.pool_statistics().kept), (0, 0));
        drop(region);
        assert_eq!(
            (device.trim_pool(0), device.pool_statistics().kept),
            (MIB, 0)
        );
    });
}

#[test]
fn trimming_frees_dropped_memory_only_after_its_operation_has_ended() {
    run(async {
        const LONG: usize = 100_000;
        let device = RdmaDevice::new(&context()).unwrap();
        let (client, server) = pair_with(|builder| builder.on(&device)).await;
        let region = pattern(&client, LONG, 1);
        // The operation ends when the server has read the message.
        assert!(poll_and_drop(client.send(&region)).is_none());
        drop(region);
        assert!(device.trim_pool(0) < LONG);
        let received = server.receive().await.unwrap();
        assert_eq!(received.as_slice(), bytes(LONG, 1));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut freed = 0;
        while freed < LONG {
            assert!(Instant::now() < deadline, "only {freed} bytes were freed");
            tokio::time::sleep(Duration::from_millis(1)).await;
            freed += device.trim_pool(0);
        }
    });
}
