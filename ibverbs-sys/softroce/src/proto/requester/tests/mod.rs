//! Tests of the requester, the sending half of a queue pair.

mod acknowledgement;
mod failure;
mod messages;
mod order;
mod probe;
mod receiver_not_ready;
mod repairs;
mod retransmission;
mod window;

use std::time::Duration;

use crate::proto::testing::{
    Direction, Node, Pair, WireEffect, attributes, path, pattern, request, send,
};
use crate::proto::{
    AccessFlags, CompletionOpcode, CompletionStatus as S, Counter, Event, Flush, Inline, Payload,
    SendOperation, SendRequest, Sequence, Service, State, Time, WindowBinding,
};
use crate::wire::{Aeth, Bth, Header, Nak, Opcode, Operation as O, Packet, Syndrome, Transport};

const RC: Service = Service::ReliableConnection;

/// Sequence number of the first packet that node 1 sends.
const FIRST: u32 = 0xff_fff2;

fn operation(bytes: &[u8]) -> O {
    Packet::parse(bytes).unwrap().header.bth.opcode.operation
}

fn sequence(bytes: &[u8]) -> u32 {
    Packet::parse(bytes).unwrap().header.bth.sequence
}

/// Returns the header of a response to the packet of node 1 with the index `place`.
fn response(operation: O, place: u32, syndrome: Syndrome) -> Header {
    let opcode = Opcode::new(Transport::ReliableConnection, operation);
    let sequence = Sequence::new(FIRST.wrapping_add(place)).value();
    let mut header = Header::new(Bth::new(opcode, 1, sequence));
    header.aeth = opcode.has_aeth().then_some(Aeth {
        syndrome,
        message_sequence: 0,
    });
    header
}

fn ack(place: u32) -> Header {
    response(O::Acknowledge, place, Syndrome::Ack { credits: 31 })
}

fn nak(place: u32, nak: Nak) -> Header {
    response(O::Acknowledge, place, Syndrome::Nak(nak))
}

fn not_ready(place: u32, timer: u8) -> Header {
    response(O::Acknowledge, place, Syndrome::ReceiverNotReady { timer })
}

/// Creates a read of `length` bytes into a new region. Returns the request and the key of the
/// region.
fn read(pair: &mut Pair, id: u64, length: u32) -> (SendRequest, u32) {
    let there = pair.b.machine.register(pattern(length as usize));
    let here = pair.a.machine.register(vec![0; length as usize]);
    let list = [pair.a.machine.segment(here, 0, length)];
    let remote = pair.b.machine.remote(there, 0);
    (request(id, SendOperation::Read { remote }, &list), here)
}

/// Creates a read of `length` bytes, for a node whose packets no peer receives.
fn lone_read(node: &mut Node, id: u64, length: u32) -> SendRequest {
    let here = node.machine.register(vec![0; length as usize]);
    let list = [node.machine.segment(here, 0, length)];
    let remote = node.machine.remote(here, 0);
    request(id, SendOperation::Read { remote }, &list)
}

fn lone_sends(count: u64) -> Node {
    let mut node = Node::ready_to_send(1, RC);
    for id in 0..count {
        node.post_send(id, vec![id as u8; 8]);
    }
    node
}
