//! Tests of the requester's reaction to RNR NAKs, which a peer without a posted receive sends.

use super::*;

#[test]
fn a_message_is_sent_again_after_receiver_not_ready() {
    let mut pair = Pair::new(RC);
    pair.a.queue_pair.attributes_mut().rnr_retry = 2;
    pair.b.queue_pair.attributes_mut().min_rnr_timer = 14;
    pair.a.machine.post_receive(7, 8);
    pair.a.post_send(0, vec![1; 8]);
    pair.a.post_send(1, vec![1; 8]);
    let mut sent = 0;
    pair.run_with(|from, packet| {
        let first = packet.header.bth.sequence == Sequence::new(FIRST).value();
        sent += usize::from(from == Direction::A && first);
        WireEffect::Deliver
    });
    assert_eq!(sent, 3);
    assert_eq!(pair.now - Time::default(), 2 * Duration::from_micros(1280));
    assert_eq!(
        pair.a.machine.ends(),
        [(0, S::RnrRetryExceeded), (1, S::Flushed)]
    );
    assert_eq!(pair.a.machine.counted(Counter::ReceivedRnr), 3);
    assert_eq!(pair.b.machine.counted(Counter::SentRnr), 3);
    // The peer drops packets after the refused one, and sends no NAK for them.
    assert_eq!(pair.a.machine.counted(Counter::ReceivedSequenceNak), 0);
    assert_eq!(pair.b.queue_pair.state(), State::ReadyToSend);
}

#[test]
fn a_retry_count_of_seven_is_unlimited() {
    let mut pair = Pair::new(RC);
    pair.a.post_send(0, pattern(300));
    let mut refusals = 0;
    for _ in 0..100 {
        let bytes = pair.a.transmit_all(pair.now);
        for packet in &bytes {
            pair.b.receive(pair.now, packet);
        }
        for packet in pair.b.transmit_all(pair.now) {
            refusals += 1;
            pair.a.receive(pair.now, &packet);
        }
        // The waiting time in the RNR NAK determines when the packet is sent again, not the
        // timeout.
        let due = pair.a.queue_pair.next_timeout().unwrap();
        assert_eq!(due - pair.now, Duration::from_micros(10));
        assert!(pair.a.transmit(pair.now).is_none());
        pair.now = due;
        pair.a.queue_pair.handle_timeout(due, &mut pair.a.machine);
    }
    assert_eq!(refusals, 100);
    let key = pair.b.machine.post_receive(1, 300);
    pair.run();
    assert_eq!(pair.b.machine.bytes(key), pattern(300));
    assert_eq!(pair.a.machine.ends(), [(0, S::Success)]);
}
