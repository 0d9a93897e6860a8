#![forbid(unsafe_code)]
//! One-sided reads and writes: this process copies directly from and to the mapped memory of a peer
//! process.
//!
//! While this process copies, a [`CopySession`] exists and occupies a lane, a shared word that the
//! peer polls. A peer that retracts memory waits until all lanes that were occupied at that moment
//! are free. So published memory that a session finds stays valid until the session ends. Beginning
//! a session has a fixed cost, so several copies share one session. The length of a session is
//! limited, because a peer may wait for its end.
//!
//! The records of the peer that a session has read are cached in a [`CachedRecords`], with their
//! versions. The records are read again only after the peer has changed them.

use std::net::Ipv6Addr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::link::Link;
use super::process::{self, RemoteRange};

use super::shared::Map;
use crate::epoch::{Lane, Lanes};
#[cfg(any(test, feature = "sim"))]
use crate::fault::stops::{self, StopPoint};
use crate::memory::{Piece, Published};
use crate::proto::{AccessFlags, Remote, Segment};
use crate::transfer::Atomic;

/// A queue pair of a peer process, and the local queue pair that is connected to it. This process
/// copies directly from and to the peer's memory on behalf of these two queue pairs.
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
    /// Set if the connection is unreliable (UC instead of RC).
    pub(crate) is_unreliable: bool,
}

/// Connection state of the two queue pairs of a [`Target`] (the peer's and the local one), as the
/// peer has published it in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// Version of the record of the peer's queue pair when the record was read, by which later
    /// changes are detected.
    version: u64,
    /// Generation number, which changes each time that the peer's queue pair becomes ready to
    /// receive.
    pub(crate) generation: u32,
    /// Packet sequence number that the peer's queue pair expected when it became ready to receive.
    pub(crate) first: u32,
}

/// Direction of a copy between this process and a peer process, and the memory ranges of this
/// process that are copied from or to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access<'a> {
    /// Copies from these memory ranges of this process to the peer's memory.
    Put(&'a [Piece<'a>]),
    /// Copies from the peer's memory to these memory ranges of this process.
    Get(&'a [Piece<'a>]),
}

/// Cache of two records that a peer has published: the record of its queue pair, and the record of
/// the memory region that was accessed last. A later access compares only the versions of the
/// records to detect changes, and does not read the records again.
#[derive(Debug, Default)]
pub(crate) struct CachedRecords {
    queue_pair: Option<CachedQueuePair>,
    /// Memory region of the last access. If the region is in the peer's arena (shared file), the
    /// mapping `map` contains it.
    region: Option<CachedRegion>,
    map: Option<(Range<u64>, Arc<Map>)>,
}

/// Cached record of a peer's queue pair: its connection, access flags and protection domain.
#[derive(Clone, Copy, Debug)]
struct CachedQueuePair {
    /// Version of the record of the queue pair when the record was read, by which later changes are
    /// detected.
    version: u64,
    /// Number of the local queue pair from which the peer's queue pair accepts requests.
    peer: u32,
    generation: u32,
    access: AccessFlags,
    domain: u64,
}

/// Cached record of a peer's memory region or memory window, so that several accesses need one read
/// of the record.
#[derive(Clone, Copy, Debug)]
struct CachedRegion {
    /// Index of the region's record in the peer's table of regions and windows.
    slot: u32,
    /// Version of the record of the region or window when the record was read, by which later
    /// changes are detected.
    version: u64,
    key: u32,
    access: AccessFlags,
    start: u64,
    length: u64,
    bytes: Location,
}

/// Location of a range of bytes in a peer's memory: in a mapping of this process, or at an address
/// that only the kernel can copy from and to.
#[derive(Clone, Copy, Debug)]
enum Location {
    /// Offset in the range of the peer's arena (shared file) that this process has mapped.
    Mapped(usize),
    /// Address in the memory of the peer process, which only the kernel can copy.
    Process(u64),
}

/// A period in which this process copies from and to a peer's memory. A peer that withdraws memory
/// in this period, for example because it deregisters a region, waits until the session is dropped.
#[derive(Debug)]
pub(crate) struct CopySession<'a> {
    link: &'a Link,
    known: &'a mut CachedRecords,
    number: u32,
    access: AccessFlags,
    domain: u64,
    /// Number of bytes after which this session is over, at first [`MAX_SESSION_BYTES`]. The
    /// overhead of requests and system calls also counts as bytes.
    left: usize,
    _lane: Lane<'a>,
}

/// Maximum number of bytes that are copied in a [`CopySession`] (period of access to a peer's
/// memory) before the session must end. A peer that withdraws memory waits for the end of the
/// session, and the limit keeps this wait short. The last request of a session can exceed the limit
/// by up to [`MAX_COPY`](crate::transfer::MAX_COPY) bytes. Each request and each system call adds a
/// fixed cost, in bytes: [`REQUEST_COST`] and [`SYSTEM_CALL_COST`].
const MAX_SESSION_BYTES: usize = 64 << 10;

/// Fixed cost of one request, in bytes that count against [`MAX_SESSION_BYTES`]. So many short
/// requests also reach this limit. A request takes about as long as a copy of this number of bytes.
/// A request is an RDMA read, write or atomic, or a copy of a payload segment.
const REQUEST_COST: usize = 512;

/// Fixed cost of one system call that copies, in bytes that count against [`MAX_SESSION_BYTES`]. A
/// system call takes about as long as a copy of this number of bytes.
const SYSTEM_CALL_COST: usize = 8 << 10;

impl Link {
    /// Returns the connection state that the peer has published for its queue pair in `target`.
    /// Returns `None` if that queue pair is not published, or is not connected to the local queue
    /// pair in `target`.
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

    /// Returns whether the peer's queue pair in `target` still has the connection `connection`. The
    /// caller got `connection` from the method [`connection`](Self::connection).
    #[inline]
    pub(crate) fn has_connection(&self, target: &Target, connection: &Connection) -> bool {
        self.tables()
            .has_queue_pair(target.number, connection.version)
    }

    /// Begins a [`CopySession`]: a period in which this process may copy from and to the memory of
    /// the peer's queue pair `target`. Returns `None` if the queue pair is no longer published.
    /// Also returns `None` if the peer has connected the queue pair again, so that its connection
    /// no longer has the number `generation`. `known` caches the records that the peer has
    /// published, and is updated if they have changed.
    #[inline]
    pub(crate) fn begin_session<'a>(
        &'a self,
        target: &Target,
        generation: u32,
        known: &'a mut CachedRecords,
    ) -> Option<CopySession<'a>> {
        let lane = Lanes(self.own_lanes()).enter(target.own_number as usize);
        let is_known = known
            .queue_pair
            .is_some_and(|reach| self.tables().has_queue_pair(target.number, reach.version));
        if !is_known {
            *known = CachedRecords {
                queue_pair: self.reach(target.number),
                ..CachedRecords::default()
            };
        }
        let reach = known.queue_pair?;
        let is_connected = reach.generation == generation && reach.peer == target.own_number;
        is_connected.then_some(CopySession {
            link: self,
            known,
            number: target.number,
            access: reach.access,
            domain: reach.domain,
            left: MAX_SESSION_BYTES,
            _lane: lane,
        })
    }

    #[cold]
    fn reach(&self, number: u32) -> Option<CachedQueuePair> {
        let (version, told) = self.tables().queue_pair(number)?;
        Some(CachedQueuePair {
            version,
            peer: told.peer,
            generation: told.generation,
            access: told.access,
            domain: told.domain,
        })
    }
}

impl CopySession<'_> {
    /// Returns whether this session has reached the limit of [`MAX_SESSION_BYTES`]. The caller must
    /// then drop the session. The caller can begin another session afterwards.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Executes an RDMA read or write: copies bytes directly from or to the peer's memory at
    /// `remote`. `access` contains the direction and the local memory. Returns `None` if the peer
    /// does not permit the copy, or if this process cannot copy all bytes. In this case, some of
    /// the bytes can have been copied.
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
        self.left = self.left.saturating_sub(length + REQUEST_COST);
        if length == 0 {
            return Some(());
        }
        match self.find(remote, length, right)? {
            Location::Mapped(offset) => {
                let (_, map) = self.known.map.as_ref()?;
                match access {
                    Access::Put(pieces) => map.put(offset, pieces),
                    Access::Get(pieces) => map.get(offset, pieces),
                }
            }
            Location::Process(address) => {
                self.copy_by_kernel(RemoteRange { address, length }, access)
            }
        }
    }

    /// Copies part of the payload of a peer's message from the peer's memory to the local memory
    /// ranges `pieces`. `segment` is the address range of this part in the peer's memory. Returns
    /// `None` if not all bytes could be copied.
    #[inline]
    pub(crate) fn fetch(&mut self, segment: &Segment, pieces: &[Piece<'_>]) -> Option<()> {
        let remote = Remote {
            address: segment.address,
            key: segment.key,
        };
        let length = Piece::total(pieces);
        self.left = self.left.saturating_sub(length + REQUEST_COST);
        let bytes = self.find(remote, length, AccessFlags::empty())?;
        #[cfg(any(test, feature = "sim"))]
        stops::pass(StopPoint::Copy);
        match bytes {
            Location::Mapped(offset) => {
                let (_, map) = self.known.map.as_ref()?;
                map.get(offset, pieces)
            }
            Location::Process(address) => {
                self.copy_by_kernel(RemoteRange { address, length }, Access::Get(pieces))
            }
        }
    }

    /// Returns whether the peer's queue pair is unchanged since this session began. If so, the
    /// bytes that [`fetch`](Self::fetch) copied are those of the message: the peer had not reused
    /// the memory before the copy.
    pub(crate) fn was_valid(&self) -> bool {
        #[cfg(any(test, feature = "sim"))]
        stops::pass(StopPoint::Copied);
        let reach = self.known.queue_pair;
        reach.is_some_and(|reach| {
            self.link
                .tables()
                .is_queue_pair_unchanged(self.number, reach.version)
        })
    }

    /// Executes an atomic operation on the eight bytes of the peer's memory at `remote`, and
    /// returns the previous value of these bytes. Returns `None` if the operation is not possible,
    /// for example because the peer does not permit it.
    #[inline]
    pub(crate) fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Option<u64> {
        let right = AccessFlags::REMOTE_ATOMIC;
        if !remote.address.is_multiple_of(8) || !self.access.contains(right) {
            return None;
        }
        self.left = self.left.saturating_sub(REQUEST_COST);
        let Location::Mapped(offset) = self.find(remote, size_of::<u64>(), right)? else {
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
    fn copy_by_kernel(&mut self, place: RemoteRange, access: Access<'_>) -> Option<()> {
        let thread = self.link.thread()?;
        self.left = self.left.saturating_sub(SYSTEM_CALL_COST);
        let copied = match access {
            Access::Put(pieces) => process::write(thread, pieces, place),
            Access::Get(pieces) => process::read(thread, place, pieces),
        };
        copied
            .ok()
            .filter(|&copied| copied == place.length)
            .map(drop)
    }

    /// Returns the location of the `length` bytes that `remote` names in the peer's memory. Returns
    /// `None` if the peer has not published these bytes with the access flag `right`.
    #[inline]
    fn find(&mut self, remote: Remote, length: usize, right: AccessFlags) -> Option<Location> {
        let known = self.known.region.as_ref().filter(|known| {
            known.key == remote.key && self.link.tables().has_region(known.slot, known.version)
        });
        let region = match known {
            Some(region) => region,
            None => self.read_region(remote.key)?,
        };
        if !region.access.contains(right) {
            return None;
        }
        let offset = region.offset(remote.address, length as u64)?;
        Some(match region.bytes {
            Location::Mapped(begin) => Location::Mapped(begin.checked_add(offset as usize)?),
            Location::Process(address) => Location::Process(address.checked_add(offset)?),
        })
    }

    /// Reads the published record of the peer's memory region or window with the key `key`, and
    /// caches the record. Returns `None` if the connected queue pair may not access this memory, or
    /// if this process cannot map the memory.
    #[inline(never)]
    fn read_region(&mut self, key: u32) -> Option<&CachedRegion> {
        self.known.region = None;
        let index = (key >> 8).checked_sub(self.link.key_base())?;
        let slot = self.link.tables().slot(index)?;
        let (version, region) = self.link.tables().region(slot)?;
        let is_served = region.queue_pair.is_none_or(|only| only == self.number);
        if region.key != key || region.domain != self.domain || !is_served {
            return None;
        }
        let bytes = match &region.place {
            Some(_) => Location::Mapped(self.locate(&region)?),
            None => Location::Process(region.address),
        };
        Some(self.known.region.insert(CachedRegion {
            slot,
            version,
            key,
            access: region.access,
            start: region.start,
            length: region.length,
            bytes,
        }))
    }

    /// Returns the offset of the peer's memory region `region` in the cached mapping of the peer's
    /// arena (shared file of its regions). If the mapping does not contain the region, first
    /// replaces the mapping. Returns `None` if the whole region cannot be mapped.
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

impl CachedRegion {
    /// Returns the offset of the byte with the address `address` from the start of this region.
    /// Returns `None` if the `length` bytes at this address are not all in the region.
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
    fn ranges_that_leave_a_region_are_refused() {
        let extent = CachedRegion {
            slot: 0,
            version: 2,
            key: 1,
            access: AccessFlags::REMOTE_WRITE,
            start: 0x1000,
            length: 100,
            bytes: Location::Mapped(0),
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
