//! Failed queue pairs, and objects that are dropped in every order.

mod common;

use common::{Pair, completion, context, expose, nobody, pattern, until_failed};
use rdma_core::memory::SharedBuffer;
use rdma_core::{
    AccessFlags, Buffer, Context, ExposedMemory, FrozenBuffer, ProtectionDomain, QueuePair,
    SendRequest, WorkStatus,
};

#[test]
fn failing_flushes_every_request_and_gives_its_memory_back() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let remote = nobody(prepared.endpoint());
    let pair = prepared.connect(&remote, &Default::default()).unwrap();
    let frozen = pattern(&domain, 8, 1).freeze();
    let mut sends = pair.send_queue::<FrozenBuffer>();
    let mut receives = pair.receive_queue::<Buffer>();
    for _ in 0..5 {
        sends
            .post(SendRequest::send(frozen.clone()).unsignaled())
            .unwrap();
        receives.post(domain.allocate(8).unwrap()).unwrap();
    }
    pair.fail().unwrap();
    let (mut sent, mut received) = (0, 0);
    while sent < 5 || received < 5 {
        let flushed = completion(pair.send_completions());
        assert_eq!(flushed.status(), WorkStatus::Flushed, "{flushed:?}");
        sent += sends.complete(&flushed).count();
        received += usize::from(receives.complete(&flushed).is_some());
    }
    assert_eq!((sends.in_flight(), receives.in_flight()), (0, 0));
    assert!(frozen.thaw().is_ok());
    until_failed(&pair);
}

#[test]
fn what_is_posted_to_a_failed_queue_pair_is_flushed() {
    let pair = Pair::new();
    pair.left.fail().unwrap();
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    let flushed = completion(pair.left.send_completions());
    assert_eq!(flushed.status(), WorkStatus::Flushed);
    assert_eq!(sends.complete(&flushed).count(), 1);
    let mut receives = pair.left.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    // Linux's Soft-RoCE flushes a receive only when the program modifies the queue pair.
    pair.left.fail().expect("to fail twice is no error");
    let flushed = completion(pair.left.receive_completions());
    assert_eq!(flushed.status(), WorkStatus::Flushed);
    assert!(receives.complete(&flushed).is_some());
}

/// All objects that a program holds for a queue pair with requests in flight.
struct Objects {
    context: Option<Context>,
    domain: Option<ProtectionDomain>,
    pair: Option<QueuePair>,
    sends: Option<rdma_core::SendQueue<Buffer>>,
    receives: Option<rdma_core::queue_pair::ConcurrentReceiveQueue<Buffer>>,
    exposed: Option<ExposedMemory>,
}

impl Objects {
    fn new() -> Self {
        let context = context();
        let domain = context.protection_domain().unwrap();
        let prepared = domain.queue_pair().build().unwrap();
        let remote = nobody(prepared.endpoint());
        let pair = prepared.connect(&remote, &Default::default()).unwrap();
        let exposed = domain.allocate(64).unwrap().expose(AccessFlags::REMOTE);
        let mut sends = pair.send_queue();
        let receives = pair.concurrent_receive_queue();
        for _ in 0..3 {
            sends
                .post(SendRequest::send(pattern(&domain, 64, 1)))
                .unwrap();
            receives.post(domain.allocate(64).unwrap()).unwrap();
        }
        Self {
            context: Some(context),
            domain: Some(domain),
            pair: Some(pair),
            sends: Some(sends),
            receives: Some(receives),
            exposed: Some(exposed.unwrap()),
        }
    }

    fn drop_one(&mut self, which: usize) {
        match which {
            0 => drop(self.context.take()),
            1 => drop(self.domain.take()),
            2 => drop(self.pair.take()),
            3 => drop(self.sends.take()),
            4 => drop(self.receives.take()),
            _ => drop(self.exposed.take()),
        }
    }
}

/// Returns all orders of `count` elements.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in orders(count - 1) {
        for at in 0..count {
            let mut order = shorter.clone();
            order.insert(at, count - 1);
            all.push(order);
        }
    }
    all
}

#[test]
fn objects_with_requests_in_flight_are_dropped_in_any_order() {
    // Of the 720 orders of context, domain, queue pair, two queues and memory, every seventh is
    // tested.
    for order in orders(6).into_iter().step_by(7) {
        let mut objects = Objects::new();
        for which in order {
            objects.drop_one(which);
        }
    }
}

#[test]
fn memory_outlives_everything_it_was_made_from() {
    let pair = Pair::new();
    let mut buffer = pair.domain.allocate(8).unwrap();
    let shared = SharedBuffer::new(pair.domain.allocate(8).unwrap());
    let claim = shared.try_read(..).unwrap();
    let frozen = pattern(&pair.domain, 8, 1).freeze();
    let part = frozen.slice(2..4).unwrap();
    drop((pair, shared, frozen));
    buffer.fill(1);
    assert_eq!(claim[..], [0; 8]);
    assert_eq!(part[..], common::bytes(8, 1)[2..4]);
    let exposed = expose(buffer, AccessFlags::REMOTE);
    assert_eq!(exposed.load_u8(0), Ok(1));
}

#[test]
fn completions_outlive_their_queue_pair_and_complete_nothing_else() {
    let context = context();
    let domain = context.protection_domain().unwrap();
    let queue = context.completion_queue(64).build().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
    let pair = Pair::in_domain(&domain, configure, &Default::default());
    let mut sends = pair.left.send_queue();
    pair.left.fail().unwrap();
    sends
        .post(SendRequest::send(pattern(&domain, 8, 1)))
        .unwrap();
    let late = completion(&queue);
    drop((sends, pair));
    let pair = Pair::in_domain(&domain, configure, &Default::default());
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 8, 2)))
        .unwrap();
    assert_eq!(sends.complete(&late).count(), 0);
    assert_eq!(sends.in_flight(), 1);
    let concurrent = pair.left.concurrent_send_queue::<Buffer>();
    assert!(concurrent.complete(&late).next().is_none());
    assert!(concurrent.complete(&Default::default()).next().is_none());
}

#[test]
fn everything_can_be_sent_to_and_used_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Context>();
    shared::<ProtectionDomain>();
    shared::<QueuePair>();
    shared::<rdma_core::PreparedQueuePair>();
    shared::<rdma_core::CompletionQueue>();
    shared::<rdma_core::CompletionChannel>();
    shared::<rdma_core::SendQueue<Buffer>>();
    shared::<rdma_core::ReceiveQueue<Buffer>>();
    shared::<rdma_core::queue_pair::ConcurrentSendQueue<Buffer>>();
    shared::<rdma_core::queue_pair::ConcurrentReceiveQueue<Buffer>>();
    shared::<Buffer>();
    shared::<FrozenBuffer>();
    shared::<SharedBuffer>();
    shared::<ExposedMemory>();
    shared::<rdma_core::Error>();
}
