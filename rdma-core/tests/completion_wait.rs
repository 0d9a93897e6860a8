//! Waits for completions: with a channel, with a channel that several queues share, and without
//! one.

mod common;

use std::thread;
use std::time::Duration;

use common::{Pair, bytes, context, eventually, exposed, pattern};
use rdma_core::completion::CompletionFields;
use rdma_core::{
    AccessFlags, Buffer, CompletionQueue, ConnectOptions, Context, Error, SendRequest,
    WorkCompletion,
};

/// Maximum wait for a completion that must arrive.
const LONG: Duration = Duration::from_secs(60);

/// Duration of a wait in which no completion arrives.
const SHORT: Duration = Duration::from_millis(20);

/// Returns two connected queue pairs, of which the left one uses `queue` for the completions of
/// sends.
fn pair_on(context: &Context, queue: &CompletionQueue) -> Pair {
    let domain = context.protection_domain().unwrap();
    let on_it = |builder: rdma_core::QueuePairBuilder| builder.send_completions(queue);
    Pair::in_domain(&domain, on_it, &ConnectOptions::default())
}

#[track_caller]
fn times_out(queue: &CompletionQueue) {
    let mut room = [WorkCompletion::default()];
    let error = queue.wait(&mut room, SHORT).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
}

/// Waits for a completion in one thread, and posts a request in another. The sleep before the post
/// makes it likely that the first thread is waiting.
#[track_caller]
fn comes_while_a_thread_waits(context: &Context, queue: &CompletionQueue) {
    let pair = pair_on(context, queue);
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue::<Buffer>();
    for seed in 0..5 {
        times_out(queue);
        thread::scope(|threads| {
            let waiter = threads.spawn(|| {
                let mut room = [WorkCompletion::default(); 4];
                queue.wait(&mut room, LONG).unwrap().to_vec()
            });
            // The waiting thread is then most likely asleep. The test is valid even if the thread
            // is not.
            thread::sleep(SHORT);
            let source = pattern(&pair.domain, 8, seed);
            let write = SendRequest::write(source, there.remote());
            sends.post(write).unwrap();
            let completions = waiter.join().unwrap();
            assert_eq!(completions.len(), 1);
            let memory = sends.complete(&completions[0]).next().unwrap();
            assert_eq!(memory[..], bytes(8, seed));
        });
    }
    times_out(queue);
}

#[test]
fn a_completion_ends_a_wait_with_and_without_a_channel() {
    let context = context();
    comes_while_a_thread_waits(&context, &context.completion_queue(64).build().unwrap());
    let channel = context.completion_channel().unwrap();
    let queue = context.completion_queue(64).channel(&channel);
    comes_while_a_thread_waits(&context, &queue.build().unwrap());
    let extended = context.completion_queue(64).channel(&channel);
    let extended = extended.extended(CompletionFields::STANDARD).build();
    comes_while_a_thread_waits(&context, extended.unwrap().queue());
}

#[test]
fn a_wait_takes_no_event_of_another_queue() {
    let context = context();
    let channel = context.completion_channel().unwrap();
    let queue = || context.completion_queue(64).channel(&channel).build();
    let (one, other) = (queue().unwrap(), queue().unwrap());
    let pair = pair_on(&context, &other);
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    other.request_notification().unwrap();
    let source = pattern(&pair.domain, 8, 1);
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::write(source, there.remote()))
        .unwrap();
    assert!(channel.wait(Some(LONG)).unwrap());
    times_out(&one);
    let mut announced = Vec::new();
    channel.drain(|id| announced.push(id)).unwrap();
    assert_eq!(announced, [other.id()]);
    let mut room = [WorkCompletion::default()];
    assert_eq!(other.wait(&mut room, LONG).unwrap().len(), 1);

    drop(one);
    other.request_notification().unwrap();
    let source = pattern(&pair.domain, 8, 2);
    sends
        .post(SendRequest::write(source, there.remote()))
        .unwrap();
    assert!(channel.wait(Some(LONG)).unwrap());
    assert_eq!(other.wait(&mut room, LONG).unwrap().len(), 1);
    times_out(&other);
    assert_eq!(
        channel.drain(|_| ()),
        Ok(0),
        "its own were taken by the wait"
    );
}

#[test]
fn several_threads_wait_on_one_queue() {
    const EACH: usize = 50;
    let context = context();
    let channel = context.completion_channel().unwrap();
    let queue = context.completion_queue(256).channel(&channel);
    let queue = queue.build().unwrap();
    let pair = pair_on(&context, &queue);
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let sends = pair.left.concurrent_send_queue::<Buffer>();
    thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                for _ in 0..EACH {
                    let mut room = [WorkCompletion::default()];
                    let done = &queue.wait(&mut room, LONG).unwrap()[0];
                    let (slot, _) = sends.complete(done).next().unwrap();
                    sends.release(slot);
                }
            });
        }
        for _ in 0..2 * EACH {
            let slot = eventually("a free slot", || sends.reserve());
            let source = pattern(&pair.domain, 8, 1);
            let write = SendRequest::write(source, there.remote());
            sends.post(slot, write).unwrap();
        }
    });
}

#[test]
fn an_empty_poll_after_a_notification_request_means_an_event() {
    let context = context();
    let channel = context.completion_channel().unwrap();
    let queue = context.completion_queue(64).channel(&channel);
    let queue = queue.build().unwrap();
    let pair = pair_on(&context, &queue);
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    let mut room = [WorkCompletion::default(); 4];
    for seed in 0..5 {
        assert!(queue.poll_or_arm(&mut room).unwrap().is_empty());
        let source = pattern(&pair.domain, 8, seed);
        sends
            .post(SendRequest::write(source, there.remote()))
            .unwrap();
        assert!(channel.wait(Some(LONG)).unwrap(), "it is announced");
        assert_eq!(channel.drain(|id| assert_eq!(id, queue.id())), Ok(1));
        let found = eventually("the completion", || {
            queue.poll_or_arm(&mut room).unwrap().first().copied()
        });
        assert_eq!(sends.complete(&found).count(), 1);
    }
}

#[test]
fn impossible_waits_are_refused() {
    let context = context();
    let queue = context.completion_queue(4).build().unwrap();
    let error = queue.wait(&mut [], LONG).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let mut room = [WorkCompletion::default()];
    let error = queue.poll_or_arm(&mut room).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let extended = context.completion_queue(4);
    let extended = extended.extended(CompletionFields::STANDARD).build();
    let extended = extended.unwrap();
    let error = extended
        .poll(|_| {
            extended
                .queue()
                .wait(&mut [WorkCompletion::default()], LONG)
                .map(<[_]>::len)
        })
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
}
