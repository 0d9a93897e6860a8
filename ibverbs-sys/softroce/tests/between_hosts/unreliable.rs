//! Messages and writes of a UC queue pair, in bursts for which the receiver has room.

use ibverbs_sys::{ibv_wc_flags, ibv_wc_opcode, ibv_wr_opcode};

use crate::script::{Random, difference, fill};
use crate::talk::{Place, Talk};
use crate::verbs::{Connection, DEPTH, Memory, Result};

/// Length in bytes of the longest message: several packets, of which the buffer of a socket holds
/// those of a burst.
const LONGEST: usize = 2500;
/// Offset of the memory for writes of each slot, behind the memory for its receive.
const WRITTEN: usize = LONGEST;
const SLOT: usize = 2 * LONGEST;

/// Message of the initiator. The seed of its bytes is also its immediate data.
#[derive(Clone, Copy, Debug)]
struct Message {
    is_write: bool,
    length: usize,
    seed: u32,
}

fn messages(count: usize) -> Vec<Message> {
    let mut random = Random::new(count as u64);
    (0..count)
        .map(|_| Message {
            is_write: random.below(2) == 0,
            length: random.below(LONGEST + 1),
            seed: random.next() as u32,
        })
        .collect()
}

/// Sends `count` messages.
pub(crate) fn initiate(
    connection: &Connection,
    memory: &mut Memory,
    talk: &mut Talk,
    peer: &Place,
    count: usize,
) -> Result<()> {
    for burst in messages(count).chunks(DEPTH) {
        talk.meet()?;
        for (slot, message) in burst.iter().enumerate() {
            let bytes = (slot * SLOT, message.length);
            fill(memory.bytes(bytes.0, bytes.1), message.seed);
            let opcode = match message.is_write {
                true => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
                false => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            };
            connection.send(slot, opcode, memory, bytes, |request| {
                request.__bindgen_anon_1.imm_data = message.seed.to_be();
                if message.is_write {
                    request.wr.rdma.remote_addr = peer.address + (slot * SLOT + WRITTEN) as u64;
                    request.wr.rdma.rkey = peer.key;
                }
            })?;
        }
        for _ in burst {
            connection.wait()?;
        }
    }
    talk.meet()
}

/// Receives and checks all messages, none of which is lost or overtakes another.
pub(crate) fn target(
    connection: &Connection,
    memory: &mut Memory,
    talk: &mut Talk,
    count: usize,
) -> Result<()> {
    for burst in messages(count).chunks(DEPTH) {
        for slot in 0..burst.len() {
            connection.receive(slot, memory, slot * SLOT, LONGEST)?;
        }
        talk.meet()?;
        for (slot, message) in burst.iter().enumerate() {
            let completion = connection.wait()?;
            let wrong = |what: &str| Err(format!("{message:?}: wrong {what}"));
            if completion.wr_id != slot as u64 {
                return wrong("order");
            }
            let (opcode, offset) = match message.is_write {
                true => (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, WRITTEN),
                false => (ibv_wc_opcode::IBV_WC_RECV, 0),
            };
            if completion.opcode != opcode {
                return wrong("opcode");
            }
            let with_immediate = completion.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
            // SAFETY: the flag says that the immediate data are present.
            let immediate = || unsafe { completion.__bindgen_anon_1.imm_data };
            if !with_immediate || immediate() != message.seed.to_be() {
                return wrong("immediate data");
            }
            if completion.byte_len as usize != message.length {
                return wrong("length");
            }
            let bytes = memory.bytes(slot * SLOT + offset, message.length);
            if let Some(at) = difference(bytes, message.seed) {
                return wrong(&format!("byte at {at}"));
            }
        }
    }
    talk.meet()
}
