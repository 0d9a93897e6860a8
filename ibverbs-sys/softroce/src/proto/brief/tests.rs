use super::{Brief, Prospect, SHORT};
use crate::proto::testing::{Node, Pair, pattern, request, send};
use crate::proto::{CompletionStatus as S, Counter, SendOperation, Service, State, Time};
use crate::same_host::brief::{decode, encode};

pub(super) const RC: Service = Service::ReliableConnection;

/// Two that are connected.
pub(super) fn two() -> (Node, Node) {
    let pair = Pair::new(RC);
    (pair.a, pair.b)
}

/// A brief, as it is on its way.
#[derive(Debug, PartialEq)]
pub(super) struct Said(pub(super) [u64; 7]);

impl Said {
    pub(super) fn with<T>(&self, look: impl FnOnce(&Brief<'_>) -> T) -> T {
        let mut room = [0; SHORT];
        look(&decode(&self.0, &mut room).unwrap())
    }

    /// The same, changed.
    fn but(&self, change: impl FnOnce(&mut Brief<'_>)) -> Self {
        self.with(|brief| {
            let mut changed = *brief;
            change(&mut changed);
            Self(encode(&changed))
        })
    }

    /// The message.
    fn payload(&self) -> Option<Vec<u8>> {
        self.with(|brief| brief.message.map(|message| message.payload.to_vec()))
    }

    fn acknowledges(&self) -> bool {
        self.with(|brief| brief.acknowledged.is_some())
    }
}

pub(super) fn brief(node: &mut Node) -> Option<Said> {
    let mut room = [0; SHORT];
    let brief = (node.queue_pair).poll_brief(Time::default, &mut node.machine, &mut (), &mut room);
    brief.map(|brief| Said(encode(&brief)))
}

pub(super) fn hear(node: &mut Node, said: &Said) {
    said.with(|brief| {
        (node.queue_pair).receive_brief(Time::default(), brief, &mut node.machine, &mut ());
    });
}

/// One says something in a brief that the other hears.
fn say(from: &mut Node, to: &mut Node) -> Said {
    let said = brief(from).unwrap();
    hear(to, &said);
    said
}

#[test]
fn an_acknowledgement_goes_with_the_answer() {
    let (mut a, mut b) = two();
    let key = b.machine.post_receive(7, 64);
    a.machine.post_receive(8, 64);
    a.post_send(1, pattern(SHORT));
    let asked = say(&mut a, &mut b);
    assert_eq!((asked.acknowledges(), brief(&mut a)), (false, None));
    assert_eq!(b.machine.receive_ends(), [(7, S::Success)]);
    assert_eq!(b.machine.bytes(key)[..SHORT], pattern(SHORT));
    assert_eq!(b.queue_pair.prospect(), Prospect::Acknowledgement);
    b.post_send(2, vec![5]);
    let answered = say(&mut b, &mut a);
    assert_eq!(answered.payload(), Some(vec![5]));
    assert_eq!(b.queue_pair.prospect(), Prospect::Nothing);
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
    assert_eq!(a.machine.receive_ends(), [(8, S::Success)]);
    // There is nothing more to say but that.
    say(&mut a, &mut b);
    assert_eq!(b.machine.ends(), [(2, S::Success)]);
    assert_eq!((brief(&mut a), brief(&mut b)), (None, None));
}

#[test]
fn what_does_not_fit_goes_as_a_packet_and_in_its_place() {
    let (mut a, mut b) = two();
    for id in 0..4 {
        b.machine.post_receive(id, 64);
    }
    let key = a.machine.register(pattern(64));
    let invalidates = SendOperation::Send {
        immediate: None,
        invalidate: Some(b.machine.register(vec![0; 8])),
    };
    a.post_send(0, vec![0; 3]);
    a.post_send(1, vec![1; SHORT + 1]);
    let list = [a.machine.segment(key, 0, 8)];
    a.post(request(2, invalidates, &list));
    a.post_send(3, Vec::new());
    let now = Time::default();
    let mut ways = Vec::new();
    loop {
        if let Some(brief) = brief(&mut a) {
            ways.push("brief");
            hear(&mut b, &brief);
        } else if let Some(packet) = a.transmit(now) {
            ways.push("packet");
            b.receive(now, &packet);
        } else {
            break;
        }
    }
    assert_eq!(ways, ["brief", "packet", "packet", "brief"]);
    let all = [0, 1, 2, 3].map(|id| (id, S::Success));
    assert_eq!(b.machine.receive_ends(), all);
    say(&mut b, &mut a);
    assert_eq!(a.machine.ends(), all);
}

#[test]
fn without_a_receive_it_goes_again() {
    let (mut a, mut b) = two();
    a.queue_pair.attributes_mut().rnr_retry = 7;
    a.post_send(1, vec![9; 8]);
    say(&mut a, &mut b);
    assert_eq!(b.queue_pair.prospect(), Prospect::Urgent);
    assert_eq!(brief(&mut b), None);
    let now = Time::default();
    let refusal = b.transmit(now).unwrap();
    a.receive(now, &refusal);
    assert_eq!(a.machine.counted(Counter::ReceivedRnr), 1);
    assert_eq!(brief(&mut a), None);
    b.machine.post_receive(5, 8);
    let again = a.queue_pair.next_timeout().unwrap();
    a.queue_pair.handle_timeout(again, &mut a.machine);
    // It is a packet's turn where the time has to be looked at.
    let packet = a.transmit(again).unwrap();
    b.receive(again, &packet);
    say(&mut b, &mut a);
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
    assert_eq!(b.machine.receive_ends(), [(5, S::Success)]);
}

#[test]
fn a_gap_is_told_and_what_came_before_is_not_taken_twice() {
    let (mut a, mut b) = two();
    b.machine.post_receive(0, 8);
    b.machine.post_receive(1, 8);
    a.post_send(0, vec![0; 8]);
    a.post_send(1, vec![1; 8]);
    let (first, second) = (brief(&mut a).unwrap(), brief(&mut a).unwrap());
    hear(&mut b, &second);
    assert_eq!(b.machine.counted(Counter::OutOfSequenceRequest), 1);
    assert_eq!(b.queue_pair.prospect(), Prospect::Urgent);
    hear(&mut b, &first);
    hear(&mut b, &first);
    assert_eq!(b.machine.counted(Counter::DuplicateRequest), 1);
    assert_eq!(b.machine.receive_ends(), [(0, S::Success)]);
}

#[test]
fn what_is_for_others_is_not_taken() {
    let (mut a, mut b) = two();
    b.machine.post_receive(0, 8);
    a.post_send(0, vec![0; 8]);
    let right = brief(&mut a).unwrap();
    let wrong = [
        right.but(|brief| brief.destination += 1),
        right.but(|brief| brief.partition_key = 0x8001),
    ];
    wrong.iter().for_each(|wrong| hear(&mut b, wrong));
    for service in [
        Service::UnreliableConnection,
        Service::UnreliableDatagram,
        Service::XrcTarget,
    ] {
        let mut other = Node::ready_to_send(2, service);
        other.machine.post_receive(0, 8);
        hear(&mut other, &right);
        assert_eq!(other.machine.counted(Counter::Unaddressed), 1);
        assert_eq!(other.machine.receive_ends(), []);
    }
    assert_eq!(b.machine.counted(Counter::Unaddressed), 1);
    assert_eq!(b.machine.counted(Counter::ReceiveDropped), 1);
    assert_eq!(b.queue_pair.prospect(), Prospect::Nothing);
    b.enter(State::Error);
    hear(&mut b, &right);
    assert_eq!(b.machine.counted(Counter::Unaddressed), 2);
    assert_eq!(b.machine.receive_ends(), [(0, S::Flushed)]);
}

#[test]
fn who_fails_has_acknowledged_before() {
    let (mut a, mut b) = two();
    b.machine.post_receive(0, 8);
    a.post_send(0, vec![0; 8]);
    say(&mut a, &mut b);
    let key = b.machine.register(vec![0; 8]);
    let list = [b.machine.segment(key, 0, 8)];
    b.machine.deregister(key);
    b.post(request(1, send(), &list));
    let last = say(&mut b, &mut a);
    assert_eq!(last.payload(), None);
    assert_eq!(b.machine.ends(), [(1, S::LocalProtection)]);
    assert_eq!(a.machine.ends(), [(0, S::Success)]);
}

#[test]
fn who_fails_by_what_is_acknowledged_takes_no_message() {
    let (mut a, mut b) = two();
    a.queue_pair.attributes_mut().retry_count = 0;
    a.queue_pair.attributes_mut().shared_receive = true;
    a.machine.post_receive(0, 8);
    b.machine.post_receive(1, 8);
    let there = b.machine.register(vec![0; 8]);
    let here = a.machine.register(vec![0; 8]);
    let remote = b.machine.remote(there, 0);
    let list = [a.machine.segment(here, 0, 8)];
    a.post(request(2, SendOperation::Read { remote }, &list));
    a.post_send(3, vec![0; 8]);
    let now = Time::default();
    b.receive(now, &a.transmit(now).unwrap());
    say(&mut a, &mut b);
    // What was read does not come.
    b.transmit(now).unwrap();
    b.post_send(4, vec![0; 8]);
    let answer = say(&mut b, &mut a);
    assert!(answer.acknowledges() && answer.payload().is_some());
    assert_eq!(a.machine.ends(), [(2, S::RetryExceeded), (3, S::Flushed)]);
    assert_eq!(a.machine.receive_ends(), []);
}

#[test]
fn a_window_goes_and_no_more() {
    let (mut a, _) = two();
    for id in 0..100 {
        a.post(request(id, send(), &[]));
    }
    let count = std::iter::from_fn(|| brief(&mut a)).count();
    assert!((1..100).contains(&count), "{count}");
    assert_eq!(a.transmit(Time::default()), None);
}
