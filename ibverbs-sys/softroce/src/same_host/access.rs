#![forbid(unsafe_code)]
//! Reading and writing the memory of a peer, without its doing anything.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::epoch::Lanes;
use super::link::Link;
use super::process::{self, Place};
use super::shared::Map;
use crate::memory::Piece;
use crate::proto::{AccessFlags, Remote};

/// A queue pair at a peer, as this side knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its number.
    pub(crate) number: u32,
    /// Its GID.
    pub(crate) gid: Ipv6Addr,
    /// The number of the queue pair here.
    pub(crate) own_number: u32,
    /// The GID here.
    pub(crate) own_gid: Ipv6Addr,
}

/// What a peer says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// Another one for each time that the queue pair becomes ready.
    pub(crate) generation: u32,
    /// The sequence number that it expected then.
    pub(crate) first: u32,
}

/// What is to be done with bytes of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access<'a> {
    /// These are copied there.
    Put(&'a [Piece<'a>]),
    /// They are copied here.
    Get(&'a [Piece<'a>]),
}

/// An atomic operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Where bytes of a peer are.
enum Found {
    Mapped(Arc<Map>, usize),
    Process(Place),
}

impl Link {
    /// What the peer says of a queue pair. None: it takes nothing from this side, or is not told of.
    pub(crate) fn connection(&self, target: &Target) -> Option<Connection> {
        let told = self.tables().queue_pair(target.number)?;
        let is_connected = told.peer == target.own_number
            && told.peer_gid == target.own_gid
            && told.own_gid == target.gid;
        is_connected.then_some(Connection {
            generation: told.generation,
            first: told.first,
        })
    }

    /// Does something with bytes of the peer. None: it cannot be done so, and maybe not at all; of a copy
    /// some of it may be done.
    pub(crate) fn access(
        &self,
        target: &Target,
        generation: u32,
        remote: Remote,
        access: Access<'_>,
    ) -> Option<()> {
        let (right, pieces) = match access {
            Access::Put(pieces) => (AccessFlags::REMOTE_WRITE, pieces),
            Access::Get(pieces) => (AccessFlags::REMOTE_READ, pieces),
        };
        let length: usize = pieces.iter().map(Piece::length).sum();
        let lane = Lanes(self.own_lanes()).enter(target.own_number as usize);
        let found = self.find(target, generation, remote, length, right)?;
        let done = match (found, access) {
            (None, _) => Some(()),
            (Some(Found::Mapped(map, offset)), Access::Put(pieces)) => map.put(offset, pieces),
            (Some(Found::Mapped(map, offset)), Access::Get(pieces)) => map.get(offset, pieces),
            (Some(Found::Process(place)), access) => {
                // Its number could be that of another process by now.
                if !self.is_fresh() {
                    return None;
                }
                let copied = match access {
                    Access::Put(pieces) => process::write(self.process(), pieces, place),
                    Access::Get(pieces) => process::read(self.process(), place, pieces),
                };
                copied.ok().filter(|&copied| copied == length).map(drop)
            }
        };
        drop(lane);
        done
    }

    /// Does an atomic operation on eight bytes of the peer; what they were. None: it was not done.
    pub(crate) fn atomic(
        &self,
        target: &Target,
        generation: u32,
        remote: Remote,
        atomic: Atomic,
    ) -> Option<u64> {
        if !remote.address.is_multiple_of(8) {
            return None;
        }
        let _lane = Lanes(self.own_lanes()).enter(target.own_number as usize);
        let right = AccessFlags::REMOTE_ATOMIC;
        let found = self.find(target, generation, remote, size_of::<u64>(), right)?;
        let Some(Found::Mapped(map, offset)) = found else {
            // The kernel's copies are no atomic operations: the peer does it.
            return None;
        };
        let word = map.word(offset)?;
        let order = Ordering::SeqCst;
        let before = match atomic {
            Atomic::CompareSwap { compare, swap } => word
                .compare_exchange(compare, swap, order, order)
                .unwrap_or_else(|before| before),
            Atomic::FetchAdd { add } => word.fetch_add(add, order),
        };
        Some(before)
    }

    /// Where bytes are that the peer lets be used so, in a lane that is in use. Of no bytes only that it may be done.
    #[expect(
        clippy::option_option,
        reason = "no bytes are nowhere, and that is not wrong"
    )]
    fn find(
        &self,
        target: &Target,
        generation: u32,
        remote: Remote,
        length: usize,
        right: AccessFlags,
    ) -> Option<Option<Found>> {
        let queue_pair = self.tables().queue_pair(target.number)?;
        if queue_pair.generation != generation
            || queue_pair.peer != target.own_number
            || !queue_pair.access.contains(right)
        {
            return None;
        }
        if length == 0 {
            return Some(None);
        }
        let slot = (remote.key >> 8).checked_sub(self.key_base())?;
        let region = self.tables().region(slot)?;
        let is_served = region
            .queue_pair
            .is_none_or(|only| only == queue_pair.number);
        if region.key != remote.key
            || region.domain != queue_pair.domain
            || !is_served
            || !region.access.contains(right)
        {
            return None;
        }
        let offset = region.offset(remote.address, length as u64)?;
        Some(Some(match &region.place {
            Some(place) => {
                let (map, offset) = self.map(place, offset, length as u64)?;
                Found::Mapped(map, offset)
            }
            None => Found::Process(Place {
                address: region.address.checked_add(offset)?,
                length,
            }),
        }))
    }
}
