//! Compare-and-swap and fetch-and-add.

mod common;

use common::{Pair, carry_out, exposed};
use rdma_core::{AccessFlags, Buffer, Error, ExposedMemory, SendRequest, WorkOpcode};

fn counter(pair: &Pair, value: u64) -> ExposedMemory {
    let exposed = exposed(&pair.domain, 24, AccessFlags::REMOTE_ATOMIC);
    exposed.store_u64(8, value).unwrap();
    exposed
}

fn number(memory: &Buffer) -> u64 {
    u64::from_ne_bytes(memory[..].try_into().unwrap())
}

#[test]
fn compare_and_swap_swaps_if_equal_and_returns_the_previous_value() {
    let pair = Pair::new();
    let counter = counter(&pair, 7);
    let remote = counter.remote().slice(8..16).unwrap();
    let mut sends = pair.left.send_queue();
    let room = pair.domain.allocate(8).unwrap();
    let swap =
        |room, expected, desired| SendRequest::compare_and_swap(room, remote, expected, desired);
    let room = carry_out(&pair.left, &mut sends, swap(room, 7, u64::MAX - 5));
    assert_eq!(number(&room), 7);
    assert_eq!(counter.load_u64(8).unwrap(), u64::MAX - 5);
    let room = carry_out(&pair.left, &mut sends, swap(room, 7, 1));
    assert_eq!(number(&room), u64::MAX - 5, "the other value is told");
    assert_eq!(counter.load_u64(8).unwrap(), u64::MAX - 5, "and stays");
    assert_eq!(
        (counter.load_u64(0).unwrap(), counter.load_u64(16).unwrap()),
        (0, 0)
    );
}

#[test]
fn fetch_and_add_adds_and_wraps() {
    let pair = Pair::new();
    let counter = counter(&pair, 40);
    let remote = counter.remote().slice(8..16).unwrap();
    let mut sends = pair.left.send_queue();
    let mut room = pair.domain.allocate(8).unwrap();
    for (add, before, after) in [(2, 40, 42), (u64::MAX - 41, 42, 0), (u64::MAX, 0, u64::MAX)] {
        room = carry_out(
            &pair.left,
            &mut sends,
            SendRequest::fetch_and_add(room, remote, add),
        );
        assert_eq!(number(&room), before);
        assert_eq!(counter.load_u64(8).unwrap(), after);
    }
}

#[test]
fn completions_contain_the_type_of_the_atomic() {
    let pair = Pair::new();
    let counter = counter(&pair, 0);
    let remote = counter.remote().slice(8..16).unwrap();
    let mut sends = pair.left.send_queue();
    let room = || pair.domain.allocate(8).unwrap();
    sends
        .post(SendRequest::compare_and_swap(room(), remote, 0, 1))
        .unwrap();
    sends
        .post(SendRequest::fetch_and_add(room(), remote, 1))
        .unwrap();
    for opcode in [WorkOpcode::CompareAndSwap, WorkOpcode::FetchAndAdd] {
        let completion = common::succeed(pair.left.send_completions());
        assert_eq!(completion.opcode(), opcode);
    }
}

#[test]
fn atomics_of_both_ends_do_not_get_lost() {
    let pair = Pair::new();
    let counter = counter(&pair, 0);
    let remote = counter.remote().slice(8..16).unwrap();
    let (mut left, mut right) = (pair.left.send_queue(), pair.right.send_queue());
    for _ in 0..50 {
        for queue in [&mut left, &mut right] {
            let room = pair.domain.allocate(8).unwrap();
            queue
                .post(SendRequest::fetch_and_add(room, remote, 1))
                .unwrap();
        }
    }
    let mut seen = Vec::new();
    for (pair, queue) in [(&pair.left, &mut left), (&pair.right, &mut right)] {
        for _ in 0..50 {
            let completion = common::succeed(pair.send_completions());
            seen.extend(queue.complete(&completion).map(|room| number(&room)));
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>());
    assert_eq!(counter.load_u64(8).unwrap(), 100);
}

#[test]
fn a_misaligned_atomic_is_refused() {
    let pair = Pair::new();
    let counter = counter(&pair, 5);
    let mut sends = pair.left.send_queue();
    for offset in [4, 9, 15] {
        let remote = counter.remote().slice(offset..).unwrap();
        let room = pair.domain.allocate(8).unwrap();
        let request = SendRequest::fetch_and_add(room, remote, 1);
        let refused = sends.post(request).unwrap_err();
        assert!(
            matches!(refused.error, Error::InvalidArgument { .. }),
            "{refused:?}"
        );
    }
    assert_eq!((counter.load_u64(8).unwrap(), sends.in_flight()), (5, 0));
    pair.check();
}

#[test]
fn an_atomic_needs_eight_bytes_of_memory() {
    let pair = Pair::new();
    let counter = counter(&pair, 5);
    let remote = counter.remote().slice(8..16).unwrap();
    let mut sends = pair.left.send_queue();
    for len in [1, 7, 9, 16] {
        let room = pair.domain.allocate(len).unwrap();
        let request = SendRequest::compare_and_swap(room, remote, 5, 6);
        let refused = sends.post(request).unwrap_err();
        assert!(
            matches!(refused.error, Error::InvalidArgument { .. }),
            "{refused:?}"
        );
        assert_eq!(refused.memory.len(), len);
    }
    assert_eq!(counter.load_u64(8).unwrap(), 5);
}
