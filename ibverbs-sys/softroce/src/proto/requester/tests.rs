use crate::proto::testing::{Pair, pattern};
use crate::proto::{CompletionStatus, Service};

const DONE: CompletionStatus = CompletionStatus::Success;

#[test]
fn messages_arrive_whole_and_in_order() {
    let mut pair = Pair::new(Service::ReliableConnection);
    let lengths = [0, 1, 255, 256, 257, 100_000];
    let mut keys = Vec::new();
    for (id, length) in lengths.into_iter().enumerate() {
        keys.push(pair.b.machine.post_receive(id as u64 + 10, 100_000));
        pair.a.post_send(id as u64, pattern(length));
    }
    pair.run();
    let ids = 0..lengths.len() as u64;
    assert!(
        pair.a
            .machine
            .ends()
            .into_iter()
            .eq(ids.clone().map(|id| (id, DONE)))
    );
    let received = pair.b.machine.receive_ends();
    assert!(received.into_iter().eq(ids.map(|id| (id + 10, DONE))));
    for (key, length) in keys.into_iter().zip(lengths) {
        assert_eq!(pair.b.machine.bytes(key)[..length], pattern(length));
    }
}
