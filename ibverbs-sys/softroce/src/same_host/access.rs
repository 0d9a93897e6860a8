#![forbid(unsafe_code)]
//! Reading and writing the memory of a peer, without its doing anything.
//!
//! Who does so visits the peer: a lane says that he is there, and until he leaves it nothing is taken back of what he found
//! told after he had entered. A visit takes a while for many copies as for one; but who takes something back waits
//! for its end, so it has a limit.
//!
//! What was told at one visit is kept for the next, each with its version: it is read again only where that has changed.

use std::net::Ipv6Addr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::link::Link;
use super::process::{self, Place};

use super::shared::Map;
use crate::epoch::{Lane, Lanes};
#[cfg(any(test, feature = "sim"))]
use crate::fault::stops::{self, StopPoint};
use crate::memory::{Piece, Published};
use crate::proto::{AccessFlags, Remote, Segment};
use crate::transfer::Atomic;

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
    /// Set if the connection is unreliable.
    pub(crate) is_unreliable: bool,
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

/// What is known of a queue pair at a peer and of its memory, by what was told at earlier visits.
#[derive(Debug, Default)]
pub(crate) struct Knowledge {
    queue_pair: Option<Reach>,
    /// The one that was used last. If it is in the arena, then in the part that is mapped here.
    region: Option<Extent>,
    map: Option<(Range<u64>, Arc<Map>)>,
}

/// What a queue pair reaches there.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// The version of what is told.
    version: u64,
    /// Whom it takes requests from.
    peer: u32,
    generation: u32,
    access: AccessFlags,
    domain: u64,
}

/// Memory that a key stands for, for one queue pair.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Slot of the region in the peer's table.
    slot: u32,
    /// The version of what is told.
    version: u64,
    key: u32,
    access: AccessFlags,
    start: u64,
    length: u64,
    bytes: Bytes,
}

/// Where the first byte is.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    /// So far into what is mapped here.
    Mapped(usize),
    /// At this address of the process.
    Process(u64),
}

/// Copies are under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Visit<'a> {
    link: &'a Link,
    known: &'a mut Knowledge,
    number: u32,
    access: AccessFlags,
    domain: u64,
    /// What may still be done in it, in bytes.
    left: usize,
    _lane: Lane<'a>,
}

/// Bytes that are copied in a visit before it is [over](Visit::is_over).
const LONG: usize = 64 << 10;

/// What a request counts as beside its bytes.
const REQUEST: usize = 512;

/// What a call of the kernel does.
const CALL: usize = 8 << 10;

impl Link {
    /// What the peer says of a queue pair. None: it takes nothing from this side, or is not told of.
    pub(crate) fn connection(&self, target: &Target) -> Option<Connection> {
        let (_, told) = self.tables().queue_pair(target.number)?;
        let is_connected = told.peer == target.own_number
            && told.peer_gid == target.own_gid
            && told.own_gid == target.gid
            && told.is_unreliable == target.is_unreliable;
        is_connected.then_some(Connection {
            generation: told.generation,
            first: told.first,
        })
    }

    /// Begins to read and write what a queue pair reaches there. None: it is not the one of that connection any more.
    #[inline]
    pub(crate) fn visit<'a>(
        &'a self,
        target: &Target,
        generation: u32,
        known: &'a mut Knowledge,
    ) -> Option<Visit<'a>> {
        let lane = Lanes(self.own_lanes()).enter(target.own_number as usize);
        let is_known = known
            .queue_pair
            .is_some_and(|reach| self.tables().has_queue_pair(target.number, reach.version));
        if !is_known {
            *known = Knowledge {
                queue_pair: self.reach(target.number),
                ..Knowledge::default()
            };
        }
        let reach = known.queue_pair?;
        let is_connected = reach.generation == generation && reach.peer == target.own_number;
        is_connected.then_some(Visit {
            link: self,
            known,
            number: target.number,
            access: reach.access,
            domain: reach.domain,
            left: LONG,
            _lane: lane,
        })
    }

    #[cold]
    fn reach(&self, number: u32) -> Option<Reach> {
        let (version, told) = self.tables().queue_pair(number)?;
        Some(Reach {
            version,
            peer: told.peer,
            generation: told.generation,
            access: told.access,
            domain: told.domain,
        })
    }
}

impl Visit<'_> {
    /// Whether so much was done that it is to end. Another one may follow.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Does something with bytes of the peer. None: it cannot be done so, and maybe not at all; of a copy
    /// some of it may be done.
    #[inline]
    pub(crate) fn access(&mut self, remote: Remote, access: Access<'_>) -> Option<()> {
        let (right, pieces) = match access {
            Access::Put(pieces) => (AccessFlags::REMOTE_WRITE, pieces),
            Access::Get(pieces) => (AccessFlags::REMOTE_READ, pieces),
        };
        if !self.access.contains(right) {
            return None;
        }
        let length = Piece::total(pieces);
        self.left = self.left.saturating_sub(length + REQUEST);
        if length == 0 {
            return Some(());
        }
        match self.find(remote, length, right)? {
            Bytes::Mapped(offset) => {
                let (_, map) = self.known.map.as_ref()?;
                match access {
                    Access::Put(pieces) => map.put(offset, pieces),
                    Access::Get(pieces) => map.get(offset, pieces),
                }
            }
            Bytes::Process(address) => self.by_kernel(Place { address, length }, access),
        }
    }

    /// Copies bytes of a message of the peer, which the peer's queue pair may send, to `pieces`.
    #[inline]
    pub(crate) fn fetch(&mut self, segment: &Segment, pieces: &[Piece<'_>]) -> Option<()> {
        let remote = Remote {
            address: segment.address,
            key: segment.key,
        };
        let length = Piece::total(pieces);
        self.left = self.left.saturating_sub(length + REQUEST);
        let bytes = self.find(remote, length, AccessFlags::empty())?;
        #[cfg(any(test, feature = "sim"))]
        stops::pass(StopPoint::Copy);
        match bytes {
            Bytes::Mapped(offset) => {
                let (_, map) = self.known.map.as_ref()?;
                map.get(offset, pieces)
            }
            Bytes::Process(address) => {
                self.by_kernel(Place { address, length }, Access::Get(pieces))
            }
        }
    }

    /// Returns whether the peer has published its queue pair without a change during this visit: then the bytes that were fetched
    /// are those of a message that had not ended.
    pub(crate) fn was_valid(&self) -> bool {
        #[cfg(any(test, feature = "sim"))]
        stops::pass(StopPoint::Copied);
        let reach = self.known.queue_pair;
        reach.is_some_and(|reach| {
            self.link
                .tables()
                .had_queue_pair(self.number, reach.version)
        })
    }

    /// Does an atomic operation on eight bytes of the peer; what they were. None: it was not done.
    #[inline]
    pub(crate) fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Option<u64> {
        let right = AccessFlags::REMOTE_ATOMIC;
        if !remote.address.is_multiple_of(8) || !self.access.contains(right) {
            return None;
        }
        self.left = self.left.saturating_sub(REQUEST);
        let Bytes::Mapped(offset) = self.find(remote, size_of::<u64>(), right)? else {
            // The kernel's copies are no atomic operations: the peer does it.
            return None;
        };
        let (_, map) = self.known.map.as_ref()?;
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

    #[cold]
    fn by_kernel(&mut self, place: Place, access: Access<'_>) -> Option<()> {
        let thread = self.link.thread()?;
        self.left = self.left.saturating_sub(CALL);
        let copied = match access {
            Access::Put(pieces) => process::write(thread, pieces, place),
            Access::Get(pieces) => process::read(thread, place, pieces),
        };
        copied
            .ok()
            .filter(|&copied| copied == place.length)
            .map(drop)
    }

    /// Where bytes are that the peer lets be used so.
    #[inline]
    fn find(&mut self, remote: Remote, length: usize, right: AccessFlags) -> Option<Bytes> {
        let known = self.known.region.as_ref().filter(|known| {
            known.key == remote.key && self.link.tables().has_region(known.slot, known.version)
        });
        let region = match known {
            Some(region) => region,
            None => self.learn(remote.key)?,
        };
        if !region.access.contains(right) {
            return None;
        }
        let offset = region.offset(remote.address, length as u64)?;
        Some(match region.bytes {
            Bytes::Mapped(begin) => Bytes::Mapped(begin.checked_add(offset as usize)?),
            Bytes::Process(address) => Bytes::Process(address.checked_add(offset)?),
        })
    }

    /// Reads what is told of a key.
    #[inline(never)]
    fn learn(&mut self, key: u32) -> Option<&Extent> {
        self.known.region = None;
        let index = (key >> 8).checked_sub(self.link.key_base())?;
        let slot = self.link.tables().slot(index)?;
        let (version, region) = self.link.tables().region(slot)?;
        let is_served = region.queue_pair.is_none_or(|only| only == self.number);
        if region.key != key || region.domain != self.domain || !is_served {
            return None;
        }
        let bytes = match &region.place {
            Some(_) => Bytes::Mapped(self.locate(&region)?),
            None => Bytes::Process(region.address),
        };
        Some(self.known.region.insert(Extent {
            slot,
            version,
            key,
            access: region.access,
            start: region.start,
            length: region.length,
            bytes,
        }))
    }

    /// How far into what is mapped here a region begins, all of which is inside then.
    fn locate(&mut self, region: &Published) -> Option<usize> {
        let place = region.place.as_ref()?;
        let end = place.offset.checked_add(region.length)?;
        if let Some((range, _)) = &self.known.map
            && range.start <= place.offset
            && end <= range.end
        {
            return Some((place.offset - range.start) as usize);
        }
        let (map, offset) = self.link.map(place, 0, region.length)?;
        let begin = place.offset - offset as u64;
        let range = begin..begin + map.length() as u64;
        self.known.map = Some((range, map));
        Some(offset)
    }
}

impl Extent {
    /// How far into it `length` bytes from `address` on begin, if they are all inside.
    #[inline]
    fn offset(&self, address: u64, length: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        (offset <= self.length && length <= self.length - offset).then_some(offset)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_inside_is_inside() {
        let extent = Extent {
            slot: 0,
            version: 2,
            key: 1,
            access: AccessFlags::REMOTE_WRITE,
            start: 0x1000,
            length: 100,
            bytes: Bytes::Mapped(0),
        };
        assert_eq!(extent.offset(0x1000, 100), Some(0));
        assert_eq!(extent.offset(0x1000 + 100, 0), Some(100));
        for (address, length) in [
            (0x1001, 100),
            (0xfff, 1),
            (0, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(extent.offset(address, length), None);
        }
    }
}
