#![forbid(unsafe_code)]
//! One-sided reads and writes: this process copies directly from and to the mapped memory of a peer process.
//!
//! While this process copies, a [`Visit`] exists and occupies a lane, a shared word that the peer polls. A peer that
//! retracts memory waits until all lanes that were occupied at that moment are free. So published memory that a visit
//! finds stays valid until the visit ends. Beginning a visit has a fixed cost, so several copies share one visit. The
//! length of a visit is limited, because a peer may wait for its end.
//!
//! The records of the peer that a visit has read are cached in a [`Knowledge`], with their versions. They are read
//! again only after the peer has changed them.

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

/// A queue pair of a peer process, and the local queue pair that is connected to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Number of the peer's queue pair.
    pub(crate) number: u32,
    /// GID of the peer's queue pair.
    pub(crate) gid: Ipv6Addr,
    /// Number of the local queue pair.
    pub(crate) own_number: u32,
    /// GID of the local queue pair.
    pub(crate) own_gid: Ipv6Addr,
    /// Set if the connection is unreliable.
    pub(crate) is_unreliable: bool,
}

/// State of the connection between the two queue pairs of a [`Target`], as the peer has published it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// Version that the record of the peer's queue pair had when it was read.
    version: u64,
    /// Generation number, which changes each time that the peer's queue pair becomes ready to receive.
    pub(crate) generation: u32,
    /// Packet sequence number that the peer's queue pair expected when it became ready to receive.
    pub(crate) first: u32,
}

/// Direction of a copy between memory of this process and memory of a peer process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access<'a> {
    /// Copies these bytes of this process to the peer's memory.
    Put(&'a [Piece<'a>]),
    /// Copies from the peer's memory to these memory ranges of this process.
    Get(&'a [Piece<'a>]),
}

/// Cached records of a peer's queue pair and of the memory region that was accessed last.
#[derive(Debug, Default)]
pub(crate) struct Knowledge {
    queue_pair: Option<Reach>,
    /// The memory region of the last access. If it is in the peer's arena (shared file), the mapping `map` contains it.
    region: Option<Extent>,
    map: Option<(Range<u64>, Arc<Map>)>,
}

/// Cached record of a peer's queue pair: its connection, access flags and protection domain.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Version that the record of the queue pair had when it was read.
    version: u64,
    /// Number of the local queue pair from which the peer's queue pair accepts requests.
    peer: u32,
    generation: u32,
    access: AccessFlags,
    domain: u64,
}

/// Cached record of a peer's memory region or memory window.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Index of the record in the peer's table of regions and windows.
    slot: u32,
    /// Version that the record of the region or window had when it was read.
    version: u64,
    key: u32,
    access: AccessFlags,
    start: u64,
    length: u64,
    bytes: Bytes,
}

/// Location of the first byte of a peer's memory region, which determines how the memory is copied.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    /// Offset in the range of the peer's arena (shared file) that this process has mapped.
    Mapped(usize),
    /// Address in the peer process, from and to whose memory only the kernel can copy.
    Process(u64),
}

/// A period in which this process copies from and to a peer's memory. If the peer retracts memory meanwhile, it waits
/// until the visit is dropped.
#[derive(Debug)]
pub(crate) struct Visit<'a> {
    link: &'a Link,
    known: &'a mut Knowledge,
    number: u32,
    access: AccessFlags,
    domain: u64,
    /// Number of bytes that may still be copied in this visit. The overhead of requests and system calls also counts as
    /// bytes.
    left: usize,
    _lane: Lane<'a>,
}

/// Maximum number of bytes that are copied in a [`Visit`] (period of access to a peer's memory). The overhead of
/// requests and system calls also counts as bytes.
const LONG: usize = 64 << 10;

/// Overhead of a one-sided request, expressed as the number of bytes that can be copied in the same time.
const REQUEST: usize = 512;

/// Overhead of a copy by a system call, expressed as the number of bytes that can be copied in the same time.
const CALL: usize = 8 << 10;

impl Link {
    /// Returns the state of the connection that the peer has published for the queue pair of `target`. Returns `None` if
    /// that queue pair is not published, or is not connected to the local one.
    pub(crate) fn connection(&self, target: &Target) -> Option<Connection> {
        let (version, told) = self.tables().queue_pair(target.number)?;
        let is_connected = told.peer == target.own_number
            && told.peer_gid == target.own_gid
            && told.own_gid == target.gid
            && told.is_unreliable == target.is_unreliable;
        is_connected.then_some(Connection {
            version,
            generation: told.generation,
            first: told.first,
        })
    }

    /// Returns whether the peer has left the state `connection` unchanged, which [`connection`](Self::connection) has returned
    /// for `target`.
    #[inline]
    pub(crate) fn has_connection(&self, target: &Target, connection: &Connection) -> bool {
        self.tables()
            .has_queue_pair(target.number, connection.version)
    }

    /// Begins a [`Visit`]: a period in which this process may copy from and to the memory that the peer's queue pair makes
    /// accessible. Returns `None` if the peer's queue pair no longer has the connection with this generation number.
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
    /// Returns whether the visit has reached its maximum length. The caller must then drop it, and may begin another one.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Executes an RDMA read or write: copies bytes directly from or to the peer's memory. Returns `None` if the peer does
    /// not permit the copy, or if this process cannot perform it. Some of the bytes may have been copied in that case.
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

    /// Copies the payload of a message that the peer's queue pair sends, or a range of it, from the peer's memory to the
    /// memory ranges `pieces`. Returns `None` if not all bytes could be copied.
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

    /// Returns whether the peer has left the record of its queue pair unchanged since this visit began. If so, the bytes
    /// that [`fetch`](Self::fetch) has copied are those of a send request that had not completed.
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

    /// Performs an atomic operation on eight bytes of the peer's memory, and returns their previous value. Returns `None` if
    /// the operation was not performed.
    #[inline]
    pub(crate) fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Option<u64> {
        let right = AccessFlags::REMOTE_ATOMIC;
        if !remote.address.is_multiple_of(8) || !self.access.contains(right) {
            return None;
        }
        self.left = self.left.saturating_sub(REQUEST);
        let Bytes::Mapped(offset) = self.find(remote, size_of::<u64>(), right)? else {
            // The kernel's copies are not atomic, so the peer has to execute the operation.
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

    /// Returns the location of the `length` bytes that `remote` names in the peer's memory, or `None` if the peer has not
    /// published them with the access flag `right`.
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

    /// Reads the peer's record of the region or window with the key `key` into the cache. Returns `None` if this queue pair
    /// may not access a region or window with that key.
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

    /// Returns the offset of a region in the mapped range of the peer's arena (shared file). Maps another range if the
    /// region is not in the present one. Returns `None` if the whole region cannot be mapped.
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
    /// Returns the offset in the region of the byte that requests name by `address`. Returns `None` if not all of the
    /// `length` bytes from there on are inside the region.
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
