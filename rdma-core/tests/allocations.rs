//! Checks that no way to post allocates memory: owned, in batches, concurrent, in a scope and raw,
//! by `ibv_post_send` and by `ibv_wr_*`.
//!
//! softroce runs in this process and may itself allocate for a request. The number of these
//! allocations is measured with raw requests, and no other way to post may allocate more.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use common::{Pair, exposed, pattern, succeed};
use rdma_core::memory::AtomicResult;
use rdma_core::queue_pair::{RawElements, RawSendRequest};
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, ExposedMemory, QueuePairBuilder, SendRequest,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller meets the requirements of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller meets the requirements of the system's allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller meets the requirements of the system's allocator.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller meets the requirements of the system's allocator.
        unsafe { System.dealloc(start, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Number of operations in a round, whose allocations are counted together.
const OPERATIONS: u64 = 200;
const ROUNDS: usize = 8;

/// Returns the minimum number of allocations of this thread in a round of operations. Leaves out
/// the first round, which includes one-time allocations. Takes the minimum, because the device may
/// allocate more in some rounds.
fn allocations(mut operation: impl FnMut()) -> u64 {
    let round = |_| {
        let before = ALLOCATIONS.get();
        (0..OPERATIONS).for_each(|_| operation());
        ALLOCATIONS.get() - before
    };
    (0..ROUNDS).map(round).skip(1).min().unwrap()
}

/// Asserts that only the device has allocated in a round of operations with `requests` requests
/// each: `device` allocations for each request, and a few more when tables of the device grow. One
/// more allocation for each operation would fail the test.
#[track_caller]
fn assert_none(count: u64, requests: u64, device: u64) {
    assert!(
        count <= requests * (device + OPERATIONS / 20),
        "{count} allocations, {device} of the device for as many single requests"
    );
}

fn pairs() -> [Pair; 2] {
    let ways: [fn(QueuePairBuilder) -> QueuePairBuilder; 2] = [
        |builder| builder.inline_data(64),
        |builder| builder.inline_data(64).extended_posting(),
    ];
    ways.map(|way| Pair::with(way, &ConnectOptions::default()))
}

/// Counts the allocations of the device for single writes.
fn of_the_device(pair: &Pair, there: &ExposedMemory) -> u64 {
    let source = pattern(&pair.domain, 8, 1);
    let element = RawElements::of(&source).unwrap();
    allocations(|| {
        let mut request = RawSendRequest::write(&element, there.remote()).signaled();
        // SAFETY: the request and the element are valid, and the buffer outlives the completion.
        unsafe { pair.left.post_send_raw(request.as_raw()) }.unwrap();
        succeed(pair.left.send_completions());
    })
}

#[test]
fn the_count_counts() {
    let mut kept = Vec::new();
    assert!(allocations(|| kept.push(Box::new(1))) >= OPERATIONS);
}

#[test]
fn owned_requests_allocate_nothing() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let device = of_the_device(&pair, &there);
        let mut sends = pair.left.send_queue();
        let mut memory = Some(pattern(&pair.domain, 8, 1));
        let written = allocations(|| {
            let buffer = memory.take().unwrap();
            sends
                .post(SendRequest::write(buffer, there.remote()))
                .unwrap();
            let completion = succeed(pair.left.send_completions());
            memory = sends.complete(&completion).next();
        });
        assert_none(written, 1, device);
        let read = allocations(|| {
            let buffer = memory.take().unwrap();
            sends
                .post(SendRequest::read(buffer, there.remote()))
                .unwrap();
            let completion = succeed(pair.left.send_completions());
            memory = sends.complete(&completion).next();
        });
        assert_none(read, 1, device);
    }
}

#[test]
fn messages_allocate_nothing() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let device = of_the_device(&pair, &there);
        let (mut sends, mut receives) = (pair.left.send_queue(), pair.right.receive_queue());
        let mut source = Some(pattern(&pair.domain, 8, 1));
        let mut target = pair.domain.allocate(8).ok();
        let count = allocations(|| {
            receives.post(target.take().unwrap()).unwrap();
            sends
                .post(SendRequest::send(source.take().unwrap()))
                .unwrap();
            let sent = succeed(pair.left.send_completions());
            source = sends.complete(&sent).next();
            let received = succeed(pair.right.receive_completions());
            target = receives.complete(&received);
        });
        assert_none(count, 2, device);
    }
}

#[test]
fn atomics_allocate_nothing() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let device = of_the_device(&pair, &there);
        let mut sends = pair.left.send_queue();
        let mut result = AtomicResult::new(&pair.domain).ok();
        there.store_u64(0, 0).unwrap();
        let mut sum = 0;
        let count = allocations(|| {
            let room = result.take().unwrap();
            let word = there.remote().slice(..8).unwrap();
            sends
                .post(SendRequest::fetch_and_add(room, word, 1))
                .unwrap();
            let completion = succeed(pair.left.send_completions());
            result = sends.complete(&completion).next();
            assert_eq!(result.as_ref().map(AtomicResult::value), Some(sum));
            sum += 1;
        });
        assert_none(count, 1, device);
    }
}

#[test]
fn batches_allocate_nothing() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let device = of_the_device(&pair, &there);
        let (mut sends, mut receives) = (pair.left.send_queue(), pair.right.receive_queue());
        let frozen = pattern(&pair.domain, 8, 1).freeze();
        let sent = allocations(|| {
            let mut batch = sends.batch();
            for _ in 0..4 {
                let request = SendRequest::write(frozen.clone(), there.remote());
                batch.push(request.unsignaled()).unwrap();
            }
            let last = SendRequest::write(frozen.clone(), there.remote());
            batch.push(last).unwrap();
            assert_eq!(batch.post().unwrap(), 5);
            let completion = succeed(pair.left.send_completions());
            assert_eq!(sends.complete(&completion).count(), 5);
        });
        assert_none(sent, 5, device);
        let mut memory: Vec<_> = (0..4).map(|_| pair.domain.allocate(8).unwrap()).collect();
        let received = allocations(|| {
            let mut batch = receives.batch();
            for memory in memory.drain(..) {
                batch.push(memory).unwrap();
            }
            assert_eq!(batch.post().unwrap(), 4);
            for _ in 0..4 {
                let write = SendRequest::write_with_immediate(frozen.clone(), there.remote(), 1);
                sends.post(write).unwrap();
                let completion = succeed(pair.left.send_completions());
                drop(sends.complete(&completion));
                let completion = succeed(pair.right.receive_completions());
                memory.extend(receives.complete(&completion));
            }
        });
        assert_none(received, 8, device);
    }
}

#[test]
fn batches_side_by_side_allocate_nothing() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let device = of_the_device(&pair, &there);
        let (mut left, mut right) = (pair.left.send_queue(), pair.right.send_queue());
        let frozen = pattern(&pair.domain, 8, 1).freeze();
        let write = || SendRequest::write(frozen.clone(), there.remote());
        let count = allocations(|| {
            let (mut one, mut other) = (left.batch(), right.batch());
            one.push(write()).unwrap();
            other.push(write()).unwrap();
            assert_eq!((one.post().unwrap(), other.post().unwrap()), (1, 1));
            let completion = succeed(pair.left.send_completions());
            assert_eq!(left.complete(&completion).count(), 1);
            let completion = succeed(pair.right.send_completions());
            assert_eq!(right.complete(&completion).count(), 1);
        });
        assert_none(count, 2, device);
    }
}

#[test]
fn concurrent_requests_allocate_nothing() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let device = of_the_device(&pair, &there);
        let sends = pair.left.concurrent_send_queue();
        let mut batch = sends.batch(4);
        let mut memory = Some(pattern(&pair.domain, 8, 1));
        let count = allocations(|| {
            let slot = sends.reserve().unwrap();
            let buffer = memory.take().unwrap();
            sends
                .post(slot, SendRequest::write(buffer, there.remote()))
                .unwrap();
            let completion = succeed(pair.left.send_completions());
            let (index, buffer) = sends.complete(&completion).next().unwrap();
            sends.release(index);
            let slot = sends.reserve().unwrap();
            batch
                .push(slot, SendRequest::write(buffer, there.remote()))
                .unwrap();
            assert_eq!(batch.post().unwrap(), 1);
            let completion = succeed(pair.left.send_completions());
            let (index, buffer) = sends.complete(&completion).next().unwrap();
            sends.release(index);
            memory = Some(buffer);
        });
        assert_none(count, 2, device);
    }
}

#[test]
fn requests_of_a_scope_allocate_nothing() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let device = of_the_device(&pair, &there);
        let source = pattern(&pair.domain, 8, 1);
        let mut target = pair.domain.allocate(8).unwrap();
        let count = pair.left.scope(Duration::from_secs(60), |scope| {
            let mut target = Some(target.as_slice_mut());
            allocations(|| {
                let write = SendRequest::write(source.as_slice(), there.remote());
                let write = scope.post(write).unwrap();
                let read = SendRequest::read(target.take().unwrap(), there.remote());
                let read = scope.post(read).unwrap();
                write.wait().unwrap();
                target = Some(read.wait().unwrap().memory);
            })
        });
        let count = count.unwrap();
        assert_none(count, 2, device);
    }
}

/// softroce copies inline data for each request, which the count for the device includes.
#[test]
fn copied_data_allocates_nothing_here() {
    for pair in pairs() {
        let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let data = [1_u8; 8];
        let device = allocations(|| {
            let element = [ibverbs_sys::ibv_sge {
                addr: data.as_ptr().expose_provenance() as u64,
                length: 8,
                lkey: 0,
            }];
            let mut request = RawSendRequest::write(&element, there.remote()).signaled();
            request = request.inline();
            // SAFETY: the request, the element and the data are valid during the call, which copies
            // the data.
            unsafe { pair.left.post_send_raw(request.as_raw()) }.unwrap();
            succeed(pair.left.send_completions());
        });
        let mut sends = pair.left.send_queue::<Buffer>();
        let count = allocations(|| {
            let write = SendRequest::write(&data, there.remote());
            sends.post_inline(write).unwrap();
            let completion = succeed(pair.left.send_completions());
            assert_eq!(sends.complete(&completion).count(), 0);
        });
        assert_none(count, 1, device);
    }
}
