//! Datagrams in bursts for which the receiver has room.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ibverbs_sys::{ibv_wc_flags, ibv_wr_opcode};

use crate::script::{Random, difference, fill};
use crate::talk::{Place, Talk};
use crate::verbs::{Connection, DEPTH, Memory, Result};

/// Length in bytes of the GRH in front of a datagram.
const ROUTE: usize = 40;
/// Length in bytes of the largest datagram with a path MTU of 4096.
const LONGEST: usize = 4096;
const SLOT: usize = ROUTE + LONGEST;

/// Length in bytes of the memory of one end.
pub(crate) const MEMORY: usize = DEPTH * SLOT;

/// Returns the lengths and seeds of `count` datagrams.
fn datagrams(count: usize, longest: usize) -> Vec<(usize, u32)> {
    let mut random = Random::new(count as u64);
    (0..count)
        .map(|_| (random.below(longest + 1), random.next() as u32))
        .collect()
}

/// Sends `count` datagrams of at most `longest` bytes.
pub(crate) fn initiate(
    connection: &Connection,
    memory: &mut Memory,
    talk: &mut Talk,
    peer: &Place,
    (count, longest): (usize, usize),
) -> Result<()> {
    for burst in datagrams(count, longest).chunks(DEPTH) {
        talk.meet()?;
        for (slot, (length, seed)) in burst.iter().enumerate() {
            fill(memory.bytes(slot * SLOT, *length), *seed);
            let opcode = match seed % 2 {
                0 => ibv_wr_opcode::IBV_WR_SEND,
                _ => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            };
            let bytes = (slot * SLOT, *length);
            connection.send(slot, opcode, memory, bytes, |request| {
                request.__bindgen_anon_1.imm_data = seed.to_be();
                connection.address(request, peer);
            })?;
        }
        for _ in burst {
            connection.wait()?;
        }
    }
    talk.meet()
}

/// Receives all datagrams, and checks their bytes and sources.
pub(crate) fn target(
    connection: &Connection,
    memory: &mut Memory,
    talk: &mut Talk,
    peer: &Place,
    (count, longest): (usize, usize),
) -> Result<()> {
    for burst in datagrams(count, longest).chunks(DEPTH) {
        for slot in 0..burst.len() {
            connection.receive(slot, memory, slot * SLOT, SLOT)?;
        }
        talk.meet()?;
        // No datagram is lost, but datagrams may overtake each other if several processors send
        // them.
        let mut missing = burst.to_vec();
        while !missing.is_empty() {
            let completion = connection.wait()?;
            let slot = completion.wr_id as usize * SLOT;
            let length = (completion.byte_len as usize).saturating_sub(ROUTE);
            let wrong = |what: &str| Err(format!("a datagram of {length} B: wrong {what}"));
            let bytes = memory.bytes(slot + ROUTE, length);
            let is_this = |(wanted, seed): &(usize, u32)| {
                *wanted == length && difference(bytes, *seed).is_none()
            };
            let Some(found) = missing.iter().position(is_this) else {
                return wrong("bytes");
            };
            let (_, seed) = missing.swap_remove(found);
            if completion.src_qp != peer.queue_pair {
                return wrong("source");
            }
            if completion.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 == 0 {
                return wrong("flag of the GRH");
            }
            let with_immediate = completion.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
            // SAFETY: the flag says that the immediate data are present.
            let immediate = || unsafe { completion.__bindgen_anon_1.imm_data };
            // Datagrams without bytes are identified by the immediate data only.
            let is_expected = with_immediate == (seed % 2 == 1)
                && (!with_immediate || immediate() == seed.to_be());
            if length > 0 && !is_expected {
                return wrong("immediate data");
            }
            let header = memory.bytes(slot, ROUTE);
            let source = match Ipv6Addr::from(peer.gid).to_canonical() {
                // The IPv4 header is in the last 20 bytes of the GRH.
                IpAddr::V4(_) => {
                    let source: [u8; 4] = std::array::from_fn(|i| header[32 + i]);
                    Ipv4Addr::from(source).to_ipv6_mapped()
                }
                IpAddr::V6(_) => {
                    Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| header[8 + i]))
                }
            };
            if source != Ipv6Addr::from(peer.gid) {
                return wrong("address in the GRH");
            }
        }
    }
    talk.meet()
}
