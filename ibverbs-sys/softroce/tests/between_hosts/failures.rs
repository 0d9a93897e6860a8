//! Operations that the target refuses or does not answer, and what both ends are told about them.

use std::thread;
use std::time::Duration;

use ibverbs_sys::{ibv_wc_status, ibv_wr_opcode};

use crate::script::{difference, fill};
use crate::talk::{Place, Talk};
use crate::verbs::{Connection, DEPTH, Memory, Result, describe};

/// Length in bytes of the messages: several packets with each path MTU.
const LENGTH: usize = 6000;
/// Length in bytes of the receives that are too short: shorter by the last packet or packets.
const SHORT: usize = 5000;
/// Seed of the bytes of the messages.
const SEED: u32 = 5;
/// Time after which a late receive is posted: longer than the sender waits before it tries again.
const DELAY: Duration = Duration::from_millis(20);

/// Cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The initiator writes with a key that the target did not issue.
    WrongKey,
    /// The message is longer than the target's receive.
    ShortReceive,
    /// The target posts its receive after the message has arrived for the first time. The message
    /// is repeated, and does not fail.
    LateReceive,
    /// The target posts no receive, and the initiator repeats the message once only.
    MissingReceive,
    /// The target's process is killed while the initiator writes.
    KilledPeer,
}

impl Failure {
    /// Executes the operation, and checks its status and that of a request behind it.
    pub(crate) fn initiate(
        self,
        connection: &Connection,
        memory: &mut Memory,
        talk: &mut Talk,
        peer: &Place,
    ) -> Result<()> {
        if self == Self::KilledPeer {
            return write_until_killed(connection, memory, talk, peer);
        }
        fill(memory.bytes(0, LENGTH), SEED);
        talk.meet()?;
        let opcode = match self {
            Self::WrongKey => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            _ => ibv_wr_opcode::IBV_WR_SEND,
        };
        for number in 0..2 {
            connection.send(number, opcode, memory, (0, LENGTH), |request| {
                if self == Self::WrongKey {
                    request.wr.rdma.remote_addr = peer.address;
                    request.wr.rdma.rkey = peer.key.wrapping_add(1);
                }
            })?;
        }
        let first = match self {
            Self::WrongKey => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            Self::ShortReceive => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
            Self::MissingReceive => ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
            Self::LateReceive | Self::KilledPeer => ibv_wc_status::IBV_WC_SUCCESS,
        };
        let second = match self {
            Self::LateReceive => ibv_wc_status::IBV_WC_SUCCESS,
            _ => ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        };
        expect(connection, 0, first)?;
        expect(connection, 1, second)?;
        talk.meet()
    }

    /// Is the target of the operation, and checks the statuses of its receives and its memory.
    pub(crate) fn target(
        self,
        connection: &Connection,
        memory: &mut Memory,
        talk: &mut Talk,
    ) -> Result<()> {
        let receive = |memory: &Memory, length: usize| {
            (0..2).try_for_each(|slot| connection.receive(slot, memory, slot * LENGTH, length))
        };
        if self == Self::ShortReceive {
            receive(memory, SHORT)?;
        }
        talk.meet()?;
        match self {
            Self::ShortReceive => {
                expect(connection, 0, ibv_wc_status::IBV_WC_LOC_LEN_ERR)?;
                expect(connection, 1, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)?;
            }
            Self::LateReceive => {
                thread::sleep(DELAY);
                receive(memory, LENGTH)?;
                for slot in 0..2 {
                    expect(connection, slot, ibv_wc_status::IBV_WC_SUCCESS)?;
                    if let Some(at) = difference(memory.bytes(slot * LENGTH, LENGTH), SEED) {
                        return Err(format!("message {slot}: wrong byte at {at}"));
                    }
                }
            }
            Self::KilledPeer => {
                // The initiator is at this point while it writes.
                talk.meet()?;
                unsafe { libc::raise(libc::SIGKILL) };
            }
            Self::WrongKey | Self::MissingReceive => {}
        }
        talk.meet()?;
        let untouched = match self {
            Self::ShortReceive => SHORT..2 * LENGTH,
            Self::WrongKey | Self::MissingReceive => 0..2 * LENGTH,
            Self::LateReceive | Self::KilledPeer => 0..0,
        };
        let bytes = memory.bytes(untouched.start, untouched.len());
        match bytes.iter().position(|byte| *byte != 0) {
            Some(at) => Err(format!("the byte at {} is written", untouched.start + at)),
            None => Ok(()),
        }
    }
}

/// Keeps writes in flight until one of them fails, and checks that all others behind it are
/// flushed.
fn write_until_killed(
    connection: &Connection,
    memory: &Memory,
    talk: &mut Talk,
    peer: &Place,
) -> Result<()> {
    let write = |number: usize| {
        let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        connection.send(number, opcode, memory, (0, LENGTH), |request| {
            request.wr.rdma.remote_addr = peer.address;
            request.wr.rdma.rkey = peer.key;
        })
    };
    talk.meet()?;
    (0..DEPTH).try_for_each(write)?;
    let mut number = 0;
    let status = loop {
        let completion = connection.wait_for_any()?;
        if completion.status != ibv_wc_status::IBV_WC_SUCCESS {
            break completion.status;
        }
        write(number + DEPTH)?;
        number += 1;
        if number == DEPTH {
            talk.meet()?;
        }
    };
    if number < DEPTH || status != ibv_wc_status::IBV_WC_RETRY_EXC_ERR {
        return Err(format!("write {number}: {}", describe(status)));
    }
    (1..DEPTH).try_for_each(|behind| {
        expect(
            connection,
            number + behind,
            ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        )
    })
}

/// Waits for the next completion, which must be that of the request `number` with this status.
fn expect(connection: &Connection, number: usize, status: ibv_wc_status) -> Result<()> {
    let completion = connection.wait_for_any()?;
    if (completion.wr_id, completion.status) == (number as u64, status) {
        return Ok(());
    }
    Err(format!(
        "request {}: {:?} instead of {:?} of request {number}",
        completion.wr_id,
        describe(completion.status),
        describe(status)
    ))
}
