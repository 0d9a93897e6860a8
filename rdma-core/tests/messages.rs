//! Sends and receives.

mod common;

use common::{Pair, bytes, carry_out, completion, pattern, receive, succeed, until_failed};
use rdma_core::memory::Part;
use rdma_core::{ConnectOptions, Error, FrozenBuffer, SendRequest, WorkOpcode, WorkStatus};

#[test]
fn messages_of_many_sizes_arrive_whole() {
    let pair = Pair::new();
    let (mut sends, mut receives) = (pair.left.send_queue(), pair.right.receive_queue());
    for len in [1, 7, 4095, 4096, 4097, 1 << 20] {
        let room = pair.domain.allocate(len + 1).unwrap();
        receives.post(room).unwrap();
        let source = pattern(&pair.domain, len, 3);
        let source = carry_out(&pair.left, &mut sends, SendRequest::send(source));
        assert_eq!(source[..], bytes(len, 3), "the sent memory is as it was");
        let (completion, memory) = receive(&pair.right, &mut receives);
        assert_eq!(completion.opcode(), WorkOpcode::Receive);
        assert_eq!((completion.len(), completion.immediate()), (len, None));
        assert_eq!(completion.queue_pair(), pair.right.number());
        assert!(completion.has_global_route(), "as all packets of RoCE");
        assert_eq!(memory[..len], bytes(len, 3));
        assert_eq!(memory[len], 0, "nothing behind the message is written");
    }
}

#[test]
fn an_empty_message_needs_no_memory() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue::<()>();
    receives.post(()).unwrap();
    let mut sends = pair.left.send_queue::<()>();
    carry_out(&pair.left, &mut sends, SendRequest::send(()));
    let (completion, ()) = receive(&pair.right, &mut receives);
    assert!(completion.is_empty());
}

#[test]
fn an_empty_piece_of_memory_sends_nothing() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    let (none, some) = pair.domain.allocate(8).unwrap().split_at(0);
    receives.post((none, some)).unwrap();
    let (none, all) = pattern(&pair.domain, 8, 9).split_at(0);
    let mut sends = pair.left.send_queue();
    carry_out(&pair.left, &mut sends, SendRequest::send((all, none)));
    let (completion, (_, memory)) = receive(&pair.right, &mut receives);
    assert_eq!(completion.len(), 8);
    assert_eq!(memory[..], bytes(8, 9));
}

#[test]
fn immediate_data_arrives_as_the_number_it_was() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for number in [0, 1, 0x0102_0304, u32::MAX] {
        receives.post(pair.domain.allocate(4).unwrap()).unwrap();
        let source = pattern(&pair.domain, 4, 5);
        let request = SendRequest::send_with_immediate(source, number);
        carry_out(&pair.left, &mut sends, request);
        let (completion, memory) = receive(&pair.right, &mut receives);
        assert_eq!(completion.immediate(), Some(number));
        assert_eq!(memory[..], bytes(4, 5));
    }
}

#[test]
fn several_pieces_gather_into_one_message_and_scatter_from_it() {
    let pair = Pair::new();
    let allocate = |len| pair.domain.allocate(len).unwrap();
    let mut receives = pair.right.receive_queue();
    receives
        .post((allocate(3), [allocate(4096), allocate(1000)]))
        .unwrap();
    let mut sends = pair.left.send_queue();
    let source = [(10, 1), (20, 2), (3000, 3)].map(|(len, seed)| pattern(&pair.domain, len, seed));
    carry_out(&pair.left, &mut sends, SendRequest::send(source));
    let (completion, (first, [second, third])) = receive(&pair.right, &mut receives);
    assert_eq!(completion.len(), 3030);
    let message = [bytes(10, 1), bytes(20, 2), bytes(3000, 3)].concat();
    let arrived = [&first[..], &second[..], &third[..]].concat();
    assert_eq!(arrived[..3030], message);
    assert!(arrived[3030..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_part_of_a_buffer_is_sent_and_received_and_the_whole_comes_back() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    let room = pair.domain.allocate(64).unwrap();
    receives.post(Part::new(room, 16..32).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    let source = Part::new(pattern(&pair.domain, 64, 7), 40..56).unwrap();
    let source = carry_out(&pair.left, &mut sends, SendRequest::send(source));
    assert_eq!(source.into_inner().len(), 64);
    let (_, memory) = receive(&pair.right, &mut receives);
    let memory = memory.into_inner();
    assert_eq!(memory[16..32], bytes(64, 7)[40..56]);
    assert!(
        memory[..16]
            .iter()
            .chain(&memory[32..])
            .all(|&byte| byte == 0)
    );
}

#[test]
fn a_range_outside_of_a_buffer_is_no_part() {
    let domain = common::context().protection_domain().unwrap();
    let error = Part::new(domain.allocate(8).unwrap(), 4..9).unwrap_err();
    assert_eq!(
        error,
        Error::OutOfRange {
            start: 4,
            end: 9,
            len: 8
        }
    );
}

#[test]
fn frozen_memory_is_sent_by_many_requests_at_once() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    for _ in 0..8 {
        receives.post(pair.domain.allocate(32).unwrap()).unwrap();
    }
    let frozen = pattern(&pair.domain, 256, 11).freeze();
    let mut sends = pair.left.send_queue::<FrozenBuffer>();
    for at in 0..8 {
        let part = frozen.slice(at * 32..(at + 1) * 32).unwrap();
        sends.post(SendRequest::send(part)).unwrap();
    }
    let frozen = frozen.thaw().expect_err("it is in flight");
    for at in 0..8 {
        let (_, memory) = receive(&pair.right, &mut receives);
        assert_eq!(memory[..], bytes(256, 11)[at * 32..(at + 1) * 32]);
        let sent = succeed(pair.left.send_completions());
        drop(sends.complete(&sent));
    }
    assert_eq!(frozen.thaw().unwrap().len(), 256);
}

#[test]
fn more_elements_than_the_queue_pair_has_are_refused() {
    let pair = Pair::with(|builder| builder.elements(2), &ConnectOptions::default());
    let frozen = pattern(&pair.domain, 8, 1).freeze();
    let mut sends = pair.left.send_queue();
    let refused = sends
        .post(SendRequest::send([(); 20].map(|()| frozen.clone())))
        .unwrap_err();
    assert!(matches!(
        refused.error,
        Error::TooManyElements { elements: 20, .. }
    ));
    assert_eq!(refused.memory.len(), 20);
    assert_eq!(sends.in_flight(), 0);
}

#[test]
fn a_message_longer_than_the_receive_fails_both_ends() {
    let pair = Pair::new();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(16).unwrap()).unwrap();
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 17, 1)))
        .unwrap();
    let received = completion(pair.right.receive_completions());
    // The specification requires a local length error; Linux's Soft-RoCE reports the other status.
    assert!(
        matches!(
            received.status(),
            WorkStatus::LocalLength | WorkStatus::LocalQueuePairOperation
        ),
        "{received:?}"
    );
    let memory = receives.complete(&received).expect("the memory comes back");
    assert_eq!(memory.len(), 16);
    let sent = completion(pair.left.send_completions());
    // The specification requires an invalid request error; Linux's Soft-RoCE reports the other
    // status.
    assert!(
        matches!(
            sent.status(),
            WorkStatus::RemoteInvalidRequest | WorkStatus::RemoteOperation
        ),
        "{sent:?}"
    );
    assert_eq!(sends.complete(&sent).count(), 1);
    until_failed(&pair.left);
    until_failed(&pair.right);
}

#[test]
fn without_a_receive_a_send_fails_after_its_retries() {
    let options = ConnectOptions::default().rnr_retries(0).min_rnr_timer(1);
    let pair = Pair::with(|builder| builder, &options);
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    let sent = completion(pair.left.send_completions());
    assert_eq!(sent.status(), WorkStatus::RnrRetryExceeded);
    assert_eq!(sends.complete(&sent).count(), 1);
    until_failed(&pair.left);
}

#[test]
fn a_send_waits_for_a_late_receive() {
    let options = ConnectOptions::default().rnr_retries(7).min_rnr_timer(1);
    let pair = Pair::with(|builder| builder, &options);
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 2)))
        .unwrap();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let (_, memory) = receive(&pair.right, &mut receives);
    assert_eq!(memory[..], bytes(8, 2));
    assert!(succeed(pair.left.send_completions()).result().is_ok());
}

#[test]
fn receives_posted_before_connecting_take_messages() {
    let domain = common::context().protection_domain().unwrap();
    let left = domain.queue_pair().build().unwrap();
    let right = domain.queue_pair().build().unwrap();
    let mut receives = right.receive_queue();
    receives.post(domain.allocate(8).unwrap()).unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let options = ConnectOptions::default();
    let right = right.connect(&to_left, &options).unwrap();
    let left = left.connect(&to_right, &options).unwrap();
    let mut sends = left.send_queue();
    carry_out(&left, &mut sends, SendRequest::send(pattern(&domain, 8, 4)));
    let (_, memory) = receive(&right, &mut receives);
    assert_eq!(memory[..], bytes(8, 4));
}

#[test]
fn receives_are_completed_in_any_order() {
    let pair = Pair::with(
        |builder| builder.receive_requests(5),
        &ConnectOptions::default(),
    );
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    let orders: [&[usize]; 6] = [
        &[0, 1, 2, 3],
        &[3, 2, 1, 0],
        &[1, 0, 3, 2],
        &[2, 0, 1, 3],
        &[1, 3, 0, 2],
        &[0, 2, 1, 3],
    ];
    for (round, order) in orders.iter().cycle().take(60).enumerate() {
        let seed = |index: usize| (round * 4 + index) as u8;
        let completions: Vec<_> = (0..4)
            .map(|index| {
                receives.post(pair.domain.allocate(8).unwrap()).unwrap();
                let message = pattern(&pair.domain, 8, seed(index));
                carry_out(&pair.left, &mut sends, SendRequest::send(message));
                succeed(pair.right.receive_completions())
            })
            .collect();
        for &index in *order {
            let memory = receives.complete(&completions[index]).unwrap();
            assert_eq!(memory[..], bytes(8, seed(index)));
            assert!(receives.complete(&completions[index]).is_none(), "once");
        }
        assert_eq!(receives.in_flight(), 0);
    }
}
