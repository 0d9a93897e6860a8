//! Tests of the responder's rules.

mod connection;
mod fetch;
mod gaps;
mod hostile;
mod receiver_not_ready;
mod refusal;
mod sequence;
mod xrc;

use proptest::prelude::*;

use crate::proto::testing::{
    Direction, Node, Pair, WireEffect, attributes, pattern, request, send,
};
use crate::proto::{
    AccessFlags, CompletionOpcode, CompletionStatus as S, Counter, Event, Remote, SendOperation,
    Sequence, Service, State, Time,
};
use crate::wire::{
    Aeth, AtomicEth, Bth, Feth, Header, Nak, Opcode, Operation as O, Packet, Reth, Syndrome,
    Transport,
};

const RC: Service = Service::ReliableConnection;

/// Sequence number of the first packet that node 2 expects.
const FIRST: u32 = 0xff_fff2;

/// Creates node 2, ready to receive.
fn node() -> Node {
    Node::ready_to_receive(2, RC)
}

/// Returns the header of the request packet number `place` to node 2.
fn made(operation: O, place: u32) -> Header {
    let opcode = Opcode::new(Transport::ReliableConnection, operation);
    let sequence = Sequence::new(FIRST.wrapping_add(place)).value();
    Header::new(Bth {
        acknowledge: true,
        ..Bth::new(opcode, 2, sequence)
    })
}

fn addressed(operation: O, place: u32, remote: Remote, length: u32) -> Header {
    let reth = Reth {
        address: remote.address,
        key: remote.key,
        length,
    };
    Header {
        reth: Some(reth),
        ..made(operation, place)
    }
}

fn flush(place: u32, remote: Remote, length: u32, feth: Feth) -> Header {
    Header {
        feth: Some(feth),
        ..addressed(O::Flush, place, remote, length)
    }
}

fn atomic(place: u32, remote: Remote, add: u64) -> Header {
    let atomic = AtomicEth {
        address: remote.address,
        key: remote.key,
        swap_or_add: add,
        compare: 0,
    };
    Header {
        atomic: Some(atomic),
        ..made(O::FetchAdd, place)
    }
}

/// A response packet: its operation, its packet number, and its syndrome.
type Answer = (O, u32, Option<Syndrome>);

const ACK: Option<Syndrome> = Some(Syndrome::Ack { credits: 31 });

fn refusal(place: u32, nak: Nak) -> Answer {
    (O::Acknowledge, place, Some(Syndrome::Nak(nak)))
}

fn answer(bytes: &[u8]) -> Answer {
    let header = Packet::parse(bytes).unwrap().header;
    let place = Sequence::new(header.bth.sequence) + (0x100_0000 - FIRST);
    (
        header.bth.opcode.operation,
        place.value(),
        header.aeth.map(|aeth| aeth.syndrome),
    )
}

fn answers(node: &mut Node) -> Vec<Answer> {
    let packets = node.transmit_all(Time::default());
    packets.iter().map(|bytes| answer(bytes)).collect()
}
