//! Tests of the operations: sends, writes, reads and atomics.

use super::*;

#[test]
fn messages_are_received_complete_and_in_order() {
    let mut pair = Pair::new(RC);
    let lengths = [0, 1, 255, 256, 257, 100_000];
    let mut keys = Vec::new();
    for (id, length) in lengths.into_iter().enumerate() {
        keys.push(pair.b.machine.post_receive(id as u64 + 10, 100_000));
        pair.a.post_send(id as u64, pattern(length));
    }
    pair.run();
    let ids = 0..lengths.len() as u64;
    let sent = pair.a.machine.ends();
    assert!(sent.into_iter().eq(ids.clone().map(|id| (id, S::Success))));
    let received = pair.b.machine.receive_ends();
    assert!(received.into_iter().eq(ids.map(|id| (id + 10, S::Success))));
    for (key, length) in keys.into_iter().zip(lengths) {
        assert_eq!(pair.b.machine.bytes(key)[..length], pattern(length));
    }
    let lengths_told = pair
        .b
        .machine
        .received
        .iter()
        .map(|(c, _)| c.length as usize);
    assert!(lengths_told.eq(lengths));
    assert_eq!(pair.a.machine.counted(Counter::Retransmitted), 0);
    assert_eq!(pair.a.queue_pair.outstanding(), 0);
}

#[test]
fn immediate_data_invalidation_and_solicitation_are_in_the_last_packet() {
    let mut pair = Pair::new(RC);
    let window = pair.b.machine.register(vec![0; 8]);
    for (id, length) in [(0, 10), (1, 1000)] {
        pair.b.machine.post_receive(id, 1000);
        let key = pair.a.machine.register(pattern(length));
        let list = [pair.a.machine.segment(key, 0, length as u32)];
        let immediate = Some(*b"imm!");
        let operation = SendOperation::Send {
            immediate,
            invalidate: None,
        };
        let mut request = request(id, operation, &list);
        request.solicited = true;
        pair.a.post(request);
    }
    pair.b.machine.post_receive(2, 1000);
    let operation = SendOperation::Send {
        immediate: None,
        invalidate: Some(window),
    };
    let key = pair.a.machine.register(pattern(300));
    let list = [pair.a.machine.segment(key, 0, 300)];
    pair.a.post(request(2, operation, &list));
    pair.run();
    assert!(!pair.b.machine.is_valid(window));
    let told: Vec<_> = pair.b.machine.received.iter().map(|(c, _)| c).collect();
    for completion in &told[..2] {
        assert_eq!(completion.opcode, CompletionOpcode::Receive);
        assert_eq!(completion.immediate, Some(*b"imm!"));
        assert!(completion.solicited);
    }
    assert_eq!(told[2].invalidated, Some(window));
    assert!(!told[2].solicited);
}

#[test]
fn writes_reach_their_address_and_immediate_data_consumes_a_receive() {
    let mut pair = Pair::new(RC);
    let there = pair.b.machine.register(vec![0; 5000]);
    pair.b.machine.post_receive(9, 0);
    let here = pair.a.machine.register(pattern(3000));
    // The message has two segments, in reverse order of their addresses.
    let list = [
        pair.a.machine.segment(here, 1000, 2000),
        pair.a.machine.segment(here, 0, 1000),
    ];
    let remote = pair.b.machine.remote(there, 100);
    let immediate = Some([1, 2, 3, 4]);
    pair.a.post(request(
        1,
        SendOperation::Write {
            remote,
            immediate: None,
        },
        &list,
    ));
    pair.a.post(request(
        2,
        SendOperation::Write { remote, immediate },
        &list[..1],
    ));
    pair.run();
    let mut expected = pattern(3000)[1000..].to_vec();
    expected.extend_from_slice(&pattern(1000));
    assert_eq!(pair.b.machine.bytes(there)[100..3100], expected);
    assert!(
        pair.b.machine.bytes(there)[3100..]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert_eq!(pair.a.machine.ends(), [(1, S::Success), (2, S::Success)]);
    let (completion, _) = &pair.b.machine.received[0];
    assert_eq!(completion.opcode, CompletionOpcode::ReceiveWithImmediate);
    assert_eq!((completion.length, completion.immediate), (2000, immediate));
}

#[test]
fn inline_bytes_are_copied_when_posted() {
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.post_receive(0, 600);
    let mut request = request(0, send(), &[]);
    request.payload = Payload::Inline(Inline::from_slice(&pattern(600)));
    request.length = 600;
    pair.a.post(request);
    pair.run();
    assert_eq!(pair.b.machine.bytes(key), pattern(600));
}

#[test]
fn reads_use_one_sequence_number_for_each_response_packet() {
    let mut pair = Pair::new(RC);
    let lengths = [0, 1, 256, 257, 70_000];
    let mut keys = Vec::new();
    for (id, length) in lengths.into_iter().enumerate() {
        let (request, key) = read(&mut pair, id as u64, length);
        pair.a.post(request);
        keys.push(key);
    }
    pair.run();
    for (key, length) in keys.into_iter().zip(lengths) {
        assert_eq!(pair.a.machine.bytes(key), pattern(length as usize));
    }
    assert_eq!(pair.a.machine.sends.len(), 5);
    assert_eq!(pair.a.machine.sends[4].length, 70_000);
    let packets = 1 + 1 + 1 + 2 + 274;
    let after = Sequence::new(FIRST + packets);
    assert_eq!(pair.a.queue_pair.send_sequence(), after);
    assert_eq!(pair.b.queue_pair.receive_sequence(), after);
}

#[test]
fn atomic_operations_are_executed_and_return_the_original_value() {
    let mut pair = Pair::new(RC);
    let there = pair.b.machine.register(40u64.to_ne_bytes().to_vec());
    let here = pair.a.machine.register(vec![0; 24]);
    let remote = pair.b.machine.remote(there, 0);
    let operations = [
        SendOperation::FetchAdd { remote, add: 2 },
        SendOperation::CompareSwap {
            remote,
            compare: 42,
            swap: 7,
        },
        SendOperation::CompareSwap {
            remote,
            compare: 42,
            swap: 8,
        },
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        let list = [pair.a.machine.segment(here, 8 * id as u64, 8)];
        pair.a.post(request(id as u64, operation, &list));
    }
    pair.run();
    let found: Vec<u64> = pair
        .a
        .machine
        .bytes(here)
        .chunks(8)
        .map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(found, [40, 42, 7]);
    assert_eq!(pair.b.machine.bytes(there), 7u64.to_ne_bytes());
}

#[test]
fn atomic_writes_and_flushes_complete_in_order_despite_losses() {
    let mut pair = Pair::new(RC);
    let there = pair.b.machine.register(vec![0; 64]);
    let remote = pair.b.machine.remote(there, 8);
    let flush = SendOperation::Flush(Flush {
        remote,
        length: 56,
        placement: Flush::GLOBAL,
        level: Flush::RANGE,
    });
    let write = |byte| SendOperation::AtomicWrite {
        remote,
        bytes: [byte; 8],
    };
    let operations = [write(1), flush.clone(), write(2), flush, write(3)];
    for (id, operation) in (0..).zip(operations) {
        pair.a.post(request(id, operation, &[]));
    }
    let mut packets = 0;
    pair.run_with(|_, _| {
        packets += 1;
        match packets % 3 {
            0 => WireEffect::Drop,
            _ => WireEffect::Deliver,
        }
    });
    let ends: Vec<_> = (pair.a.machine.sends.iter())
        .map(|c| (c.id, c.status, c.opcode, c.length))
        .collect();
    let (written, flushed) = (
        (CompletionOpcode::AtomicWrite, 8),
        (CompletionOpcode::Flush, 56),
    );
    let expected: Vec<_> = (0..)
        .zip([written, flushed, written, flushed, written])
        .map(|(id, (opcode, length))| (id, S::Success, opcode, length))
        .collect();
    assert_eq!(ends, expected);
    assert_eq!(pair.b.machine.bytes(there)[8..16], [3; 8]);
    assert!(pair.a.machine.counted(Counter::Retransmitted) > 0);
}

#[test]
fn a_response_with_data_to_an_atomic_write_is_bad() {
    let mut node = Node::ready_to_send(1, RC);
    let remote = node.machine.remote(1, 0);
    let write = SendOperation::AtomicWrite {
        remote,
        bytes: [1; 8],
    };
    node.post(request(5, write, &[]));
    let packets = node.transmit_all(Time::default());
    assert_eq!(operation(&packets[0]), O::AtomicWrite);
    let header = response(O::ReadResponseOnly, 0, Syndrome::Ack { credits: 31 });
    node.receive_made(header, &[0; 8]);
    assert_eq!(node.machine.ends(), [(5, S::BadResponse)]);
}
