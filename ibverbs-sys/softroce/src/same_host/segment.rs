#![forbid(unsafe_code)]
//! The memory that two processes share to talk to each other: for each direction a ring, and what goes with it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::ring::{Chunk, Consumer, Marks, Memory, Producer, Slot};
use super::shared::{self, Map, One, Part, Rights};
use crate::descriptor::Descriptor;
use crate::sync::Line;

/// Messages that can be on the way in one direction.
const SLOTS: usize = 2048;

/// Chunks for those that are longer than a slot: half a megabyte.
const CHUNKS: usize = 8192;

/// Threads that copy at once without waiting for each other.
const LANES: usize = 32;

/// The ring of a direction, in shared memory.
type Ring = Memory<Part<Slot>, Part<Chunk>, One<Marks>>;

/// Where a process sends.
pub(super) type Sender = Producer<Part<Slot>, Part<Chunk>, One<Marks>>;

/// Where a process receives.
pub(super) type Receiver = Consumer<Part<Slot>, Part<Chunk>, One<Marks>>;

/// What one process has of the memory.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// The slots that it receives by.
    pub(super) slots: Part<Slot>,
    /// Says that this process sleeps.
    pub(super) own_sleep: One<Line>,
    /// Says that the peer sleeps.
    pub(super) peer_sleep: One<Line>,
    /// Where this process says that it copies from or to the peer's memory.
    pub(super) own_lanes: Part<Line>,
    /// Where the peer says that it copies from or to this process's memory.
    pub(super) peer_lanes: Part<Line>,
}

/// Which of the two a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It made the memory.
    Maker,
    /// It was given it.
    Taker,
}

/// Offsets in a direction.
const SLEEP: usize = size_of::<Marks>();
const LANE: usize = SLEEP + size_of::<Line>();
const SLOT: usize = LANE + LANES * size_of::<Line>();
const CHUNK: usize = SLOT + SLOTS * size_of::<Slot>();
const DIRECTION: usize = (CHUNK + CHUNKS * size_of::<Chunk>()).next_multiple_of(4096);

/// Bytes of the memory.
pub(super) const LENGTH: usize = 2 * DIRECTION;

/// Makes the memory.
pub(super) fn make() -> io::Result<(Descriptor, Side)> {
    let (file, map) = shared::create("softroce-link", LENGTH, false)?;
    Ok((file, Side::of(map, Role::Maker)?))
}

/// Takes the memory that a peer made.
pub(super) fn take(file: BorrowedFd<'_>) -> io::Result<Side> {
    let map = Map::of(file, 0..LENGTH as u64, Rights::Write)?;
    Side::of(map, Role::Taker)
}

/// The slots of a direction.
fn slots(map: &Arc<Map>, at: usize) -> Option<Part<Slot>> {
    Part::of(map, at + SLOT, SLOTS)
}

/// A direction: the ring, the sleep of who receives, and the lanes of who sends.
fn direction(map: &Arc<Map>, at: usize) -> Option<(Ring, One<Line>, Part<Line>)> {
    let ring = Memory {
        slots: slots(map, at)?,
        chunks: Part::of(map, at + CHUNK, CHUNKS)?,
        marks: One::of(map, at)?,
    };
    let sleep = One::of(map, at + SLEEP)?;
    Some((ring, sleep, Part::of(map, at + LANE, LANES)?))
}

impl Side {
    fn of(map: Map, role: Role) -> io::Result<Self> {
        let map = Arc::new(map);
        let (out, back) = match role {
            Role::Maker => (0, DIRECTION),
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

    use super::super::wake::{Sleep, Sleeper};
    use super::*;
    use crate::epoch::Lanes;

    #[test]
    fn the_two_sides_are_each_others() {
        let (file, mut here) = make().unwrap();
        let mut there = take(file.as_fd()).unwrap();
        let fill = |_: super::super::ring::Room<'_>| Ok::<(), ()>(());
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

        Sleep(&there.own_sleep.0).declare(Sleeper::Channel(1));
        let woken = Sleep(&here.peer_sleep.0).interrupt();
        assert_eq!(woken, Some(Sleeper::Channel(1)));
        assert_eq!(Sleep(&there.peer_sleep.0).interrupt(), None);

        let lane = Lanes(&here.own_lanes).enter(3);
        let lanes = Lanes(&there.peer_lanes);
        let mut occupied = lanes.occupied();
        assert!(!occupied.are_left(lanes));
        drop(lane);
        assert!(occupied.are_left(lanes));
    }
}
