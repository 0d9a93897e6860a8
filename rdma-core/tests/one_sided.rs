//! RDMA writes and reads.

mod common;

use common::{Pair, bytes, carry_out, expose, exposed, pattern, receive};
use rdma_core::memory::Part;
use rdma_core::{AccessFlags, ExposedMemory, SendRequest, WorkOpcode};

fn content(memory: &ExposedMemory) -> Vec<u8> {
    let mut content = vec![0; memory.len()];
    memory.read_at(0, &mut content).unwrap();
    content
}

#[test]
fn writes_of_many_sizes_land_where_they_should() {
    let pair = Pair::new();
    let mut sends = pair.left.send_queue();
    for len in [1, 8, 4096, 1 << 20] {
        let target = exposed(&pair.domain, len + 10, AccessFlags::REMOTE_WRITE);
        let source = pattern(&pair.domain, len, 6);
        let remote = target.remote().slice(5..5 + len).unwrap();
        carry_out(&pair.left, &mut sends, SendRequest::write(source, remote));
        let content = content(&target);
        assert_eq!(content[5..5 + len], bytes(len, 6));
        assert_eq!(content[..5], [0; 5]);
        assert_eq!(content[5 + len..], [0; 5]);
    }
}

#[test]
fn an_empty_write_touches_nothing() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE_WRITE);
    let mut sends = pair.left.send_queue();
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write((), target.remote()),
    );
    assert_eq!(content(&target), [0; 8]);
}

#[test]
fn a_write_with_immediate_takes_a_receive_and_leaves_its_memory_alone() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 5000, AccessFlags::REMOTE_WRITE);
    let mut receives = pair.right.receive_queue();
    receives.post(pattern(&pair.domain, 4, 1)).unwrap();
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 5000, 2);
    let request = SendRequest::write_with_immediate(source, target.remote(), 0xfeed_beef);
    carry_out(&pair.left, &mut sends, request);
    let (completion, memory) = receive(&pair.right, &mut receives);
    assert_eq!(completion.opcode(), WorkOpcode::ReceiveWriteImmediate);
    assert_eq!(completion.immediate(), Some(0xfeed_beef));
    assert_eq!(completion.len(), 5000);
    assert_eq!(memory[..], bytes(4, 1));
    assert_eq!(content(&target), bytes(5000, 2));
}

#[test]
fn reads_of_many_sizes_fetch_what_is_there() {
    let pair = Pair::new();
    let mut sends = pair.left.send_queue();
    for len in [1, 8, 4096, 1 << 20] {
        let source = expose(pattern(&pair.domain, len + 3, 8), AccessFlags::REMOTE_READ);
        let remote = source.remote().slice(3..).unwrap();
        let room = pair.domain.allocate(len).unwrap();
        let room = carry_out(&pair.left, &mut sends, SendRequest::read(room, remote));
        assert_eq!(room[..], bytes(len + 3, 8)[3..]);
    }
}

#[test]
fn the_completion_of_a_read_has_its_type_and_length() {
    let pair = Pair::new();
    let source = exposed(&pair.domain, 64, AccessFlags::REMOTE_READ);
    let mut sends = pair.left.send_queue();
    let room = pair.domain.allocate(64).unwrap();
    sends
        .post(SendRequest::read(room, source.remote()))
        .unwrap();
    let completion = common::succeed(pair.left.send_completions());
    assert_eq!(
        (completion.opcode(), completion.len()),
        (WorkOpcode::Read, 64)
    );
    assert_eq!(completion.queue_pair(), pair.left.number());
}

#[test]
fn a_read_scatters_into_several_pieces() {
    let pair = Pair::new();
    let source = expose(pattern(&pair.domain, 3000, 4), AccessFlags::REMOTE_READ);
    let mut sends = pair.left.send_queue();
    let allocate = |len| pair.domain.allocate(len).unwrap();
    let part = Part::new(allocate(2000), 500..1999).unwrap();
    let room = (allocate(1501), part);
    let (first, second) = carry_out(
        &pair.left,
        &mut sends,
        SendRequest::read(room, source.remote()),
    );
    assert_eq!(first[..], bytes(3000, 4)[..1501]);
    let second = second.into_inner();
    assert_eq!(second[500..1999], bytes(3000, 4)[1501..]);
    assert_eq!((second[499], second[1999]), (0, 0));
}

#[test]
fn exposed_memory_is_source_and_destination_while_peers_reach_it() {
    let pair = Pair::new();
    let (one, other) = (
        exposed(&pair.domain, 64, AccessFlags::REMOTE),
        exposed(&pair.domain, 64, AccessFlags::REMOTE),
    );
    one.write_at(0, &bytes(64, 1)).unwrap();
    let mut sends = pair.left.send_queue();
    let source = one.slice(8..24).unwrap();
    let remote = other.remote().slice(32..48).unwrap();
    carry_out(&pair.left, &mut sends, SendRequest::write(source, remote));
    assert_eq!(content(&other)[32..48], bytes(64, 1)[8..24]);
    let room = one.slice(40..).unwrap();
    let remote = other.remote().slice(32..56).unwrap();
    carry_out(&pair.left, &mut sends, SendRequest::read(room, remote));
    assert_eq!(content(&one)[40..56], bytes(64, 1)[8..24]);
}
