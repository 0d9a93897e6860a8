//! Reliable connections: one end executes a script, and the other checks the results.

use std::collections::VecDeque;

use ibverbs_sys::{ibv_send_wr, ibv_wc_flags, ibv_wc_opcode, ibv_wr_opcode};

use crate::script::{COUNTER, Kind, Operation, READABLE, REGION, difference, fill};
use crate::talk::{Place, Talk};
use crate::verbs::{Connection, DEPTH, Memory, Result};

/// Maximum number of requests in flight, each with memory of its own.
const WINDOW: usize = 16;

/// Prepares the target's memory for [`target`].
pub(crate) fn prepare(memory: &mut Memory) {
    fill(memory.bytes(REGION, REGION), READABLE);
}

/// Length in bytes of the initiator's memory.
pub(crate) const INITIATOR: usize = WINDOW * REGION;
/// Length in bytes of the target's memory: its regions, the counter and the receives.
pub(crate) const TARGET: usize = COUNTER + 8 + DEPTH * REGION;

/// Executes `operations`, and checks every result.
pub(crate) fn initiate(
    connection: &Connection,
    memory: &mut Memory,
    peer: &Place,
    operations: &[Operation],
) -> Result<()> {
    let mut readable = vec![0; REGION];
    fill(&mut readable, READABLE);
    let mut counter = 0_u64;
    let mut under_way: VecDeque<(usize, Operation, u64)> = VecDeque::new();
    for (number, operation) in operations.iter().enumerate() {
        if under_way.len() == WINDOW {
            complete(connection, memory, &readable, &mut under_way)?;
        }
        let slot = number % WINDOW * REGION;
        let sends = matches!(
            operation.kind,
            Kind::Send | Kind::SendImmediate | Kind::Write | Kind::WriteImmediate
        );
        if sends {
            fill(memory.bytes(slot, operation.length), operation.seed);
        }
        let before = counter;
        post(
            connection,
            memory,
            peer,
            number,
            slot,
            operation,
            &mut counter,
        )?;
        under_way.push_back((number, *operation, before));
    }
    while !under_way.is_empty() {
        complete(connection, memory, &readable, &mut under_way)?;
    }
    Ok(())
}

fn post(
    connection: &Connection,
    memory: &Memory,
    peer: &Place,
    number: usize,
    slot: usize,
    operation: &Operation,
    counter: &mut u64,
) -> Result<()> {
    let remote = |request: &mut ibv_send_wr, offset: usize| {
        request.wr.rdma.remote_addr = peer.address + offset as u64;
        request.wr.rdma.rkey = peer.key;
    };
    let opcode = match operation.kind {
        Kind::Send => ibv_wr_opcode::IBV_WR_SEND,
        Kind::SendImmediate => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
        Kind::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        Kind::WriteImmediate => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        Kind::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
        Kind::CompareSwap => ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP,
        Kind::FetchAdd => ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
    };
    let seed = u64::from(operation.seed);
    let bytes = (slot, operation.length);
    connection.send(number, opcode, memory, bytes, |request| {
        request.__bindgen_anon_1.imm_data = operation.seed.to_be();
        match operation.kind {
            Kind::Send | Kind::SendImmediate => {}
            Kind::Write | Kind::WriteImmediate => remote(request, operation.offset),
            Kind::Read => remote(request, REGION + operation.offset),
            Kind::CompareSwap | Kind::FetchAdd => {
                request.wr.atomic.remote_addr = peer.address + COUNTER as u64;
                request.wr.atomic.rkey = peer.key;
                if operation.kind == Kind::FetchAdd {
                    request.wr.atomic.compare_add = seed;
                    *counter = counter.wrapping_add(seed);
                } else if seed % 2 == 0 {
                    request.wr.atomic.compare_add = *counter;
                    request.wr.atomic.swap = seed;
                    *counter = seed;
                } else {
                    request.wr.atomic.compare_add = counter.wrapping_add(1);
                    request.wr.atomic.swap = seed;
                }
            }
        }
    })
}

/// Waits for the oldest request, and checks its result.
fn complete(
    connection: &Connection,
    memory: &mut Memory,
    readable: &[u8],
    under_way: &mut VecDeque<(usize, Operation, u64)>,
) -> Result<()> {
    let Some((number, operation, before)) = under_way.pop_front() else {
        return Ok(());
    };
    let completion = connection.wait()?;
    if completion.wr_id != number as u64 {
        return Err(format!(
            "request {} completed instead of {number}",
            completion.wr_id
        ));
    }
    let bytes = memory.bytes(number % WINDOW * REGION, operation.length);
    let right = match operation.kind {
        Kind::Read => bytes == &readable[operation.offset..operation.offset + operation.length],
        Kind::CompareSwap | Kind::FetchAdd => bytes == before.to_ne_bytes(),
        _ => true,
    };
    if !right {
        return Err(format!(
            "request {number}, {operation:?}, brought wrong bytes"
        ));
    }
    Ok(())
}

/// Receives and checks the messages of the other end, and in the end the memory that it wrote to.
pub(crate) fn target(
    connection: &Connection,
    memory: &mut Memory,
    talk: &mut Talk,
    operations: &[Operation],
) -> Result<()> {
    let place = |slot: usize| COUNTER + 8 + slot * REGION;
    for slot in 0..DEPTH {
        connection.receive(slot, memory, place(slot), REGION)?;
    }
    talk.meet()?;
    let mut model = vec![0; REGION];
    let mut counter = 0_u64;
    for (number, operation) in operations.iter().enumerate() {
        let Operation {
            kind,
            length,
            offset,
            seed,
        } = *operation;
        match kind {
            Kind::Write | Kind::WriteImmediate => fill(&mut model[offset..offset + length], seed),
            Kind::FetchAdd => counter = counter.wrapping_add(seed.into()),
            Kind::CompareSwap if seed % 2 == 0 => counter = seed.into(),
            _ => {}
        }
        if !kind.is_received() {
            continue;
        }
        let completion = connection.wait()?;
        let slot = completion.wr_id as usize;
        let wrong = |what: &str| Err(format!("operation {number}, {operation:?}: wrong {what}"));
        let with_immediate = completion.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        if with_immediate != (kind != Kind::Send) {
            return wrong("flag of immediate data");
        }
        if with_immediate && unsafe { completion.__bindgen_anon_1.imm_data } != seed.to_be() {
            return wrong("immediate data");
        }
        let opcode = match kind {
            Kind::WriteImmediate => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            _ => ibv_wc_opcode::IBV_WC_RECV,
        };
        if completion.opcode != opcode {
            return wrong("opcode");
        }
        if completion.byte_len as usize != length {
            return wrong("length");
        }
        let sent = kind != Kind::WriteImmediate;
        if sent && let Some(at) = difference(memory.bytes(place(slot), length), seed) {
            return wrong(&format!("byte at {at}"));
        }
        connection.receive(slot, memory, place(slot), REGION)?;
    }
    // The other end is at this point when all of its requests have completed.
    talk.meet()?;
    let written = memory.bytes(0, REGION);
    if let Some(at) = written.iter().zip(&model).position(|(a, b)| a != b) {
        return Err(format!("the written byte at {at} is wrong"));
    }
    if *memory.bytes(COUNTER, 8) != counter.to_ne_bytes() {
        return Err("the atomics' sum is wrong".to_owned());
    }
    Ok(())
}
