//! Rings: memory of the receiver of a stream, into which the sender writes long pieces directly.
//!
//! A ring consists of slots of [`SLOT_LEN`] bytes. The receiver advertises one ring
//! ([`Kind::Ring`]), once its application reads a long piece into memory of its own. From then on,
//! the sender writes each long piece to the start of a free slot by RDMA with immediate data, an
//! [`Announcement`]. The receiver copies the bytes from the slot to the application's memory, and
//! returns slots in groups ([`Kind::Returned`]).

use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rdma_core::{AccessFlags, RemoteMemory};

use super::Connection;
use super::exposed::ExposedRegion;
use super::frame::Kind;
use super::send_state::{AwaitedBy, NotAccepted, PostTime};
use super::work::{Push, Work};
use crate::device::RdmaDevice;
use crate::error::Result;
use crate::memory::{Charge, LocalMr, LocalMrWriteAccess, claim_read};
use crate::observe::{LentBytes, report_failed_end};

/// Length in bytes of one slot of a ring (the receiver's memory for long pieces of a stream). A
/// piece is not longer than a slot. Longer slots would mean fewer messages for a long write, but
/// more memory.
pub(super) const SLOT_LEN: usize = 64 << 10;
/// Number of slots of the ring that this end advertises, 1 MiB in total. The writer of the stream
/// can fill this number of slots before the reader has read the first slot.
const SLOTS: usize = 16;
/// Maximum number of slots of the peer's ring. A [`Kind::Returned`] message has one bit for each
/// slot, 64 in total.
const MAX_SLOTS: u64 = 64;
/// Number of slots that the program reads before this end notifies the peer that these slots are
/// free again. A quarter of the slots of the ring: few notifications are sent, and the peer still
/// has free slots at that time. The peer can request an earlier notification.
const RETURN_AT: u32 = SLOTS as u32 / 4;

/// Ring that this end has advertised to the peer: memory, divided into slots, into which the peer
/// writes long pieces of a stream.
#[derive(Debug)]
pub(super) struct OwnRing {
    /// Memory of the slots. `None` only while the ring is dropped.
    region: Option<ExposedRegion>,
    slots: Mutex<OwnSlots>,
    device: RdmaDevice,
    _observed: LentBytes,
    _charge: Charge,
}

/// Slots of this end's ring that the peer must not write to, as bit masks: slots with unread bytes,
/// and read slots of which the peer was not yet notified.
#[derive(Debug, Default)]
struct OwnSlots {
    /// Slots with pieces that the application has not read.
    filled: u64,
    /// Slots that the application has read and that are not yet returned to the peer.
    read: u64,
}

/// Piece (contiguous bytes) of a stream in a slot of the ring of this end. Must be passed to
/// [`Connection::free_slot`] after the piece was read.
#[derive(Debug)]
pub(crate) struct RingPiece {
    slot: u32,
    len: usize,
    /// Set if the peer waits for the return of the slot.
    returns: bool,
}

impl RingPiece {
    /// Returns the length of the piece in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Immediate data of an RDMA write into a ring: the slot and the length of the written piece, and a
/// request (`returns`) to return the slot as soon as the piece was read.
///
/// ```text
/// bits 0..17   17        18..24   24..32
///      length  returns   slot     zero
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Announcement {
    slot: u32,
    /// Length of the piece in bytes, from 1 to [`SLOT_LEN`].
    len: u32,
    /// Set if the receiver must return the slot as soon as it has read the piece.
    returns: bool,
}

impl Announcement {
    fn encode(self) -> u32 {
        self.slot << 18 | u32::from(self.returns) << 17 | self.len
    }

    /// Decodes the immediate data of an RDMA write of the peer into a ring. Returns `None` if the
    /// number of the slot or the length is too large, or if the length is 0.
    fn decode(immediate: u32) -> Option<Self> {
        let (slot, len) = (immediate >> 18, immediate & 0x1_ffff);
        let is_valid = slot < MAX_SLOTS as u32 && (1..=SLOT_LEN as u32).contains(&len);
        is_valid.then_some(Self {
            slot,
            len,
            returns: immediate >> 17 & 1 == 1,
        })
    }
}

impl Drop for OwnRing {
    /// Ends the peer's access to the memory of this ring, so that the memory returns to the pool of
    /// the device.
    fn drop(&mut self) {
        // After an error the device may still access the memory, so the memory is not freed.
        if let Some(Err(error)) = self.region.take().map(ExposedRegion::end) {
            report_failed_end(&self.device, &error);
        }
    }
}

/// Ring that the peer has advertised: memory of the peer, divided into slots, into which this end
/// writes long pieces of a stream.
#[derive(Debug)]
pub(super) struct PeerRing {
    memory: RemoteMemory,
    /// Mask with a bit for each slot of the ring.
    slots: u64,
    /// Mask of the slots that the peer has not returned.
    in_use: AtomicU64,
}

impl PeerRing {
    /// Creates the state of the ring in `memory` of the peer, which consists of slots of
    /// [`SLOT_LEN`] bytes. Returns `None` if `memory` does not consist of 1 to [`MAX_SLOTS`] whole
    /// slots.
    fn new(memory: RemoteMemory) -> Option<Self> {
        let count = memory.len / SLOT_LEN as u64;
        let is_valid =
            memory.len.is_multiple_of(SLOT_LEN as u64) && (1..=MAX_SLOTS).contains(&count);
        is_valid.then(|| Self {
            memory,
            slots: u64::MAX >> (MAX_SLOTS - count),
            in_use: AtomicU64::new(0),
        })
    }

    /// Takes the free slot with the lowest number, for a write into the peer's ring. Returns `None`
    /// if no slot is free. While the peer reads quickly, this end uses the same few slots again,
    /// which stay in the caches of the processors. The caller must ensure that one thread at a time
    /// calls this function.
    pub(super) fn take(&self) -> Option<u32> {
        let free = self.slots & !self.in_use.load(Ordering::Acquire);
        let slot = free.trailing_zeros();
        (free != 0).then(|| {
            self.in_use.fetch_or(1 << slot, Ordering::AcqRel);
            slot
        })
    }

    /// Marks the slots of the peer's ring in the bit mask `slots` as free, so that this end can
    /// write to them again. Returns `false`, and changes nothing, if any of these slots is not in
    /// use.
    #[must_use = "a peer that returns a free slot violates the protocol"]
    pub(super) fn put_back(&self, slots: u64) -> bool {
        let without = |in_use: u64| (in_use & slots == slots).then_some(in_use & !slots);
        self.in_use
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, without)
            .is_ok()
    }

    /// Returns whether any slot of the peer's ring is free, so that this end can write bytes of a
    /// stream to it.
    pub(super) fn has_free(&self) -> bool {
        self.in_use.load(Ordering::Acquire) != self.slots
    }

    /// Returns the total length in bytes of the slots of the peer's ring that are in use. A slot
    /// counts completely, even if fewer bytes were written to it.
    pub(super) fn bytes_in_use(&self) -> usize {
        self.in_use.load(Ordering::Acquire).count_ones() as usize * SLOT_LEN
    }

    /// Returns the address, length and key of the first `len` bytes of the slot with the number
    /// `slot` in the peer's ring. `len` must not exceed [`SLOT_LEN`].
    fn place(&self, slot: u32, len: usize) -> RemoteMemory {
        RemoteMemory {
            address: self
                .memory
                .address
                .wrapping_add(u64::from(slot) * SLOT_LEN as u64),
            len: len as u64,
            rkey: self.memory.rkey,
        }
    }
}

impl Connection {
    /// Advertises a ring to the peer: memory of this end into which the peer writes long pieces of
    /// a stream. The ring counts as memory that the peer holds.
    ///
    /// Does nothing in the following cases, in which long pieces still arrive by
    /// [rendezvous](super::rendezvous):
    /// - A ring was advertised before, or the connection has failed.
    /// - Memory or the peer's limit is used up.
    /// - The peer may not write to memory of this end.
    /// - The device has no writes with immediate data (iWARP).
    pub(crate) fn advertise_ring(&self) {
        let access = self.settings.remote_access & AccessFlags::REMOTE_WRITE;
        // iWARP has no writes with immediate data.
        let has_immediate_data = !self.device.context().device().is_iwarp();
        let is_possible = has_immediate_data && !access.is_empty() && self.failure().is_none();
        if !is_possible || self.own_ring.get().is_some() {
            return;
        }
        let layout = Layout::new::<[[u8; SLOT_LEN]; SLOTS]>();
        let layout = layout
            .align_to(4096)
            .expect("the length of a page is a power of two");
        let Ok(charge) = self.charge_peer(layout) else {
            return;
        };
        // Zeroed, because the peer need not write the bytes that it announces.
        let Ok(region) = self.device.alloc_local_mr(layout) else {
            return;
        };
        let Ok(region) = ExposedRegion::new(region, access) else {
            return;
        };
        let memory = region.memory().remote();
        let ring = OwnRing {
            _observed: LentBytes::of(&self.device, layout.size()),
            region: Some(region),
            slots: Mutex::default(),
            device: self.device.clone(),
            _charge: charge,
        };
        if self.own_ring.set(ring).is_ok() {
            self.send_control(Kind::Ring { memory });
        }
    }

    /// Returns whether this end has given the peer a ring, memory into which the peer writes pieces
    /// of a stream. The immediate data of an RDMA write then announces such a piece.
    pub(super) fn has_own_ring(&self) -> bool {
        self.own_ring.get().is_some()
    }

    /// Records that the peer has written a piece of a stream into a slot of this end's ring, and
    /// returns the position of the piece. `immediate`, the immediate data of the write, contains
    /// the slot and the length. Returns `None` if the slot or the length is invalid, or if the peer
    /// was not allowed to write to the slot.
    pub(super) fn accept_written(&self, immediate: u32) -> Option<RingPiece> {
        let ring = self.own_ring.get()?;
        let Announcement { slot, len, returns } = Announcement::decode(immediate)?;
        let mut slots = ring.slots.lock();
        let bit = 1 << slot;
        if slot >= SLOTS as u32 || (slots.filled | slots.read) & bit != 0 {
            return None;
        }
        slots.filled |= bit;
        Some(RingPiece {
            slot,
            len: len as usize,
            returns,
        })
    }

    /// Writes a copy of `bytes`, at most [`SLOT_LEN`], into a free slot of the peer's ring. Returns
    /// `false`, and writes nothing, if the write is not possible now, for example because the ring
    /// or the send queue is full. Calls `must_return` after a slot was found. The result `true`
    /// requests that the peer returns the slot as soon as the bytes were read.
    pub(super) fn try_write_to_slot(
        &self,
        ring: &PeerRing,
        bytes: &[u8],
        must_return: impl FnOnce() -> bool,
    ) -> Result<bool> {
        let Some(credit) = self.try_data_credit() else {
            return Ok(false);
        };
        let Some(slot) = ring.take() else {
            return Ok(false);
        };
        let written = self.write_slot(ring, slot, bytes, must_return);
        if let Ok(true) = written {
            credit.spend();
        } else {
            // Fails if the peer has returned the slot without a piece, which makes no difference.
            let _ = ring.put_back(1 << slot);
        }
        written
    }

    /// Writes a copy of `bytes` into the slot `slot` of the peer's ring, and returns `true`.
    /// Returns `false`, and writes nothing, if the send queue is full or no memory is available.
    /// The caller must have taken the slot, and a credit (permission to send).
    fn write_slot(
        &self,
        ring: &PeerRing,
        slot: u32,
        bytes: &[u8],
        must_return: impl FnOnce() -> bool,
    ) -> Result<bool> {
        let Ok(mut piece) = self.alloc_piece(bytes.len()) else {
            return Ok(false);
        };
        piece.as_mut_slice().copy_from_slice(bytes);
        let announcement = Announcement {
            slot,
            len: bytes.len() as u32,
            returns: must_return(),
        };
        let push = Push::Write {
            remote: ring.place(slot, bytes.len()),
            immediate: Some(announcement.encode()),
        };
        let memory = (None, Some(claim_read(&piece)?.into()));
        // Posted now, because the peer can read the piece while this end copies the next one.
        let how = (AwaitedBy::Nothing, PostTime::Now);
        match self.submit_held(Work::Push(push), memory, how, None) {
            Ok(_) => Ok(true),
            Err((NotAccepted::Full, _)) => Ok(false),
            Err((NotAccepted::Refused(error), _)) => Err(*error),
        }
    }

    /// Copies bytes of a piece in the ring, beginning at `start`, into `to`. Panics if the range is
    /// not inside of the piece.
    pub(crate) fn copy_from_ring(&self, piece: &RingPiece, start: usize, to: &mut [u8]) {
        assert!(
            start + to.len() <= piece.len,
            "the range is inside of the piece"
        );
        let ring = self.own_ring.get().and_then(|ring| ring.region.as_ref());
        let ring = ring.expect("only an advertised ring has pieces");
        ring.memory()
            .read_at(piece.slot as usize * SLOT_LEN + start, to)
            .expect("the piece is inside of the ring");
    }

    /// Copies the bytes that the peer has written into a slot of the ring, from the position
    /// `start`, into a new region.
    pub(crate) fn region_from_ring(&self, piece: &RingPiece, start: usize) -> Result<LocalMr> {
        let mut region = self.alloc_piece(piece.len - start)?;
        self.copy_from_ring(piece, start, region.as_mut_slice());
        Ok(region)
    }

    /// Marks the slot of this end's ring that contained `piece` (bytes of a stream) as read,
    /// because the program has read these bytes. Notifies the peer that all read slots are free
    /// again, if their number is at least [`RETURN_AT`] or the peer has requested the return of
    /// this slot.
    pub(crate) fn free_slot(&self, piece: RingPiece) {
        let Some(ring) = self.own_ring.get() else {
            return;
        };
        let returned = {
            let mut slots = ring.slots.lock();
            let bit = 1 << piece.slot;
            slots.filled &= !bit;
            slots.read |= bit;
            let is_due = piece.returns || slots.read.count_ones() >= RETURN_AT;
            is_due.then(|| std::mem::take(&mut slots.read))
        };
        if let Some(slots) = returned {
            self.send_control(Kind::Returned { slots });
        }
    }

    /// Returns the length in bytes of the slots of the peer's ring that this end has written to and
    /// that the peer has not yet returned. Returns 0 without a ring.
    pub(super) fn bytes_in_peer_ring(&self) -> usize {
        self.peer_ring.get().map_or(0, PeerRing::bytes_in_use)
    }

    /// Records the ring that the peer has advertised: `memory` of the peer into which this end
    /// writes long pieces of a stream. Ends the connection if the peer has already advertised a
    /// ring, or if the length of the memory is invalid.
    pub(super) fn record_peer_ring(&self, memory: RemoteMemory) {
        let recorded = PeerRing::new(memory).map(|ring| self.peer_ring.set(ring));
        if !matches!(recorded, Some(Ok(()))) {
            self.fail_for_violation("a second ring, or a ring of an invalid length");
        }
    }

    /// Marks slots of the peer's ring as free after the peer has returned them. The peer returns a
    /// slot when its program has read the bytes. `slots` is a bit mask. Wakes the writers of the
    /// stream. Ends the connection if any of these slots was not in use.
    pub(super) fn take_back_slots(&self, slots: u64) {
        let ring = self.peer_ring.get();
        if slots == 0 || !ring.is_some_and(|ring| ring.put_back(slots)) {
            self.fail_for_violation("the return of slots that were not in use");
        } else if let Some(outgoing) = self.outgoing.get() {
            outgoing.waiters().wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(len: u64) -> Option<PeerRing> {
        PeerRing::new(RemoteMemory {
            address: 1 << 40,
            len,
            rkey: 7,
        })
    }

    #[test]
    fn slots_are_taken_until_none_is_free_and_only_slots_in_use_are_put_back() {
        let ring = ring(3 * SLOT_LEN as u64).unwrap();
        assert_eq!(
            [0; 4].map(|_| ring.take()),
            [Some(0), Some(1), Some(2), None]
        );
        assert_eq!(ring.bytes_in_use(), 3 * SLOT_LEN);
        assert!(!ring.has_free() && !ring.put_back(0b1001) && !ring.has_free());
        assert!(ring.put_back(0b010) && !ring.put_back(0b010));
        assert_eq!((ring.take(), ring.take()), (Some(1), None));
        let place = ring.place(2, 5);
        assert_eq!(
            (place.address, place.len),
            ((1 << 40) + 2 * SLOT_LEN as u64, 5)
        );
    }

    #[test]
    fn only_whole_slots_up_to_the_maximum_are_a_ring() {
        let slot = SLOT_LEN as u64;
        for len in [slot, 2 * slot, MAX_SLOTS * slot] {
            assert!(ring(len).is_some(), "{len}");
        }
        for len in [0, 1, slot - 1, slot + 1, (MAX_SLOTS + 1) * slot, u64::MAX] {
            assert!(ring(len).is_none(), "{len}");
        }
        let most = ring(MAX_SLOTS * slot).unwrap();
        assert_eq!((0..65).filter_map(|_| most.take()).count(), 64);
    }

    #[test]
    fn announcements_round_trip_and_invalid_ones_are_refused() {
        for (slot, len, returns) in [(0, 1, false), (63, 1 << 16, true), (15, 40_000, false)] {
            let announcement = Announcement { slot, len, returns };
            assert_eq!(
                Announcement::decode(announcement.encode()),
                Some(announcement)
            );
        }
        for (slot, len) in [(64, 1), (1 << 13, 1), (0, 0), (3, (1 << 16) + 1)] {
            let returns = false;
            let invalid = Announcement { slot, len, returns };
            assert_eq!(Announcement::decode(invalid.encode()), None, "{invalid:?}");
        }
    }
}
