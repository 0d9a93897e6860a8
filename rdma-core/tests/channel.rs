//! Completion channels: requesting notifications, waiting, draining, and several queues on a
//! channel.

mod common;

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use common::{Pair, bytes, context, eventually, pattern, succeed};
use rdma_core::completion::CompletionQueueId;
use rdma_core::{
    CompletionChannel, CompletionQueue, ConnectOptions, Error, SendRequest, WorkCompletion,
};

const LONG: Option<Duration> = Some(Duration::from_secs(60));

/// Returns a pair whose right side receives into a completion queue with a channel.
fn announced() -> (Pair, CompletionChannel, CompletionQueue) {
    let context = context();
    let channel = context.completion_channel().unwrap();
    let queue = context
        .completion_queue(256)
        .channel(&channel)
        .build()
        .unwrap();
    let domain = context.protection_domain().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| builder.receive_completions(&queue);
    let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
    (pair, channel, queue)
}

fn drained(channel: &CompletionChannel) -> Vec<CompletionQueueId> {
    let mut ids = Vec::new();
    let count = channel.drain(|id| ids.push(id)).unwrap();
    assert_eq!(count, ids.len());
    ids
}

#[test]
fn events_are_taken_one_by_one() {
    let (pair, channel, queue) = announced();
    assert_eq!(channel.next_event().unwrap(), None);
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for seed in 0..3 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        queue.request_notification().unwrap();
        sends
            .post(SendRequest::send(pattern(&pair.domain, 8, seed)))
            .unwrap();
        assert!(channel.wait(LONG).unwrap(), "announced");
        assert_eq!(channel.next_event().unwrap(), Some(queue.id()));
        assert_eq!(channel.next_event().unwrap(), None);
        drop(receives.complete(&succeed(&queue)));
        drop(sends.complete(&succeed(pair.left.send_completions())));
    }
}

#[test]
fn a_notification_request_produces_one_event() {
    let (pair, channel, queue) = announced();
    assert!(!channel.wait(Some(Duration::ZERO)).unwrap());
    assert!(drained(&channel).is_empty());
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for seed in 0..20 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        queue.request_notification().unwrap();
        sends
            .post(SendRequest::send(pattern(&pair.domain, 8, seed)))
            .unwrap();
        assert!(channel.wait(LONG).unwrap(), "announced");
        assert_eq!(drained(&channel), [queue.id()]);
        let received = receives.complete(&succeed(&queue)).unwrap();
        assert_eq!(received[..], bytes(8, seed));
        drop(sends.complete(&succeed(pair.left.send_completions())));
    }
    assert!(drained(&channel).is_empty());
}

#[test]
fn without_a_notification_request_there_is_no_event() {
    let (pair, channel, queue) = announced();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    succeed(&queue);
    assert!(!channel.wait(Some(Duration::from_millis(20))).unwrap());
}

#[test]
fn a_solicited_notification_needs_a_solicited_message() {
    let (pair, channel, queue) = announced();
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for _ in 0..2 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    queue.request_solicited_notification().unwrap();
    let message = || SendRequest::send(pattern(&pair.domain, 8, 1));
    sends.post(message()).unwrap();
    succeed(&queue);
    assert!(!channel.wait(Some(Duration::from_millis(20))).unwrap());
    sends.post(message().solicited()).unwrap();
    succeed(&queue);
    assert!(channel.wait(LONG).unwrap());
    assert_eq!(drained(&channel), [queue.id()]);
}

#[test]
fn arming_before_the_last_poll_misses_no_completion() {
    const MESSAGES: usize = 1000;
    let (pair, channel, queue) = announced();
    let mut receives = pair.right.receive_queue();
    for _ in 0..16 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    let domain = pair.domain.clone();
    let left = pair.left.clone();
    let sender = std::thread::spawn(move || {
        let mut sends = left.send_queue();
        let mut memory = domain.allocate(8).unwrap();
        for number in 0..MESSAGES as u64 {
            memory.copy_from_slice(&number.to_ne_bytes());
            memory = common::carry_out(&left, &mut sends, SendRequest::send(memory));
        }
    });
    let mut room = [WorkCompletion::default(); 4];
    let mut numbers = Vec::new();
    while numbers.len() < MESSAGES {
        queue.request_notification().unwrap();
        let mut idle = true;
        loop {
            let completions = queue.poll(&mut room).unwrap();
            if completions.is_empty() {
                break;
            }
            idle = false;
            for completion in completions {
                completion.result().unwrap();
                let memory = receives.complete(completion).unwrap();
                numbers.push(u64::from_ne_bytes(memory[..].try_into().unwrap()));
                receives.post(memory).unwrap();
            }
        }
        if idle {
            assert!(channel.wait(LONG).unwrap(), "{} arrived", numbers.len());
        }
        drained(&channel);
    }
    sender.join().unwrap();
    assert_eq!(numbers, (0..MESSAGES as u64).collect::<Vec<_>>());
}

#[test]
fn events_identify_the_queues_of_one_channel() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let channel = context.completion_channel().unwrap();
    let queue = || {
        context
            .completion_queue(16)
            .channel(&channel)
            .build()
            .unwrap()
    };
    let queues = [queue(), queue(), queue()];
    let pairs = queues.each_ref().map(|queue| {
        let configure = |builder: rdma_core::QueuePairBuilder| builder.send_completions(queue);
        Pair::in_domain(&domain, configure, &ConnectOptions::default())
    });
    for queue in &queues {
        queue.request_notification().unwrap();
    }
    let mut sends = pairs.each_ref().map(|pair| pair.left.send_queue());
    for (index, sends) in sends.iter_mut().enumerate() {
        if index != 1 {
            let nowhere = rdma_core::RemoteMemory {
                address: 0,
                len: 0,
                rkey: 0,
            };
            sends.post(SendRequest::write((), nowhere)).unwrap();
        }
    }
    let mut seen = HashMap::new();
    eventually("two announcements", || {
        channel.wait(LONG).unwrap();
        channel
            .drain(|id| *seen.entry(id).or_insert(0) += 1)
            .unwrap();
        (seen.values().sum::<i32>() >= 2).then_some(())
    });
    assert_eq!(
        seen,
        HashMap::from([(queues[0].id(), 1), (queues[2].id(), 1)])
    );
}

#[test]
fn a_queue_can_be_dropped_while_its_event_is_processed() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let channel = context.completion_channel().unwrap();
    let mut objects = HashMap::new();
    for _ in 0..2 {
        let queue = context
            .completion_queue(16)
            .channel(&channel)
            .build()
            .unwrap();
        let configure = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
        let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
        queue.request_notification().unwrap();
        let nowhere = rdma_core::RemoteMemory {
            address: 0,
            len: 0,
            rkey: 0,
        };
        pair.left
            .send_queue()
            .post(SendRequest::write((), nowhere))
            .unwrap();
        objects.insert(queue.id(), (pair, queue));
    }
    eventually("both announcements", || {
        channel.wait(LONG).unwrap();
        channel.drain(|id| drop(objects.remove(&id))).unwrap();
        objects.is_empty().then_some(())
    });
}

#[test]
fn a_queue_can_be_dropped_with_a_pending_event() {
    let (pair, channel, queue) = announced();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    queue.request_notification().unwrap();
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    assert!(channel.wait(LONG).unwrap());
    drop((receives, sends, pair, queue));
    assert!(
        drained(&channel).is_empty(),
        "the announcement is gone with the queue"
    );
}

#[test]
fn arming_needs_a_channel() {
    let queue = context().completion_queue(4).build().unwrap();
    let error = queue.request_notification().unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    assert!(context().completion_queue(0).build().is_err());
    assert!(queue.capacity() >= 4);
}

/// Receives `messages` messages. Polls for the duration `spin` (for ever if `spin` is very long,
/// not at all for `None`), and then requests a notification and sleeps until an event arrives.
/// Returns how often the thread slept.
fn receive_numbers(spin: Option<Duration>, messages: u64) -> usize {
    let (pair, channel, queue) = announced();
    let mut receives = pair.right.receive_queue();
    for _ in 0..16 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    let (domain, left) = (pair.domain.clone(), pair.left.clone());
    let sender = std::thread::spawn(move || {
        let mut sends = left.send_queue();
        let mut memory = domain.allocate(8).unwrap();
        for number in 0..messages {
            if number % 50 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            memory.copy_from_slice(&number.to_ne_bytes());
            memory = common::carry_out(&left, &mut sends, SendRequest::send(memory));
        }
    });
    let mut room = [WorkCompletion::default(); 4];
    let (mut expected, mut sleeps) = (0, 0);
    let (mut since, mut armed) = (Instant::now(), false);
    while expected < messages {
        let completions = queue.poll(&mut room).unwrap();
        for completion in completions {
            completion.result().unwrap();
            let memory = receives.complete(completion).unwrap();
            assert_eq!(memory[..], expected.to_ne_bytes());
            receives.post(memory).unwrap();
            expected += 1;
        }
        if !completions.is_empty() {
            since = Instant::now();
        } else if armed {
            assert!(readable(&channel), "{expected} arrived");
            drained(&channel);
            (since, armed) = (Instant::now(), false);
            sleeps += 1;
        } else if spin.is_none_or(|spin| since.elapsed() >= spin) {
            // Completions before the request produce no event, so the queue is polled once more.
            queue.request_notification().unwrap();
            armed = true;
        }
    }
    sender.join().unwrap();
    sleeps
}

/// Waits until the channel's descriptor is readable, as an event loop does.
fn readable(channel: &CompletionChannel) -> bool {
    let mut entry = libc::pollfd {
        fd: channel.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to one valid entry.
    let count = unsafe { libc::poll(&mut entry, 1, 60_000) };
    count == 1 && entry.revents == libc::POLLIN
}

#[test]
fn polling_sleeping_and_both_in_turn_see_every_completion() {
    let never = Some(Duration::from_secs(3600));
    assert_eq!(receive_numbers(never, 200), 0);
    assert!(receive_numbers(None, 200) > 0);
    let hybrid = receive_numbers(Some(Duration::from_micros(50)), 200);
    println!("slept {hybrid} times of 200 messages");
}

#[test]
fn the_descriptor_does_not_block() {
    let channel = context().completion_channel().unwrap();
    assert_eq!(channel.as_fd().as_raw_fd(), channel.as_raw_fd());
    // SAFETY: the call only reads the flags of the descriptor.
    let flags = unsafe { libc::fcntl(channel.as_raw_fd(), libc::F_GETFL) };
    assert_ne!(flags & libc::O_NONBLOCK, 0);
    assert!(drained(&channel).is_empty());
}

#[test]
fn announcements_of_many_queues_are_taken_at_once() {
    const QUEUES: usize = 40;
    let context = context();
    let domain = context.protection_domain().unwrap();
    let channel = context.completion_channel().unwrap();
    let pairs: Vec<_> = (0..QUEUES)
        .map(|_| {
            let queue = context.completion_queue(16).channel(&channel);
            let queue = queue.build().unwrap();
            let on_it = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
            let pair = Pair::in_domain(&domain, on_it, &ConnectOptions::default());
            queue.request_notification().unwrap();
            (pair, queue)
        })
        .collect();
    let nowhere = rdma_core::RemoteMemory {
        address: 0,
        len: 0,
        rkey: 0,
    };
    let mut sends: Vec<_> = pairs
        .iter()
        .map(|(pair, _)| pair.left.send_queue())
        .collect();
    for sends in &mut sends {
        sends.post(SendRequest::write((), nowhere)).unwrap();
    }
    let mut ids = Vec::new();
    eventually("all announcements", || {
        channel.drain(|id| ids.push(id)).unwrap();
        (ids.len() >= QUEUES).then_some(())
    });
    for (_, queue) in &pairs {
        assert_eq!(ids.iter().filter(|&&id| id == queue.id()).count(), 1);
    }
    assert_eq!(ids.len(), QUEUES);
}
