//! Tests of peers that violate the protocol.

use super::*;

/// Generates packets that are almost valid, and packets that are far from valid.
fn hostile() -> impl Strategy<Value = (Header, usize)> {
    let opcode = proptest::sample::select(O::ALL.to_vec());
    let place = prop_oneof![0..8u32, any::<u32>()];
    let length = prop_oneof![
        Just(0),
        Just(8),
        Just(256),
        Just(300),
        Just(2000),
        any::<u32>()
    ];
    let address = prop_oneof![
        (0..2000u64).prop_map(|offset| (1 << 40) + offset),
        any::<u64>()
    ];
    let key = prop_oneof![Just(1), 0..4u32, any::<u32>()];
    let payload = prop_oneof![Just(0), Just(8), Just(256), 0..300usize];
    let syndrome = prop_oneof![
        Just(Syndrome::Ack { credits: 31 }),
        Just(Syndrome::ReceiverNotReady { timer: 1 }),
        Just(Syndrome::Nak(Nak::SequenceError)),
    ];
    (
        opcode,
        place,
        length,
        address,
        key,
        payload,
        syndrome,
        any::<[u64; 2]>(),
    )
        .prop_map(
            |(operation, place, length, address, key, payload, syndrome, operands)| {
                let mut header = addressed(operation, place, Remote { address, key }, length);
                header.atomic = atomic(place, Remote { address, key }, operands[0]).atomic;
                header.original = Some(operands[1]);
                header.invalidate = header.bth.opcode.has_invalidate().then_some(key);
                header.immediate = header.bth.opcode.has_immediate().then_some([1; 4]);
                header.aeth = header.bth.opcode.has_aeth().then_some(Aeth {
                    syndrome,
                    message_sequence: 0,
                });
                (header, payload)
            },
        )
}

proptest! {
    #[test]
    fn arbitrary_packets_do_not_break_the_responder(packets in proptest::collection::vec(hostile(), 1..60), follow in any::<bool>()) {
        let mut node = Node::ready_to_send(2, RC);
        node.machine.register(vec![0; 2000]);
        for id in 0..10 {
            node.machine.post_receive(id, 500);
            node.post_send(id, pattern(700));
        }
        let mut now = Time::default();
        for (mut header, length) in packets {
            if follow {
                let at = if header.bth.opcode.is_response() {
                    0xff_fff1 + header.bth.sequence % 8
                } else {
                    node.queue_pair.receive_sequence().value()
                };
                header.bth.sequence = Sequence::new(at).value();
            }
            node.receive_made(header, &vec![1; length]);
            // Long responses are sent in bursts, however much was requested.
            prop_assert!(node.transmit_all(now).len() <= 1000);
            prop_assert!(node.queue_pair.outstanding() <= 10);
            if let Some(due) = node.queue_pair.next_timeout() {
                now = now.max(due);
                node.queue_pair.handle_timeout(now, &mut node.machine);
            }
        }
        node.enter(State::Error);
        prop_assert_eq!(node.machine.sends.len(), 10);
        prop_assert_eq!(node.machine.received.len(), 10);
        prop_assert!(node.queue_pair.next_timeout().is_none());
    }
}
