//! Queues whose requests are unsignaled, and that they go on.

mod common;

use common::{Pair, bytes, exposed, pattern, succeed};
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, Error, ExposedMemory, QueuePairBuilder, SendQueue,
    SendRequest, WorkCompletion,
};

fn pairs(requests: u32) -> [Pair; 2] {
    let ways: [fn(QueuePairBuilder) -> QueuePairBuilder; 2] =
        [|builder| builder, |builder| builder.extended_posting()];
    ways.map(|way| {
        Pair::with(
            |builder| way(builder.send_requests(requests).inline_data(8)),
            &ConnectOptions::default(),
        )
    })
}

fn unsignaled(pair: &Pair, there: &ExposedMemory, seed: u8) -> SendRequest<Buffer> {
    SendRequest::write(pattern(&pair.domain, 8, seed), there.remote()).unsignaled()
}

/// The memory of what completes with the next completion.
fn retired(pair: &Pair, sends: &mut SendQueue<Buffer>) -> Vec<Buffer> {
    let completion = succeed(pair.left.send_completions());
    sends.complete(&completion).collect()
}

fn nothing_completes(pair: &Pair) {
    let mut room = [WorkCompletion::default()];
    assert!(
        pair.left
            .send_completions()
            .poll(&mut room)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_queue_that_never_signals_goes_on() {
    for capacity in [1, 2, 5] {
        for pair in pairs(capacity) {
            let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
            let mut sends = pair.left.send_queue();
            for round in 0..10 {
                for seed in 0..capacity as u8 {
                    sends.post(unsignaled(&pair, &there, round + seed)).unwrap();
                }
                let refused = sends.post(unsignaled(&pair, &there, 0)).unwrap_err();
                assert!(matches!(refused.error, Error::QueueFull { .. }));
                // The last one that fit was signaled, and completes those before it.
                let all = retired(&pair, &mut sends);
                assert_eq!(all.len(), capacity as usize);
                for (seed, memory) in (0..).zip(all) {
                    assert_eq!(memory[..], bytes(8, round + seed));
                }
                nothing_completes(&pair);
            }
        }
    }
}

#[test]
fn a_batch_that_never_signals_goes_on() {
    for pair in pairs(6) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        for _ in 0..10 {
            for _ in 0..2 {
                let mut batch = sends.batch();
                for seed in 0..2 {
                    batch.push(unsignaled(&pair, &there, seed)).unwrap();
                }
                batch
                    .push_inline(SendRequest::write(&[1; 8], there.remote()).unsignaled())
                    .unwrap();
                assert_eq!(batch.post().unwrap(), 3);
            }
            assert_eq!(retired(&pair, &mut sends).len(), 4, "two have no memory");
            assert_eq!(sends.in_flight(), 0);
        }
        nothing_completes(&pair);
    }
}

#[test]
fn a_batch_that_is_not_posted_does_not_count() {
    let [pair, _] = pairs(4);
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    for _ in 0..3 {
        let mut batch = sends.batch();
        for seed in 0..4 {
            batch.push(unsignaled(&pair, &there, seed)).unwrap();
        }
        drop(batch);
    }
    for seed in 0..3 {
        sends.post(unsignaled(&pair, &there, seed)).unwrap();
    }
    nothing_completes(&pair);
    sends.post(unsignaled(&pair, &there, 3)).unwrap();
    assert_eq!(retired(&pair, &mut sends).len(), 4);
}

#[test]
fn a_signaled_request_begins_the_count_anew() {
    for pair in pairs(4) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        for _ in 0..10 {
            for seed in 0..2 {
                sends.post(unsignaled(&pair, &there, seed)).unwrap();
            }
            let request = SendRequest::write(pattern(&pair.domain, 8, 2), there.remote());
            sends.post(request).unwrap();
            assert_eq!(retired(&pair, &mut sends).len(), 3);
        }
        nothing_completes(&pair);
    }
}

/// Each queue alone would leave a place for a signaled request; together they would not.
#[test]
fn queues_that_share_a_queue_pair_and_never_signal_go_on() {
    for pair in pairs(8) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut queues = vec![pair.left.send_queue()];
        // All places but one, before there is another queue.
        for seed in 0..7 {
            queues[0].post(unsignaled(&pair, &there, seed)).unwrap();
        }
        let mut posted = 7;
        queues.push(pair.left.send_queue());
        queues.push(pair.left.send_queue());
        for round in 0..300 {
            let queue = &mut queues[round % 3];
            match queue.post(unsignaled(&pair, &there, 0)) {
                Ok(()) => posted += 1,
                Err(refused) => {
                    // Full, by what this queue knows or by what the device does: something completes.
                    assert!(
                        matches!(refused.error, Error::QueueFull { .. })
                            || refused.error.errno() == Some(rdma_core::Errno(libc::ENOMEM)),
                        "{refused:?}"
                    );
                    let completion = succeed(pair.left.send_completions());
                    for queue in &mut queues {
                        drop(queue.complete(&completion));
                    }
                }
            }
        }
        assert!(posted > 100, "{posted} of 300 were posted");
    }
}
