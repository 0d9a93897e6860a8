//! Scopes while other threads, and other code of the same thread, poll the same completion queue.
//! The scope must get the completions of its requests, whichever code polls them.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{Pair, bytes, completion, context, eventually, exposed, pattern};
use rdma_core::completion::CompletionFields;
use rdma_core::{
    AccessFlags, Buffer, CompletionQueue, ConnectOptions, Context, Error, ExposedMemory,
    QueuePairState, Result, SendRequest, WorkCompletion,
};

/// Timeout of a scope: long enough for the requests, and short enough for a quick failure of the
/// test.
const MAX_WAIT: Duration = Duration::from_secs(10);

const ROUNDS: u8 = 50;

/// Returns two connected queue pairs, of which the left one uses `queue` for the completions of
/// sends and receives.
fn pair_on(context: &Context, queue: &CompletionQueue) -> Pair {
    let domain = context.protection_domain().unwrap();
    let left = domain.queue_pair().send_completions(queue);
    let left = left.receive_completions(queue).build().unwrap();
    let right = domain.queue_pair().build().unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let options = ConnectOptions::default();
    Pair {
        domain,
        left: left.connect(&to_right, &options).unwrap(),
        right: right.connect(&to_left, &options).unwrap(),
    }
}

/// Writes, reads and receives in scopes, while other threads call `poll`, which returns the number
/// of completions that it got.
#[track_caller]
fn scopes_beside(pair: &Pair, poll: &(impl Fn() -> usize + Sync)) {
    const POLLERS: usize = 2;
    let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let over = AtomicBool::new(false);
    let polls = AtomicUsize::new(0);
    thread::scope(|threads| {
        let pollers: Vec<_> = (0..POLLERS)
            .map(|_| {
                threads.spawn(|| {
                    let mut found = 0;
                    while !over.load(Ordering::Relaxed) {
                        found += poll();
                        polls.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                    }
                    found
                })
            })
            .collect();
        // Waits until the other threads have polled several times before the scope polls.
        let meanwhile = || {
            let before = polls.load(Ordering::Relaxed);
            eventually("polls of others", || {
                (polls.load(Ordering::Relaxed) > before + 3 * POLLERS).then_some(())
            });
        };
        let outcome = (0..ROUNDS).try_for_each(|round| round_of(pair, &there, round, &meanwhile));
        over.store(true, Ordering::Relaxed);
        let found: usize = pollers.into_iter().map(|it| it.join().unwrap()).sum();
        outcome.unwrap();
        assert_eq!(found, 0, "nothing was theirs");
    });
    assert_eq!(pair.left.state().unwrap(), QueuePairState::ReadyToSend);
}

fn round_of(pair: &Pair, there: &ExposedMemory, round: u8, meanwhile: &impl Fn()) -> Result<()> {
    let source = pattern(&pair.domain, 8, round);
    let mut target = pair.domain.allocate(8)?;
    let mut message = pair.domain.allocate(8)?;
    let mut sends = pair.right.send_queue();
    pair.left.scope(MAX_WAIT, |scope| {
        let place = there.remote().slice(..8)?;
        let received = scope.post_receive(message.as_slice_mut())?;
        sends.post(SendRequest::send(pattern(&pair.domain, 8, round ^ 0x55)))?;
        // The handle of this request is dropped, so only the end of the scope waits for it.
        drop(scope.post(SendRequest::write(source.as_slice(), place))?);
        let read = scope.post(SendRequest::read(target.as_slice_mut(), place))?;
        meanwhile();
        read.wait()?;
        received.wait()?;
        Ok::<(), Error>(())
    })??;
    assert_eq!(target[..], bytes(8, round));
    assert_eq!(message[..], bytes(8, round ^ 0x55));
    sends.complete(&completion(pair.right.send_completions()));
    Ok(())
}

fn poll(queue: &CompletionQueue) -> usize {
    let mut room = [WorkCompletion::default(); 4];
    queue.poll(&mut room).unwrap().len()
}

#[test]
fn a_scope_works_beside_threads_that_poll() {
    let context = context();
    let queue = context.completion_queue(64).build().unwrap();
    scopes_beside(&pair_on(&context, &queue), &|| poll(&queue));
}

#[test]
fn a_scope_works_beside_threads_that_poll_a_queue_with_a_channel() {
    let context = context();
    let channel = context.completion_channel().unwrap();
    let queue = context.completion_queue(64).channel(&channel);
    let queue = queue.build().unwrap();
    scopes_beside(&pair_on(&context, &queue), &|| poll(&queue));
}

#[test]
fn a_scope_works_beside_threads_that_go_through_an_extended_queue() {
    let context = context();
    let queue = context.completion_queue(64);
    let queue = queue.extended(CompletionFields::STANDARD).build().unwrap();
    scopes_beside(&pair_on(&context, queue.queue()), &|| {
        let mut found = 0;
        // The poll fails if another thread is iterating over the entries.
        let _ = queue.poll(|completions| {
            while completions.next().is_some() {
                found += 1;
            }
        });
        found
    });
}

/// Checks that a loop that polls for all queue pairs of a completion queue gets the completions of
/// its own requests while a scope of another thread exists.
#[test]
fn pollers_get_their_own_completions_beside_a_scope() {
    let context = context();
    let queue = context.completion_queue(512).build().unwrap();
    let (pair, other) = (pair_on(&context, &queue), pair_on(&context, &queue));
    let there = exposed(&other.domain, 8, AccessFlags::REMOTE);
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        let server = threads.spawn(|| {
            let mut sends = other.left.send_queue::<Buffer>();
            let mut served = 0;
            while !over.load(Ordering::Relaxed) {
                let source = pattern(&other.domain, 8, 1);
                sends
                    .post(SendRequest::write(source, there.remote()))
                    .unwrap();
                assert_eq!(sends.complete(&completion(&queue)).count(), 1);
                served += 1;
            }
            served
        });
        let place = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let outcome = (0..ROUNDS).try_for_each(|round| round_of(&pair, &place, round, &|| ()));
        over.store(true, Ordering::Relaxed);
        assert!(server.join().unwrap() > 0);
        outcome.unwrap();
    });
    assert_eq!(poll(&queue), 0);
}

/// Checks code of the same thread that polls during the scope, such as a callback.
#[test]
fn a_completion_polled_within_the_scope_is_delivered_to_it() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 1);
    pair.left
        .scope(MAX_WAIT, |scope| {
            let request = SendRequest::write(source.as_slice(), there.remote());
            let write = scope.post(request).unwrap();
            eventually("the completion", || {
                let found = poll(pair.left.send_completions());
                assert_eq!(found, 0, "it is the scope's");
                // The scope learns that the request has completed without polling.
                write.is_over().unwrap().then_some(())
            });
            write.wait().unwrap();
        })
        .unwrap();
}
