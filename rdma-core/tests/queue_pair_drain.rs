//! Draining of queue pairs that will not be used any more.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{context, nobody, pattern};
use rdma_core::completion::CompletionFields;
use rdma_core::{
    Buffer, CompletionQueue, ConnectOptions, DatagramOptions, FrozenBuffer, ProtectionDomain,
    QueuePair, QueuePairBuilder, QueuePairState, ReceiveQueue, SendQueue, SendRequest, Transport,
    WorkCompletion, WorkStatus,
};

const MAX_WAIT: Duration = Duration::from_secs(60);

/// A queue pair whose requests in flight are never answered.
struct Stuck {
    pair: QueuePair,
    sends: SendQueue<FrozenBuffer>,
    receives: ReceiveQueue<Buffer>,
}

const REQUESTS: usize = 40;

impl Stuck {
    fn new(domain: &ProtectionDomain, kind: Transport) -> Self {
        Self::of(domain, domain.queue_pair(), kind)
    }

    fn of(domain: &ProtectionDomain, builder: QueuePairBuilder, kind: Transport) -> Self {
        let prepared = builder
            .transport(kind)
            .send_requests(64)
            .receive_requests(64);
        let prepared = prepared.build().unwrap();
        let options = ConnectOptions::default().ack_timeout_exponent(0);
        let pair = if kind == Transport::Datagram {
            prepared.activate(&DatagramOptions::default()).unwrap()
        } else {
            let remote = nobody(prepared.endpoint());
            prepared.connect(&remote, &options).unwrap()
        };
        let mut sends = pair.send_queue();
        let mut receives = pair.receive_queue();
        let memory = pattern(domain, 8, 1).freeze();
        for _ in 0..REQUESTS {
            if kind == Transport::ReliableConnected {
                let request = SendRequest::send(memory.clone());
                sends.post(request.unsignaled()).unwrap();
            }
            receives.post(domain.allocate(8).unwrap()).unwrap();
        }
        Self {
            pair,
            sends,
            receives,
        }
    }

    fn complete(&mut self, completion: &WorkCompletion) {
        assert_eq!(completion.status(), WorkStatus::Flushed, "{completion:?}");
        let sent = self.sends.complete(completion).count();
        let received = usize::from(self.receives.complete(completion).is_some());
        assert_eq!(sent + received, 1, "no marker is for the program");
    }
}

/// Polls all available completions, without waiting.
fn poll_all(queue: &CompletionQueue) -> Vec<WorkCompletion> {
    let mut all = Vec::new();
    let mut room = [WorkCompletion::default(); 8];
    loop {
        match queue.poll(&mut room).unwrap() {
            [] => return all,
            some => all.extend_from_slice(some),
        }
    }
}

#[test]
fn after_a_drain_every_request_has_completed() {
    let domain = context().protection_domain().unwrap();
    for kind in [
        Transport::ReliableConnected,
        Transport::UnreliableConnected,
        Transport::Datagram,
    ] {
        let mut stuck = Stuck::new(&domain, kind);
        stuck.pair.drain(MAX_WAIT).unwrap();
        assert_eq!(stuck.pair.state(), Ok(QueuePairState::Error));
        let completions = poll_all(stuck.pair.send_completions());
        for completion in &completions {
            stuck.complete(completion);
        }
        let (sends, receives) = (stuck.sends.in_flight(), stuck.receives.in_flight());
        assert_eq!((sends, receives), (0, 0), "{kind}");
        // A second drain, with no request in flight.
        stuck.pair.drain(MAX_WAIT).unwrap();
        assert!(poll_all(stuck.pair.send_completions()).is_empty());
    }
}

/// Drains a queue pair while another thread polls its completions without pause, and so gets most
/// of them first. Returns the completions that this thread and a poll after the drain returned.
fn drain_while_polled(
    pair: &QueuePair,
    poll: impl Fn() -> Vec<WorkCompletion> + Sync,
) -> Vec<WorkCompletion> {
    let over = AtomicBool::new(false);
    let mut seen = thread::scope(|scope| {
        let poller = scope.spawn(|| {
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                seen.extend(poll());
            }
            seen
        });
        let outcome = pair.drain(MAX_WAIT);
        over.store(true, Ordering::Relaxed);
        outcome.unwrap();
        poller.join().unwrap()
    });
    seen.extend(poll());
    seen
}

/// Checks that every request has completed, and that at most a few completions of markers were
/// seen.
fn check_flushed(stuck: &mut Stuck, seen: &[WorkCompletion]) {
    for completion in seen {
        assert_eq!(completion.status(), WorkStatus::Flushed);
        let _ = stuck.sends.complete(completion).count();
        let _ = stuck.receives.complete(completion);
    }
    let (sends, receives) = (stuck.sends.in_flight(), stuck.receives.in_flight());
    assert_eq!((sends, receives), (0, 0));
}

#[test]
fn a_drain_ends_while_others_poll() {
    let domain = context().protection_domain().unwrap();
    for _ in 0..20 {
        let mut stuck = Stuck::new(&domain, Transport::ReliableConnected);
        let queue = stuck.pair.send_completions();
        let seen = drain_while_polled(&stuck.pair, || poll_all(queue));
        check_flushed(&mut stuck, &seen);
    }
}

#[test]
fn a_drain_ends_while_others_go_through_the_entries() {
    let domain = context().protection_domain().unwrap();
    let queue = domain.context().completion_queue(256);
    let queue = queue.extended(CompletionFields::STANDARD).build().unwrap();
    let entries = || {
        let through = queue.poll(|entries| {
            let mut all = Vec::new();
            while let Some(entry) = entries.next() {
                all.push(entry.completion());
            }
            all
        });
        through.unwrap()
    };
    for plainly in [true, false] {
        for _ in 0..10 {
            let builder = domain.queue_pair().send_completions(queue.queue());
            let builder = builder.receive_completions(queue.queue());
            let mut stuck = Stuck::of(&domain, builder, Transport::ReliableConnected);
            let seen = drain_while_polled(&stuck.pair, || {
                if plainly {
                    poll_all(queue.queue())
                } else {
                    entries()
                }
            });
            check_flushed(&mut stuck, &seen);
        }
    }
}

#[test]
fn completions_of_other_queue_pairs_stay_for_their_owners() {
    let domain = context().protection_domain().unwrap();
    let queue = domain.context().completion_queue(1024).build().unwrap();
    let prepare = || {
        domain
            .queue_pair()
            .send_completions(&queue)
            .build()
            .unwrap()
    };
    let connect = |prepared: rdma_core::PreparedQueuePair| {
        let remote = nobody(prepared.endpoint());
        prepared.connect(&remote, &Default::default()).unwrap()
    };
    let (one, other) = (connect(prepare()), connect(prepare()));
    let mut receives = other.receive_queue::<Buffer>();
    for _ in 0..20 {
        receives.post(domain.allocate(8).unwrap()).unwrap();
    }
    other.fail().unwrap();
    one.drain(MAX_WAIT).unwrap();
    other.drain(MAX_WAIT).unwrap();
    let completions = poll_all(&queue);
    assert_eq!(completions.len(), 20);
    for completion in &completions {
        assert!(receives.complete(completion).is_some());
    }
}
