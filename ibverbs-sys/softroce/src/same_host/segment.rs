#![forbid(unsafe_code)]
//! The shared memory of a link. For each direction, the memory contains a ring of messages, a sleep
//! word (which identifies the thread to wake), and lanes (words in which copies are recorded).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::ring::{Chunk, Consumer, ControlWords, Memory, Producer, Slot};
use super::shared::{self, Map, MappedArray, MappedValue, Rights};
use crate::descriptor::Descriptor;
use crate::sync::Line;

/// Number of slots (cache lines for one message each) of a ring. The number of slots is the maximum
/// number of messages that one process has sent and the other process has not received yet.
const SLOTS: usize = 2048;

/// Number of chunks (cache lines of payload) of a ring, 512 KiB in all. The chunks hold payloads
/// that do not fit into a slot. With fewer chunks, senders of long messages would wait more often.
const CHUNKS: usize = 8192;

/// Number of lanes of each process, and so the number of threads that can copy at the same time
/// without waiting for each other. A lane is a shared word in which a thread marks that it copies
/// from or to the peer's memory (see [`epoch`](crate::epoch)).
const LANES: usize = 32;

/// Memory of a ring (message queue) in a mapped file that two processes share.
type Ring = Memory<MappedArray<Slot>, MappedArray<Chunk>, MappedValue<ControlWords>>;

/// Sending side of a ring (message queue) whose memory is a mapped file that two processes share.
pub(super) type Sender = Producer<MappedArray<Slot>, MappedArray<Chunk>, MappedValue<ControlWords>>;

/// Receiving side of a ring (message queue) whose memory is a mapped file that two processes share.
pub(super) type Receiver =
    Consumer<MappedArray<Slot>, MappedArray<Chunk>, MappedValue<ControlWords>>;

/// View of one process of the memory that two linked processes share: the rings in which this
/// process sends and receives, and the shared words of both processes.
#[derive(Debug)]
pub(super) struct LinkMemory {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Slots (cache lines for messages) of the ring from which this process receives.
    pub(super) slots: MappedArray<Slot>,
    /// Word that identifies the sleeping thread of this process, which the peer wakes.
    pub(super) own_sleep: MappedValue<Line>,
    /// Word that identifies the sleeping thread of the peer, which this process wakes.
    pub(super) peer_sleep: MappedValue<Line>,
    /// Lanes: shared words (see [`epoch`](crate::epoch)) in which this process records its copies
    /// from and to the peer's memory.
    pub(super) own_lanes: MappedArray<Line>,
    /// Lanes: shared words (see [`epoch`](crate::epoch)) in which the peer records its copies from
    /// and to this process's memory.
    pub(super) peer_lanes: MappedArray<Line>,
}

/// Role of a process in a link: creator of the shared memory, or the other process. The role
/// determines in which half of the shared memory the process sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The process that created the memory.
    Creator,
    /// The process that received the memory in the handshake.
    Taker,
}

/// Byte offset of the sleep word, from the start of the memory for one direction of a link. The
/// word identifies the sleeping thread of the receiving process.
const SLEEP: usize = size_of::<ControlWords>();
/// Byte offset of the lanes, from the start of the memory for one direction of a link. The lanes
/// are words in which the sending process marks its copies.
const LANE: usize = SLEEP + size_of::<Line>();
/// Byte offset of the slots, from the start of the memory for one direction of a link. A slot is a
/// cache line that holds one message.
const SLOT: usize = LANE + LANES * size_of::<Line>();
/// Byte offset of the chunks, from the start of the memory for one direction of a link. A chunk is
/// a cache line of payload for messages that do not fit into a slot.
const CHUNK: usize = SLOT + SLOTS * size_of::<Slot>();
/// Length in bytes of the memory for one direction of a link: the ring of messages from one process
/// to the other, the sleep word of the receiving process, and the lanes of the sending process.
const DIRECTION: usize = (CHUNK + CHUNKS * size_of::<Chunk>()).next_multiple_of(4096);

/// Length in bytes of the memory that two linked processes share: one part for each direction.
pub(super) const LENGTH: usize = 2 * DIRECTION;

/// Creates the memory that two processes will share. Returns the file of the memory, and a mapping
/// for this process.
pub(super) fn create() -> io::Result<(Descriptor, LinkMemory)> {
    let (file, map) = shared::create("softroce-link", LENGTH, false)?;
    Ok((file, LinkMemory::of(map, Role::Creator)?))
}

/// Maps memory that a peer process has created to share it with this process. Returns the mapping.
pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<LinkMemory> {
    let map = Map::of(file, 0..LENGTH as u64, Rights::Write)?;
    LinkMemory::of(map, Role::Taker)
}

/// Returns the slots (cache lines for messages) of the ring for one direction of a link. The memory
/// for this direction begins at byte offset `at` of the mapping. Returns `None` if the slots are
/// not inside the mapping.
fn slots(map: &Arc<Map>, at: usize) -> Option<MappedArray<Slot>> {
    MappedArray::of(map, at + SLOT, SLOTS)
}

/// Returns the parts of the memory for one direction of a link, which begins at byte offset `at` of
/// the mapping. The parts are the ring, the word that identifies the receiver's sleeping thread,
/// and the words in which the sender marks its copies (lanes). Returns `None` if a part is not
/// inside the mapping.
fn direction(map: &Arc<Map>, at: usize) -> Option<(Ring, MappedValue<Line>, MappedArray<Line>)> {
    let ring = Memory {
        slots: slots(map, at)?,
        chunks: MappedArray::of(map, at + CHUNK, CHUNKS)?,
        marks: MappedValue::of(map, at)?,
    };
    let sleep = MappedValue::of(map, at + SLEEP)?;
    Some((ring, sleep, MappedArray::of(map, at + LANE, LANES)?))
}

impl LinkMemory {
    fn of(map: Map, role: Role) -> io::Result<Self> {
        let map = Arc::new(map);
        let (out, back) = match role {
            Role::Creator => (0, DIRECTION),
            Role::Taker => (DIRECTION, 0),
        };
        let parts = direction(&map, out).zip(direction(&map, back));
        let slots = slots(&map, back).ok_or(io::ErrorKind::OutOfMemory)?;
        let ((out, peer_sleep, own_lanes), (back, own_sleep, peer_lanes)) =
            parts.ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            sender: Producer::new(out),
            receiver: Consumer::new(back),
            slots,
            own_sleep,
            peer_sleep,
            own_lanes,
            peer_lanes,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use super::super::wake::{SleepWord, Sleeper};
    use super::*;
    use crate::epoch::Lanes;

    #[test]
    fn each_side_reads_what_the_other_side_writes() {
        let (file, mut here) = create().unwrap();
        let mut there = map(file.as_fd()).unwrap();
        let fill = |_: super::super::ring::MessageChunks<'_>| Ok::<(), ()>(());
        here.sender.push(1, &[5], 1, fill).unwrap();
        there.sender.push(2, &[6], 0, fill).unwrap();
        let numbers = |receiver: &mut Receiver| {
            receiver
                .pop(|message| (message.tag, message.words[0]))
                .unwrap()
        };
        assert_eq!(numbers(&mut there.receiver), Some((1, 5)));
        assert_eq!(numbers(&mut here.receiver), Some((2, 6)));
        assert_eq!(numbers(&mut here.receiver), None);

        SleepWord(&there.own_sleep.0).store_sleeper(Sleeper::Channel(1));
        let woken = SleepWord(&here.peer_sleep.0).take_sleeper();
        assert_eq!(woken, Some(Sleeper::Channel(1)));
        assert_eq!(SleepWord(&there.peer_sleep.0).take_sleeper(), None);

        let lane = Lanes(&here.own_lanes).enter(3);
        let lanes = Lanes(&there.peer_lanes);
        let mut occupied = lanes.occupied();
        assert!(!occupied.have_ended(lanes));
        drop(lane);
        assert!(occupied.have_ended(lanes));
    }
}
