//! Loom models of a message whose payload the receiver copies from the memory of the sender. Loom
//! tries every order in which the two processes can run, and every value that their loads can
//! return.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test --release -p softroce --lib models
//! ```
//!
//! Both sides use the rings, records and lanes of the device. The payload is simulated by atomics,
//! because the sender may write to its memory during a copy whose result is then discarded.

use std::sync::Arc as Shared;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::record_array::{Record, RecordArray, WORDS, records};
use super::ring::memory::memory;
use super::ring::{Chunk, Consumer, ControlWords, Producer, Slot};
use crate::epoch::Lanes;
use crate::sync::Line;

/// Index in [`SharedMemory::records`] of the published state of the sender's queue pair.
const QUEUE_PAIR: usize = 0;
/// Index in [`SharedMemory::records`] of the published state of the memory region that contains the
/// payload.
const REGION: usize = 1;

/// Value of each word of the payload while the message is in progress. The receiver checks that it
/// has copied this value.
const MESSAGE: u64 = 1;
/// Value of each word of the sender's memory after the message has failed. The simulated program
/// has then overwritten the payload with this value.
const REUSED: u64 = 2;

/// Tag of a message that offers a payload to the receiver. The message contains no payload bytes:
/// the receiver must copy them from the sender's memory.
const OFFER: u16 = 1;
/// Tag of the receiver's answer to an [`OFFER`]: the receiver has copied the payload from the
/// sender's memory.
const ACCEPTED: u16 = 2;
/// Tag of the receiver's answer to an [`OFFER`]: the receiver has not copied the payload, or has
/// copied and then discarded it.
const DECLINED: u16 = 3;

/// Memory that both simulated processes can access. The memory contains the sender's records, the
/// sender's payload, and words (`lanes`) by which the receiver shows that it is copying.
struct SharedMemory {
    records: RecordArray<Vec<Record>>,
    lanes: Vec<Line>,
    bytes: [AtomicU64; 2],
    /// Simulated mapping of the payload, which the sender may remove after it has deregistered the
    /// region.
    mapping: UnsafeCell<()>,
}

/// Ends of the two rings (message queues) that a simulated process uses: the sending end of one
/// ring, and the receiving end of the other ring.
struct RingEnds {
    sender: Producer<Shared<[Slot]>, Shared<[Chunk]>, Shared<ControlWords>>,
    receiver: Consumer<Shared<[Slot]>, Shared<[Chunk]>, Shared<ControlWords>>,
}

/// The process that sends messages. The other process copies their payload.
struct Sender {
    world: Arc<SharedMemory>,
    side: RingEnds,
}

/// The simulated process that receives messages and copies their payload from the sender's memory.
struct Receiver {
    world: Arc<SharedMemory>,
    side: RingEnds,
    /// Version that the record of the sender's queue pair had when the two processes were
    /// connected.
    version: u64,
}

/// Creates the two simulated processes, a sender and a receiver, and their shared memory. A ring in
/// each direction connects them.
fn connect() -> (Sender, Receiver) {
    let world = Arc::new(SharedMemory {
        records: RecordArray(records(2)),
        lanes: vec![Line::here()],
        bytes: [AtomicU64::new(MESSAGE), AtomicU64::new(MESSAGE)],
        mapping: UnsafeCell::new(()),
    });
    world.records.publish(QUEUE_PAIR, &[1; WORDS]);
    world.records.publish(REGION, &[1; WORDS]);
    let (version, _) = world.records.find(QUEUE_PAIR).unwrap();
    let ((offers_in, offers_out), (answers_in, answers_out)) = (memory(2, 1), memory(2, 1));
    let sender = Sender {
        world: Arc::clone(&world),
        side: RingEnds {
            sender: Producer::new(offers_in),
            receiver: Consumer::new(answers_out),
        },
    };
    let receiver = Receiver {
        world,
        side: RingEnds {
            sender: Producer::new(answers_in),
            receiver: Consumer::new(offers_out),
        },
        version,
    };
    (sender, receiver)
}

impl RingEnds {
    fn send(&self, tag: u16) {
        let nothing = |_: super::ring::MessageChunks<'_>| Ok::<(), ()>(());
        assert_eq!(self.sender.push(tag, &[], 0, nothing), Ok(()));
    }

    fn receive_tag(&mut self) -> Option<u16> {
        self.receiver.pop(|message| message.tag).unwrap()
    }
}

impl Sender {
    /// Offers the payload in the sender's memory to the receiver, which must copy it and answer.
    fn offer(&self) {
        self.side.send(OFFER);
    }

    /// Makes the sender's queue pair fail, which completes its requests. Then overwrites the memory
    /// of these requests, as a program may do after their completion.
    fn fail_queue_pair(&self) {
        self.world.records.retract(QUEUE_PAIR);
        for word in &self.world.bytes {
            word.store(REUSED, Ordering::Relaxed);
        }
    }

    /// Deregisters the memory region of the payload: makes it inaccessible, waits until the
    /// receiver has finished its copy, and then removes the mapping.
    fn deregister(&self) {
        let SharedMemory { records, lanes, .. } = &*self.world;
        records.retract(REGION);
        let lanes = Lanes(lanes);
        let mut copies = lanes.occupied();
        while !copies.have_ended(lanes) {
            thread::yield_now();
        }
        // The model fails if this access is not ordered after the receiver's copy.
        self.world.mapping.with_mut(|_| ());
    }
}

impl Receiver {
    /// Receives the sender's next offer of a payload, copies the payload, and answers. Returns
    /// whether the message was accepted, or `None` if there is no offer.
    fn take(&mut self) -> Option<bool> {
        let tag = self.side.receive_tag()?;
        assert_eq!(tag, OFFER);
        let copied = self.copy();
        if let Some(bytes) = copied {
            assert_eq!(bytes, [MESSAGE; 2], "not the bytes of the message");
        }
        let is_accepted = copied.is_some();
        self.side
            .send(if is_accepted { ACCEPTED } else { DECLINED });
        Some(is_accepted)
    }

    /// Copies the payload of a message, two words, from the sender's memory. Returns `None` if the
    /// sender has possibly changed the words, so that the receiver must discard the copy.
    fn copy(&self) -> Option<[u64; 2]> {
        let SharedMemory { records, lanes, .. } = &*self.world;
        let _lane = Lanes(lanes).enter(0);
        if !records.is_current(QUEUE_PAIR, self.version) {
            return None;
        }
        records.find(REGION)?;
        let load = |at: usize| self.world.bytes[at].load(Ordering::Relaxed);
        let bytes = self.world.mapping.with(|_| [0, 1].map(load));
        records
            .has_kept_version(QUEUE_PAIR, self.version)
            .then_some(bytes)
    }
}

#[test]
fn no_message_is_lost_while_both_sides_run() {
    loom::model(|| {
        let (mut sender, mut receiver) = connect();
        let other = thread::spawn(move || {
            let mut taken = 0;
            while taken < 2 {
                match receiver.take() {
                    Some(is_accepted) => {
                        assert!(is_accepted);
                        taken += 1;
                    }
                    None => thread::yield_now(),
                }
            }
        });
        // Two messages are offered at the same time.
        sender.offer();
        sender.offer();
        let mut answered = 0;
        while answered < 2 {
            match sender.side.receive_tag() {
                Some(answer) => {
                    assert_eq!(answer, ACCEPTED);
                    answered += 1;
                }
                None => thread::yield_now(),
            }
        }
        other.join().unwrap();
    });
}

/// Checks that the receiver never accepts a payload that has changed. The sender's queue pair may
/// fail during the copy, and the sender then overwrites the payload. The receiver must notice the
/// changed record of the queue pair, and discard the copy.
#[test]
fn payload_that_changes_after_the_completion_is_not_accepted() {
    loom::model(|| {
        let (mut sender, mut receiver) = connect();
        sender.offer();
        let other = thread::spawn(move || receiver.take());
        match sender.side.receive_tag() {
            Some(answer) => assert_eq!(answer, ACCEPTED),
            None => sender.fail_queue_pair(),
        }
        // The receiver must find the offer, which arrived before the thread was started.
        assert!(other.join().unwrap().is_some());
    });
}

/// Checks that a message is not accepted if the sender's queue pair fails and is connected again
/// while the receiver copies. The receiver detects the failure by the changed version of the queue
/// pair's record.
#[test]
fn a_message_of_an_earlier_connection_is_not_accepted() {
    loom::model(|| {
        let (sender, mut receiver) = connect();
        sender.offer();
        let other = thread::spawn(move || receiver.take());
        sender.fail_queue_pair();
        sender.world.records.publish(QUEUE_PAIR, &[2; WORDS]);
        assert!(other.join().unwrap().is_some());
    });
}

#[test]
fn memory_stays_mapped_while_a_message_is_copied() {
    loom::model(|| {
        let (sender, mut receiver) = connect();
        sender.offer();
        let other = thread::spawn(move || receiver.take());
        sender.fail_queue_pair();
        sender.deregister();
        assert!(other.join().unwrap().is_some());
    });
}

/// Checks that the receiver never copies from memory that is no longer registered. The sender
/// deregisters the memory region while the receiver copies from it. The receiver can accept or
/// decline the message, and the deregistration waits for the end of the copy.
#[test]
fn a_region_that_ends_is_not_copied_from() {
    loom::model(|| {
        let (mut sender, mut receiver) = connect();
        sender.offer();
        let other = thread::spawn(move || receiver.take());
        sender.deregister();
        let is_accepted = other.join().unwrap();
        let answer = sender.side.receive_tag();
        assert_eq!(
            answer,
            is_accepted.map(|is| if is { ACCEPTED } else { DECLINED })
        );
    });
}
