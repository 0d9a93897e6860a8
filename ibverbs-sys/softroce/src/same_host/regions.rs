#![forbid(unsafe_code)]
//! The tables in which a process publishes its memory regions, memory windows and queue pairs to
//! peers of the same host.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::record_array::{self, Record, RecordArray};
use super::shared::{self, Map, MappedArray, Rights};
use crate::descriptor::Descriptor;
use crate::limits;
pub(super) use crate::memory::{FilePlace, Published};
use crate::number;
use crate::proto::AccessFlags;

/// A queue pair that is ready to receive, as its process publishes it to peers in a shared table.
/// The connected peer reads this entry before it accesses memory through the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePair {
    /// Number of the queue pair.
    pub(crate) number: u32,
    /// Number of the queue pair to which this one is connected.
    pub(crate) peer: u32,
    /// GID of the queue pair.
    pub(crate) own_gid: Ipv6Addr,
    /// GID of the queue pair to which this one is connected.
    pub(crate) peer_gid: Ipv6Addr,
    /// Set if the connection is unreliable (UC instead of RC).
    pub(crate) is_unreliable: bool,
    /// Remote access rights that the queue pair grants to requests of the peer.
    pub(crate) access: AccessFlags,
    /// Number of the queue pair's protection domain.
    pub(crate) domain: u64,
    /// Packet sequence number that the queue pair expected when it became ready to receive.
    pub(crate) first: u32,
    /// Generation number, which changes each time that the queue pair becomes ready to receive.
    pub(crate) generation: u32,
}

/// Unit of the segment boundaries in a published record, in bytes. A segment (part of a shared
/// file) consists of whole units. In this unit, the start and the length of a segment fit into 32
/// bits each.
const SEGMENT_UNIT: u64 = 2 << 20;

/// Number of records for memory regions and windows: the maximum numbers of regions and of windows,
/// and 1024 further records. The further records are needed because the record of a removed region
/// or window is not reused immediately.
const REGIONS: usize = limits::MAX_MR + limits::MAX_MW + 1024;

/// Number of records in the table in which a process publishes its queue pairs. Queue pairs that
/// exist at the same time use different records.
const QUEUE_PAIRS: usize = number::RECORDS;

/// Length in bytes of the shared file that contains the tables of queue pairs and regions.
pub(super) const LENGTH: usize = DIFFERENCES_AT + REGIONS;

/// Offset in bytes of the records of regions and windows, in the shared file of the published
/// tables.
pub(super) const REGIONS_AT: usize = QUEUE_PAIRS * size_of::<Record>();

/// Byte offset of the array `Tables::differences` in the shared file. This array finds the record
/// of a memory key. The number of the record is the index in the key, XOR the array element at this
/// index.
pub(super) const DIFFERENCES_AT: usize = REGIONS_AT + REGIONS * size_of::<Record>();

/// Mask of a 24-bit queue pair number in a word of a published record. The word must first be
/// shifted so that the number is in the low bits.
const NUMBER: u64 = 0xff_ffff;

impl Published {
    fn encode(&self) -> Option<[u64; record_array::WORDS]> {
        let only = self
            .queue_pair
            .map_or(0, |number| 1 << 24 | u64::from(number));
        let rights = u64::from(self.access.bits() as u8);
        let (offset, segment) = match &self.place {
            None => (u64::MAX, 0),
            Some(FilePlace { offset, segment }) => {
                let start = u32::try_from(segment.start / SEGMENT_UNIT).ok()?;
                let units = u32::try_from((segment.end - segment.start) / SEGMENT_UNIT).ok()?;
                (*offset, u64::from(start) << 32 | u64::from(units))
            }
        };
        Some([
            u64::from(self.key) << 32 | (rights & 0x7f) << 25 | only,
            self.domain,
            self.start,
            self.length,
            self.address,
            offset,
            segment,
        ])
    }

    /// Decodes the words of a peer's record of a region or window. Does not check the fields, so
    /// they can have any values.
    fn decode(words: &[u64; record_array::WORDS]) -> Self {
        let &[head, domain, start, length, address, offset, segment] = words;
        let from = (segment >> 32) * SEGMENT_UNIT;
        let place = FilePlace {
            offset,
            segment: from..from + (segment & 0xffff_ffff) * SEGMENT_UNIT,
        };
        Self {
            key: (head >> 32) as u32,
            domain,
            queue_pair: (head & 1 << 24 != 0).then_some((head & NUMBER) as u32),
            access: AccessFlags::from_bits_truncate((head >> 25) as u32 & 0x7f),
            start,
            length,
            address,
            place: (offset != u64::MAX).then_some(place),
        }
    }
}

/// Bit number of the flag for an unreliable connection, in the first word of the published record
/// of a queue pair.
const UNRELIABLE_BIT: u32 = 48;

impl QueuePair {
    fn encode(&self) -> [u64; record_array::WORDS] {
        let halves = |gid: Ipv6Addr| {
            let bits = gid.to_bits();
            [(bits >> 64) as u64, bits as u64]
        };
        let ([own_high, own_low], [peer_high, peer_low]) =
            (halves(self.own_gid), halves(self.peer_gid));
        let access = u64::from(self.access.bits() as u8);
        let numbers = u64::from(self.number) << 24 | u64::from(self.peer);
        [
            access << 56 | u64::from(self.is_unreliable) << UNRELIABLE_BIT | numbers,
            u64::from(self.generation) << 32 | u64::from(self.first),
            self.domain,
            own_high,
            own_low,
            peer_high,
            peer_low,
        ]
    }

    fn decode(words: &[u64; record_array::WORDS]) -> Self {
        let &[head, first, domain, own_high, own_low, peer_high, peer_low] = words;
        let gid = |high, low| Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        Self {
            number: (head >> 24 & NUMBER) as u32,
            peer: (head & NUMBER) as u32,
            own_gid: gid(own_high, own_low),
            peer_gid: gid(peer_high, peer_low),
            is_unreliable: head & 1 << UNRELIABLE_BIT != 0,
            access: AccessFlags::from_bits_truncate((head >> 56) as u32),
            domain,
            first: first as u32,
            generation: (first >> 32) as u32,
        }
    }
}

/// Tables in which this process publishes its memory and its queue pairs to peer processes of the
/// host. Peers can map the file of the tables only for reading.
#[derive(Debug)]
pub(crate) struct Publication {
    file: Descriptor,
    /// Random number that is added to a table index to form the high 24 bits of a memory key. The
    /// table index, which is an index of [`Tables::differences`], is not the number of the record.
    key_base: u32,
    tables: Tables,
}

/// Mapped tables in which a process publishes its queue pairs, memory regions and memory windows.
/// The process is either this process or a peer.
#[derive(Debug)]
pub(super) struct Tables {
    queue_pairs: RecordArray<MappedArray<Record>>,
    regions: RecordArray<MappedArray<Record>>,
    /// For each index in memory keys, the bits in which the index differs from the number of its
    /// record. The indices are in a random order, so that keys cannot be guessed.
    differences: MappedArray<AtomicU8>,
}

impl Tables {
    fn of(map: Map) -> Option<Self> {
        let map = Arc::new(map);
        Some(Self {
            queue_pairs: RecordArray(MappedArray::of(&map, 0, QUEUE_PAIRS)?),
            regions: RecordArray(MappedArray::of(&map, REGIONS_AT, REGIONS)?),
            differences: MappedArray::of(&map, DIFFERENCES_AT, REGIONS)?,
        })
    }

    /// Maps the file in which a peer publishes its regions, windows and queue pairs, for reading.
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let map = Map::of(file, 0..LENGTH as u64, Rights::Read)?;
        Self::of(map).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Returns the version and the content of the record with the number `slot`, in which the
    /// process of these tables has published a memory region or window. Returns `None` if the
    /// record is empty.
    pub(super) fn region(&self, slot: u32) -> Option<(u64, Published)> {
        let (version, words) = self.regions.find(slot as usize)?;
        Some((version, Published::decode(&words)))
    }

    /// Returns the number of the record that describes the region or window whose memory keys
    /// contain `index`. Returns `None` if `index` is out of range.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> Option<u32> {
        let difference = self.differences.get(index as usize)?;
        Some(index ^ u32::from(difference.load(Ordering::Relaxed)))
    }

    /// Returns whether the record `slot` of a memory region or window still has the version
    /// `version`. If so, the content that was read together with this version is still valid.
    #[inline]
    pub(super) fn has_region(&self, slot: u32, version: u64) -> bool {
        self.regions.is_current(slot as usize, version)
    }

    /// Returns the published record of the process's queue pair with the number `number`, and the
    /// version of the record. A later change of the record changes the version. Returns `None` if
    /// the queue pair is not published.
    pub(super) fn queue_pair(&self, number: u32) -> Option<(u64, QueuePair)> {
        let (version, words) = self.queue_pairs.find(number::record(number))?;
        let found = QueuePair::decode(&words);
        (found.number == number).then_some((version, found))
    }

    /// Returns whether the published record of the queue pair with the number `number` still has
    /// the version `version`. If so, a cached copy of the record is valid.
    #[inline]
    pub(super) fn has_queue_pair(&self, number: u32, version: u64) -> bool {
        self.queue_pairs.is_current(number::record(number), version)
    }

    /// Returns whether the published record of the queue pair `number` is unchanged since
    /// [`queue_pair`](Self::queue_pair) returned `version`. If so, the bytes that this thread has
    /// copied since then are valid: the peer changes the record before the program of the peer can
    /// overwrite the bytes.
    pub(super) fn is_queue_pair_unchanged(&self, number: u32, version: u64) -> bool {
        let index = number::record(number);
        self.queue_pairs.has_kept_version(index, version)
    }
}

impl Publication {
    /// Creates empty tables, in which this process makes its queue pairs, memory regions and
    /// windows known to peers. `key_base` is the random number that [`key_base`](Self::key_base)
    /// will return.
    pub(crate) fn new(key_base: u32) -> io::Result<Self> {
        let (file, map) = shared::create("softroce-tables", LENGTH, true)?;
        let tables = Tables::of(map).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            file,
            key_base,
            tables,
        })
    }

    /// Returns the random number that is added to a table index to get the high 24 bits of a memory
    /// key. Peers subtract it to find the record of a key.
    pub(crate) fn key_base(&self) -> u32 {
        self.key_base
    }

    /// Publishes the memory region or window `region` to peers, in the record with the number
    /// `slot`. Afterwards the caller must wait for peers that still use the previous content of the
    /// record.
    pub(crate) fn publish_region(&self, slot: u32, region: &Published) {
        let index = (region.key >> 8).wrapping_sub(self.key_base);
        if let Some(difference) = self.tables.differences.get(index as usize) {
            difference.store((index ^ slot) as u8, Ordering::Relaxed);
        }
        if let Some(words) = region.encode() {
            self.tables.regions.publish(slot as usize, &words);
        }
    }

    /// Empties the record `slot` of a memory region or window, so that peers cannot begin to access
    /// the memory. Afterwards the caller must wait for copies that peers have begun before. Returns
    /// the version of the record, which changes if the record is published again.
    pub(crate) fn retract_region(&self, slot: u32) -> u64 {
        self.tables.regions.retract(slot as usize)
    }

    /// Returns whether the record with the number `slot` currently publishes a region or window to
    /// peers.
    pub(crate) fn has_published_region(&self, slot: u32) -> bool {
        self.tables.regions.read(slot as usize).is_some()
    }

    /// Publishes the queue pair `queue_pair` to peers in its record of the shared table, and
    /// replaces the previous content of the record.
    pub(crate) fn publish_queue_pair(&self, queue_pair: &QueuePair) {
        let index = number::record(queue_pair.number);
        self.tables.queue_pairs.publish(index, &queue_pair.encode());
    }

    /// Marks the record of the queue pair with the number `number` as empty, so that peers no
    /// longer find the queue pair. Returns `true` if the queue pair was published. The caller must
    /// then wait for peers that still access memory through the queue pair.
    pub(crate) fn retract_queue_pair(&self, number: u32) -> bool {
        let is_told = self.tables.queue_pair(number).is_some();
        if is_told {
            self.tables.queue_pairs.retract(number::record(number));
        }
        is_told
    }
}

impl AsFd for Publication {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn region(key: u32) -> Published {
        Published {
            key,
            domain: 7,
            queue_pair: None,
            access: AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE,
            start: 0x1000,
            length: 100,
            address: 0x7fff_0000_1234,
            place: None,
        }
    }

    fn queue_pair(number: u32) -> QueuePair {
        QueuePair {
            number,
            peer: 0xabcdef,
            own_gid: "::ffff:127.1.2.3".parse().unwrap(),
            peer_gid: "fd73:726f:6365:169f::7f01:203".parse().unwrap(),
            is_unreliable: true,
            access: AccessFlags::REMOTE_ATOMIC,
            domain: 9,
            first: 0xff_ffff,
            generation: 0x8000_0001,
        }
    }

    #[test]
    fn a_peer_reads_a_published_region_until_withdrawn() {
        let publication = Publication::new(0).unwrap();
        let tables = Tables::map(publication.as_fd()).unwrap();
        let region_in = |slot| tables.region(slot).map(|(_, region)| region);
        let queue_pair_of = |number| tables.queue_pair(number).map(|(_, told)| told);
        assert_eq!((region_in(3), queue_pair_of(0x123456)), (None, None));
        let placed = Published {
            queue_pair: Some(0xff_fffe),
            access: AccessFlags::REMOTE_READ,
            length: u64::MAX,
            place: Some(FilePlace {
                offset: 0x12_3456_7000,
                segment: 4 << 21..1 << 40,
            }),
            ..region(u32::MAX)
        };
        let last = REGIONS as u32 - 1;
        publication.publish_region(3, &region(5));
        publication.publish_region(0x1ab, &region(0x1cd << 8));
        assert_eq!((tables.slot(0), tables.slot(0x1cd)), (Some(3), Some(0x1ab)));
        assert_eq!(tables.slot(REGIONS as u32), None);
        publication.publish_region(last, &placed);
        publication.publish_queue_pair(&queue_pair(0x123456));
        assert_eq!(region_in(3), Some(region(5)));
        assert_eq!(region_in(last), Some(placed));
        assert_eq!(queue_pair_of(0x123456), Some(queue_pair(0x123456)));
        assert_eq!((region_in(4), region_in(last + 1)), (None, None));
        assert_eq!(queue_pair_of(0x113456), None, "another number");
        publication.retract_region(3);
        publication.retract_region(u32::MAX);
        assert!(publication.retract_queue_pair(0x123456));
        assert!(!publication.retract_queue_pair(0x123456));
        assert_eq!((region_in(3), queue_pair_of(0x123456)), (None, None));
    }

    #[test]
    fn the_record_of_a_destroyed_queue_pair_is_reused() {
        let publication = Publication::new(0).unwrap();
        let (first, second) = (queue_pair(0x10_0007), queue_pair(0x11_0007));
        let read = |number| publication.tables.queue_pair(number).map(|(_, told)| told);
        publication.publish_queue_pair(&first);
        let (version, _) = publication.tables.queue_pair(first.number).unwrap();
        assert!(publication.retract_queue_pair(first.number));
        publication.publish_queue_pair(&second);
        assert_eq!(
            (read(first.number), read(second.number)),
            (None, Some(second))
        );
        assert!(!publication.tables.has_queue_pair(first.number, version));
        assert!(!publication.retract_queue_pair(first.number));
        assert_eq!(read(second.number), Some(second));
    }

    #[test]
    fn a_peer_cannot_write_to_the_tables() {
        let publication = Publication::new(0).unwrap();
        let all = 0..LENGTH as u64;
        assert!(Map::of(publication.as_fd(), all, Rights::Write).is_err());
    }
}
