//! Tests of memory windows that are invalidated while a peer process copies bytes from or to their
//! memory. Two NICs in one process are peers of each other. The tests hold a lane, the record of a
//! memory access, so that one NIC believes that the other is copying.

use super::*;
use crate::memory::{Peers, RegionAttributes, Span, WindowKind};
use crate::proto::{AccessFlags, WindowBinding};
use crate::same_host::Link;

/// Timeout for operations that must not wait until a peer has finished copying. The timeout is long
/// enough for a busy machine, and shorter than the maximum time that such a wait would take.
const SOON: Duration = Duration::from_secs(10);

const LENGTH: u64 = 4096;

/// Two NICs with two connections between them, and the link (shared memory) by which the second NIC
/// accesses the first.
struct Pairs {
    a: Host,
    b: Host,
    others: (Host, Host),
    link: Arc<Link>,
}

fn pairs() -> Pairs {
    let (a, b) = (open(Config::default()), open(Config::default()));
    let host = |nic| Host::new(nic, Service::ReliableConnection, 0);
    let (a, b, others) = (host(&a), host(&b), (host(&a), host(&b)));
    for (one, other) in [(&a, &b), (&others.0, &others.1)] {
        // A long timeout: responses may take seconds, and no packet must be sent again.
        one.connect_with(other, 20);
        other.connect_with(one, 20);
    }
    a.nic.begin_handshake(&a.queue_pair);
    let end = Instant::now() + LOST_TIMEOUT;
    let link = loop {
        let (path, number) = b.queue_pair.peer().unwrap();
        if let Some(link) = b.nic.network.link(&path, number) {
            break link;
        }
        assert!(Instant::now() < end, "there is no link");
        nobody_polls();
    };
    Pairs { a, b, others, link }
}

impl Host {
    fn post(&self, operation: SendOperation) {
        let draft = Draft::new(77, 0, operation);
        let request = draft.finish(self.queue_pair.rules()).unwrap();
        self.queue_pair.sender().post(request).unwrap();
        self.nic.transmit(&self.queue_pair);
    }

    /// Binds a new type 2 window to a new memory region. Returns the key of the window.
    fn bind(&self) -> u32 {
        let (memory, domain) = (&self.nic.memory, self.queue_pair.domain().unwrap());
        let bytes = memory.allocate(LENGTH).unwrap();
        let attributes = RegionAttributes {
            domain,
            span: Span::device(&bytes, 0, LENGTH).unwrap(),
            start: 0,
            access: AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND,
        };
        let region = memory.register(attributes).unwrap();
        let window = memory.allocate_window(domain, WindowKind::Type2).unwrap();
        self.post(SendOperation::Bind(WindowBinding {
            window,
            key: window + 1,
            region,
            address: 0,
            length: LENGTH,
            access: AccessFlags::REMOTE_WRITE,
        }));
        assert_eq!(
            self.completions(1, nobody_polls)[0].opcode,
            CompletionOpcode::Bind
        );
        assert!(self.tells(window));
        window + 1
    }

    /// Returns whether the memory window with the key `key` is published to peer processes.
    fn tells(&self, key: u32) -> bool {
        let slot = self.nic.memory.slot(key).unwrap();
        let host_peers = self.nic.host_peers.as_ref().unwrap();
        host_peers.is_published(slot)
    }

    /// Returns `true` if no request has completed. Panics if one has.
    fn is_waiting(&self) -> bool {
        self.queue.poll(1, |entry| panic!("{entry:?}")) == 0
    }
}

impl Pairs {
    /// Checks that the other connection between the same NICs still works, whichever thread
    /// receives.
    fn others_are_undisturbed(&self) {
        let begin = Instant::now();
        let (from, to) = &self.others;
        for number in 0..10 {
            to.post_receives(1);
            from.send(number, None);
            let poll = || {
                from.nic.progress();
                to.nic.progress();
            };
            assert_eq!(numbers(&to.completions(1, poll)), [number]);
            from.completions(1, poll);
        }
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    }
}

#[test]
fn a_copy_delays_only_the_local_invalidation() {
    let pairs = pairs();
    let (a, b) = (&pairs.a, &pairs.b);
    let key = a.bind();
    b.post_receives(1);
    let lane = pairs.link.hold_lane();
    let begin = Instant::now();
    a.post(SendOperation::LocalInvalidate { key });
    a.send(5, None);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    pairs.others_are_undisturbed();
    assert!(!a.tells(key) && a.is_waiting() && b.is_waiting());
    drop(lane);
    // Waits without polling, so that only the engine receives.
    let done = a.completions(2, nobody_polls);
    assert_eq!(done[0].opcode, CompletionOpcode::LocalInvalidate);
    assert_eq!(numbers(&b.completions(1, nobody_polls)), [5]);
    // The window must not be published, because it is not bound any more.
    assert!(!a.tells(key));
    a.post(SendOperation::LocalInvalidate { key });
    let end = Instant::now() + LOST_TIMEOUT;
    let mut status = None;
    while status.is_none() {
        assert!(Instant::now() < end, "no completion");
        a.queue
            .poll(1, |entry| status = Some(entry.completion.status));
    }
    assert_eq!(status, Some(CompletionStatus::MemoryWindowBind));
}

#[test]
fn a_copy_delays_only_the_invalidation_of_the_peer() {
    let pairs = pairs();
    let (a, b) = (&pairs.a, &pairs.b);
    let key = a.bind();
    a.post_receives(2);
    let lane = pairs.link.hold_lane();
    b.post(SendOperation::Send {
        immediate: None,
        invalidate: Some(key),
    });
    b.send(6, None);
    let end = Instant::now() + LOST_TIMEOUT;
    while a.tells(key) {
        assert!(Instant::now() < end, "the message does not come");
        nobody_polls();
    }
    pairs.others_are_undisturbed();
    assert!(a.is_waiting() && b.is_waiting());
    drop(lane);
    let done = a.completions(2, nobody_polls);
    assert_eq!(done[0].invalidated, Some(key));
    assert_eq!(numbers(&done[1..]), [6]);
    b.completions(2, nobody_polls);
    assert!(!a.tells(key));
}

/// Checks that a window stays bound if its invalidation is flushed before it was executed.
#[test]
fn a_flushed_invalidation_has_no_effect() {
    let pairs = pairs();
    let a = &pairs.a;
    let key = a.bind();
    let _lane = pairs.link.hold_lane();
    a.post(SendOperation::LocalInvalidate { key });
    assert!(!a.tells(key) && a.is_waiting());
    let values = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_ERR,
        ..ibv_qp_attr::default()
    };
    a.modify(
        &values,
        pairs.b.address(),
        &[ibv_qp_attr_mask::IBV_QP_STATE],
    );
    let mut status = Vec::new();
    a.queue
        .poll(2, |entry| status.push(entry.completion.status));
    assert_eq!(status, [CompletionStatus::Flushed]);
    assert!(a.tells(key));
    pairs.others_are_undisturbed();
}
