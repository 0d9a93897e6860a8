//! Tests of retransmissions and their limits.

use super::*;

#[test]
fn packets_are_sent_again_from_the_first_lost_packet() {
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.post_receive(0, 256 * 20);
    pair.a.post_send(0, pattern(256 * 20));
    let mut lost = false;
    let mut first = 0;
    pair.run_with(|from, packet| {
        let sequence = Sequence::new(packet.header.bth.sequence);
        let fifth = from == Direction::A && sequence == Sequence::new(FIRST + 5);
        first +=
            usize::from(from == Direction::A && sequence.distance(Sequence::new(FIRST + 5)) < 0);
        if fifth && !lost {
            lost = true;
            return WireEffect::Drop;
        }
        WireEffect::Deliver
    });
    assert_eq!(pair.b.machine.bytes(key), pattern(256 * 20));
    assert_eq!(first, 5);
    assert_eq!(pair.b.machine.counted(Counter::OutOfSequenceRequest), 10);
    // The peer sent one NAK for the gap, and no timeout expired.
    assert_eq!(pair.a.machine.counted(Counter::ReceivedSequenceNak), 1);
    assert_eq!(pair.a.machine.counted(Counter::AcknowledgementTimeout), 0);
    assert_eq!(pair.a.machine.counted(Counter::Retransmitted), 11);
}

#[test]
fn a_duplicate_nak_is_ignored() {
    let mut node = lone_sends(4);
    assert_eq!(node.transmit_all(Time::default()).len(), 4);
    for _ in 0..20 {
        node.receive_made(nak(1, Nak::SequenceError), &[]);
    }
    let again = node.transmit_all(Time::default());
    assert_eq!(again.len(), 3);
    assert_eq!(sequence(&again[0]), Sequence::new(FIRST + 1).value());
    for _ in 0..20 {
        node.receive_made(nak(1, Nak::SequenceError), &[]);
    }
    assert!(node.transmit_all(Time::default()).is_empty());
    assert_eq!(node.queue_pair.state(), State::ReadyToSend);
    assert_eq!(node.machine.ends(), [(0, S::Success)]);
}

#[test]
fn after_a_lost_acknowledgement_no_message_is_executed_twice() {
    let mut pair = Pair::new(RC);
    for id in 0..2 {
        pair.b.machine.post_receive(id, 8);
    }
    pair.a.post_send(0, vec![1; 8]);
    let mut lost = false;
    pair.run_with(|from, _| {
        if from == Direction::B && !lost {
            lost = true;
            return WireEffect::Drop;
        }
        WireEffect::Deliver
    });
    assert_eq!(pair.a.machine.counted(Counter::AcknowledgementTimeout), 1);
    assert_eq!(pair.b.machine.counted(Counter::DuplicateRequest), 1);
    assert_eq!(pair.b.machine.receive_ends(), [(0, S::Success)]);
    assert_eq!(pair.a.machine.ends(), [(0, S::Success)]);
}

#[test]
fn an_acknowledgement_beyond_a_read_without_data_repeats_the_read() {
    let mut pair = Pair::new(RC);
    pair.b.machine.post_receive(0, 8);
    let (read, key) = read(&mut pair, 1, 256 * 5);
    pair.a.post(read);
    pair.a.post_send(2, vec![1; 8]);
    let mut lost = false;
    let mut asked = Vec::new();
    pair.run_with(|from, packet| {
        if let (Direction::A, Some(reth)) = (from, packet.header.reth) {
            asked.push(reth.length);
        }
        // Sequence number of the third packet of the response.
        let third = packet.header.bth.sequence == Sequence::new(FIRST + 2).value();
        if from == Direction::B && third && !lost {
            lost = true;
            return WireEffect::Drop;
        }
        WireEffect::Deliver
    });
    // Only the packets from the lost one on are requested again.
    assert_eq!(asked, [256 * 5, 256 * 3]);
    assert_eq!(pair.a.machine.bytes(key), pattern(256 * 5));
    assert!(pair.a.machine.counted(Counter::ImpliedNak) > 0);
    assert_eq!(pair.a.machine.counted(Counter::AcknowledgementTimeout), 0);
    assert_eq!(pair.a.machine.ends(), [(1, S::Success), (2, S::Success)]);
    assert_eq!(pair.b.machine.received.len(), 1);
}

#[test]
fn a_silent_peer_fails_the_request_after_the_retries() {
    for retries in [0, 1, 7] {
        let mut pair = Pair::new(RC);
        pair.a.queue_pair.attributes_mut().retry_count = retries;
        pair.a.machine.post_receive(77, 8);
        for id in 0..3 {
            pair.a.post_send(id, vec![1; 8]);
        }
        let mut sent = 0;
        pair.run_with(|_, _| {
            sent += 1;
            WireEffect::Drop
        });
        assert_eq!(sent, 3 * (u32::from(retries) + 1));
        assert_eq!(
            pair.a.machine.ends(),
            [(0, S::RetryExceeded), (1, S::Flushed), (2, S::Flushed)]
        );
        assert_eq!(pair.a.machine.receive_ends(), [(77, S::Flushed)]);
        assert_eq!(pair.a.queue_pair.state(), State::Error);
        // The timeout is twice as long after the second retry, and four times as long from the
        // third retry on.
        let waited = match retries {
            0 => 1,
            1 => 1 + 1,
            _ => 1 + 1 + 2 + 5 * 4,
        };
        assert_eq!(pair.now - Time::default(), Duration::from_millis(waited));
    }
}

#[test]
fn a_missing_peer_is_detected_within_the_configured_time() {
    let mut pair = Pair::new(RC);
    pair.a.queue_pair.attributes_mut().retry_count = 7;
    pair.a.post_send(0, vec![1; 8]);
    pair.a.queue_pair.set_peer_gone();
    pair.run_with(|_, _| WireEffect::Drop);
    assert_eq!(pair.a.machine.ends(), [(0, S::RetryExceeded)]);
    assert_eq!(pair.now - Time::default(), Duration::from_millis(8));
}

/// Returns the waiting times of a node that checks its clock 10 ms after each timeout, until its
/// message fails after two transmissions.
fn waits_of_one_who_is_late(mut node: Node) -> Vec<Duration> {
    node.queue_pair.attributes_mut().retry_count = 1;
    let mut now = Time::default();
    let mut waited = Vec::new();
    let mut sent = 0;
    while node.queue_pair.state() == State::ReadyToSend {
        sent += node.transmit_all(now).len();
        let due = node.queue_pair.next_timeout().unwrap();
        waited.push(due - now);
        now = due + Duration::from_millis(10);
        node.queue_pair.handle_timeout(now, &mut node.machine);
    }
    assert_eq!(sent, 2);
    assert_eq!(node.machine.counted(Counter::AcknowledgementTimeout), 2);
    assert_eq!(node.machine.ends(), [(0, S::RetryExceeded)]);
    waited
}

#[test]
fn a_late_timer_extends_the_timeout_once() {
    // The acknowledgement timeout is 1 ms. The extension is at most four times as long.
    let waited = waits_of_one_who_is_late(lone_sends(1));
    assert_eq!(waited, [1, 4, 1, 4].map(Duration::from_millis));
    // For a peer that no longer exists, the timeout is not extended.
    let mut node = lone_sends(1);
    node.queue_pair.set_peer_gone();
    let waited = waits_of_one_who_is_late(node);
    assert_eq!(waited, [1, 1].map(Duration::from_millis));
}

#[test]
fn an_acknowledgement_within_the_extension_prevents_a_failure() {
    let mut node = lone_sends(1);
    node.queue_pair.attributes_mut().retry_count = 0;
    node.transmit_all(Time::default());
    let late = node.queue_pair.next_timeout().unwrap() + Duration::from_millis(1);
    node.queue_pair.handle_timeout(late, &mut node.machine);
    assert_eq!(node.transmit_all(late).len(), 0);
    node.receive_made(ack(0), &[]);
    assert_eq!(node.machine.ends(), [(0, S::Success)]);
    assert_eq!(node.queue_pair.next_timeout(), None);
}

#[test]
fn progress_resets_the_retry_count() {
    let mut node = lone_sends(3);
    node.queue_pair.attributes_mut().retry_count = 1;
    let mut now = Time::default();
    for place in 0..3 {
        node.transmit_all(now);
        now = node.queue_pair.next_timeout().unwrap();
        node.queue_pair.handle_timeout(now, &mut node.machine);
        node.transmit_all(now);
        node.receive_made(ack(place), &[]);
    }
    assert!(
        node.machine
            .ends()
            .into_iter()
            .eq((0..3).map(|id| (id, S::Success)))
    );
    assert_eq!(node.queue_pair.next_timeout(), None);
}

#[test]
fn without_a_timeout_no_packet_is_sent_again() {
    let mut node = lone_sends(1);
    node.queue_pair.attributes_mut().ack_timeout = None;
    node.transmit_all(Time::default());
    assert_eq!(node.queue_pair.next_timeout(), None);
    let late = Time::from_nanos(u64::MAX / 2);
    node.queue_pair.handle_timeout(late, &mut node.machine);
    assert!(node.transmit(late).is_none());
    assert_eq!(node.queue_pair.outstanding(), 1);
}

#[test]
fn all_messages_are_received_although_every_packet_is_lost_once() {
    let mut pair = Pair::new(RC);
    let mut keys = Vec::new();
    for id in 0..6 {
        let receive = pair.b.machine.post_receive(id, 2000);
        pair.a.post_send(id, pattern(1000 + id as usize));
        let (read, target) = read(&mut pair, 100 + id, 3000);
        pair.a.post(read);
        keys.push((receive, target));
    }
    let mut seen = std::collections::BTreeSet::new();
    pair.run_with(|from, packet| {
        let header = &packet.header;
        let key = (
            from == Direction::A,
            header.bth.sequence,
            header.bth.opcode.to_byte(),
        );
        if seen.insert(key) {
            WireEffect::Drop
        } else {
            WireEffect::Duplicate
        }
    });
    assert_eq!(pair.a.machine.sends.len(), 12);
    assert!(pair.a.machine.sends.iter().all(|c| c.status == S::Success));
    assert_eq!(pair.b.machine.received.len(), 6);
    for (id, (receive, target)) in keys.into_iter().enumerate() {
        assert_eq!(
            pair.b.machine.bytes(receive)[..1000 + id],
            pattern(1000 + id)
        );
        assert_eq!(pair.a.machine.bytes(target), pattern(3000));
    }
}

#[test]
fn a_request_without_space_to_send_fails_after_the_retries() {
    let mut node = lone_sends(2);
    let (mut now, mut waits) = (Time::default(), 0);
    while node.queue_pair.state() == State::ReadyToSend {
        node.queue_pair.wait_for_space(now);
        now = node.queue_pair.next_timeout().unwrap();
        node.queue_pair.handle_timeout(now, &mut node.machine);
        waits += 1;
    }
    let retries = u32::from(attributes(2).retry_count);
    assert_eq!(waits, retries + 1);
    let ends = [(0, S::RetryExceeded), (1, S::Flushed)];
    assert_eq!(node.machine.ends(), ends);
}

#[test]
fn a_request_that_waits_for_its_turn_does_not_time_out() {
    let mut node = lone_sends(1);
    let mut now = Time::default();
    for round in 0..100 {
        node.queue_pair.wait_for_space(now);
        if round % 3 < 2 {
            now = node.queue_pair.next_timeout().unwrap();
            node.queue_pair.handle_timeout(now, &mut node.machine);
        } else {
            node.queue_pair.space_available();
            assert_eq!(node.queue_pair.next_timeout(), None);
        }
    }
    assert_eq!(node.queue_pair.state(), State::ReadyToSend);
    assert_eq!(node.transmit_all(now).len(), 1);
}

#[test]
fn a_request_after_receiver_not_ready_waits_for_its_turn() {
    let mut node = lone_sends(2);
    let mut now = Time::default();
    assert_eq!(node.transmit_all(now).len(), 2);
    node.receive_made(nak(0, Nak::SequenceError), &[]);
    for _ in 0..20 {
        node.queue_pair.wait_for_space(now);
        now = node.queue_pair.next_timeout().unwrap();
        node.queue_pair.handle_timeout(now, &mut node.machine);
        node.queue_pair.space_available();
    }
    assert_eq!(node.queue_pair.state(), State::ReadyToSend);
    // Packets that are sent after the waits must be answered, or the request fails.
    while node.queue_pair.state() == State::ReadyToSend {
        node.transmit_all(now);
        node.queue_pair.space_available();
        now = node.queue_pair.next_timeout().unwrap();
        node.queue_pair.handle_timeout(now, &mut node.machine);
        node.queue_pair.space_available();
    }
    assert_eq!(node.machine.ends()[0], (0, S::RetryExceeded));
}

#[test]
fn free_space_for_other_queue_pairs_is_no_acknowledgement() {
    let mut node = lone_sends(1);
    let (mut now, mut waits) = (Time::default(), 0);
    while node.queue_pair.state() == State::ReadyToSend {
        assert_eq!(node.transmit_all(now).len(), 1);
        node.queue_pair.space_available();
        now = node.queue_pair.next_timeout().unwrap();
        node.queue_pair.handle_timeout(now, &mut node.machine);
        waits += 1;
        // Room in the ring is no response: the packet must still be sent again.
        node.queue_pair.space_available();
    }
    let retries = u32::from(attributes(2).retry_count);
    assert_eq!(waits, retries + 1);
    assert_eq!(node.machine.ends(), [(0, S::RetryExceeded)]);
}

#[test]
fn space_is_waited_for_only_if_a_packet_may_be_sent() {
    let mut nothing = lone_sends(0);
    nothing.queue_pair.wait_for_space(Time::default());
    assert_eq!(nothing.queue_pair.next_timeout(), None);
    let mut drained = lone_sends(0);
    drained.enter(State::SendQueueDrained);
    drained.post_send(0, vec![0; 8]);
    drained.queue_pair.wait_for_space(Time::default());
    assert_eq!(drained.queue_pair.next_timeout(), None);
}
