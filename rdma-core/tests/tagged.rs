//! Values of the program that accompany the memory of requests.

mod common;

use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use common::{Pair, bytes, completion, exposed, pattern, succeed};
use rdma_core::memory::{AtomicResult, SharedBuffer, Tagged};
use rdma_core::{AccessFlags, Buffer, ConnectOptions, Error, SendRequest, WorkStatus};

#[test]
fn a_completion_brings_back_memory_and_value() {
    let pair = Pair::new();
    let (tell, told) = mpsc::channel();
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for round in 0..3 {
        let room = pair.domain.allocate(64).unwrap();
        receives.post(Tagged::new(room, round)).unwrap();
        let message = pattern(&pair.domain, 64, round);
        let message = Tagged::new(message, tell.clone());
        sends.post(SendRequest::send(message)).unwrap();
        let sent = succeed(pair.left.send_completions());
        for Tagged { memory, value } in sends.complete(&sent) {
            value.send((round, memory.len())).unwrap();
        }
        let received = succeed(pair.right.receive_completions());
        let Tagged { memory, value } = receives.complete(&received).unwrap();
        assert_eq!((value, &memory[..]), (round, &bytes(64, round)[..]));
    }
    let told: Vec<_> = told.try_iter().collect();
    assert_eq!(told, [(0, 64), (1, 64), (2, 64)]);
}

#[test]
fn values_come_back_through_every_kind_of_queue() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let concurrent = pair.left.concurrent_send_queue();
    let slot = concurrent.reserve().unwrap();
    let write = Tagged::new(pattern(&pair.domain, 8, 1), "write");
    concurrent
        .post(slot, SendRequest::write(write, there.remote()))
        .unwrap();
    let done = succeed(pair.left.send_completions());
    let (slot, Tagged { value, .. }) = concurrent.complete(&done).next().unwrap();
    concurrent.release(slot);
    assert_eq!(value, "write");

    let mut reads = pair.left.send_queue();
    let mut batch = reads.batch();
    for value in [7, 8] {
        let target = Tagged::new(pair.domain.allocate(8).unwrap(), value);
        batch
            .push(SendRequest::read(target, there.remote()))
            .unwrap();
    }
    batch.post().unwrap();
    for expected in [7, 8] {
        let done = succeed(pair.left.send_completions());
        let read = reads.complete(&done).next().unwrap();
        assert_eq!((read.value, &read.memory[..]), (expected, &bytes(8, 1)[..]));
    }

    let mut atomics = pair.left.send_queue();
    let result = Tagged::new(AtomicResult::new(&pair.domain).unwrap(), 'a');
    let place = there.remote().slice(8..16).unwrap();
    atomics
        .post(SendRequest::fetch_and_add(result, place, 5))
        .unwrap();
    let done = succeed(pair.left.send_completions());
    let result = atomics.complete(&done).next().unwrap();
    assert_eq!((result.value, result.memory.value()), ('a', 0));
}

#[test]
fn a_value_comes_back_from_failures_and_refusals() {
    let pair = Pair::with(
        |builder| builder.receive_requests(1),
        &ConnectOptions::default(),
    );
    let mut receives = pair.right.receive_queue();
    let memory = || pair.domain.allocate(8).unwrap();
    receives.post(Tagged::new(memory(), 1)).unwrap();
    while receives.in_flight() < receives.capacity() {
        receives.post(Tagged::new(memory(), 2)).unwrap();
    }
    let refused = receives.post(Tagged::new(memory(), 3)).unwrap_err();
    assert!(matches!(refused.error, Error::QueueFull { .. }));
    assert_eq!(refused.memory.value, 3);
    pair.right.fail().unwrap();
    let flushed = completion(pair.right.receive_completions());
    assert_eq!(flushed.status(), WorkStatus::Flushed);
    assert_eq!(receives.complete(&flushed).unwrap().value, 1);
}

/// The value is dropped together with the memory, and not before, because it may keep other objects
/// alive.
#[test]
fn a_value_is_kept_as_long_as_the_memory() {
    let pair = Pair::new();
    let value = Arc::new(());
    let kept: Weak<()> = Arc::downgrade(&value);
    let mut receives = pair.right.receive_queue();
    let mut memory = SharedBuffer::new(pair.domain.allocate(8).unwrap());
    let claim = memory.try_write(..).unwrap();
    receives.post(Tagged::new(claim, value)).unwrap();
    drop(receives);
    assert!(kept.upgrade().is_some(), "the device has the memory");
    drop(pair);
    assert!(kept.upgrade().is_none());
}

#[test]
fn a_claim_for_reading_stays_one_with_a_value() {
    let pair = Pair::new();
    let memory = SharedBuffer::new(pair.domain.allocate(8).unwrap());
    let claim = rdma_core::memory::Claim::Read(memory.try_read(..).unwrap());
    let refused = pair.right.receive_queue().post(Tagged::new(claim, 1));
    assert_eq!(refused.unwrap_err().error, Error::NotWritable);
}

#[test]
fn a_batch_that_is_kept_takes_more() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue::<Tagged<Buffer, u32>>();
    let mut batch = sends.batch();
    assert_eq!(batch.post_and_keep().unwrap(), 0);
    for value in 0..6 {
        let source = Tagged::new(pattern(&pair.domain, 8, 1), value);
        batch
            .push(SendRequest::write(source, there.remote()))
            .unwrap();
        if value % 2 == 1 {
            assert_eq!((batch.post_and_keep().unwrap(), batch.len()), (2, 0));
        }
    }
    let source = Tagged::new(pattern(&pair.domain, 8, 1), 6);
    batch
        .push(SendRequest::write(source, there.remote()))
        .unwrap();
    drop(batch);
    for expected in 0..6 {
        let timeout = Duration::from_secs(60);
        let mut room = [Default::default()];
        let queue = pair.left.send_completions();
        let done = &queue.wait(&mut room, timeout).unwrap()[0];
        let values: Vec<_> = sends.complete(done).map(|it| it.value).collect();
        assert_eq!(values, [expected]);
    }
    assert_eq!(sends.in_flight(), 0, "what was not posted is gone");

    let mut receives = pair.right.receive_queue();
    let mut batch = receives.batch();
    for value in 0..4 {
        let room = pair.domain.allocate(8).unwrap();
        batch.push(Tagged::new(room, value)).unwrap();
        assert_eq!((batch.post_and_keep().unwrap(), batch.len()), (1, 0));
    }
    drop(batch);
    assert_eq!(receives.in_flight(), 4);
}
