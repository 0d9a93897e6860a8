//! Loom models of a message that the receiver copies from the memory of the sender: every order in which the two processes can
//! run, and every value that their loads can return.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test --release -p softroce --lib models
//! ```
//!
//! Both sides use the rings, records and lanes of the device. Only the copy itself is a part of the model: its words are
//! atomics, because the sender may write to its memory during a copy whose result is discarded.

use std::sync::Arc as Shared;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::board::{Board, Record, WORDS, records};
use super::ring::memory::memory;
use super::ring::{Chunk, Consumer, Marks, Producer, Slot};
use crate::epoch::Lanes;
use crate::sync::Line;

/// Records of the sender: its queue pair, and the region with the bytes of its messages.
const QUEUE_PAIR: usize = 0;
const REGION: usize = 1;

/// Contents of the sender's memory: the bytes of messages, and the bytes that the program writes after a request has failed.
const MESSAGE: u64 = 1;
const REUSED: u64 = 2;

/// Tags: an offered message that the receiver is to copy, and the two answers.
const OFFER: u16 = 1;
const ACCEPTED: u16 = 2;
const DECLINED: u16 = 3;

/// The sender's records and memory, and the receiver's lanes.
struct World {
    records: Board<Vec<Record>>,
    lanes: Vec<Line>,
    bytes: [AtomicU64; 2],
    /// Represents the mapping of the bytes, which the sender may remove after it has deregistered the region.
    mapping: UnsafeCell<()>,
}

/// One process's ends of the two rings.
struct Side {
    sender: Producer<Shared<[Slot]>, Shared<[Chunk]>, Shared<Marks>>,
    receiver: Consumer<Shared<[Slot]>, Shared<[Chunk]>, Shared<Marks>>,
}

/// The sending process.
struct Sender {
    world: Arc<World>,
    side: Side,
}

/// The receiving process.
struct Receiver {
    world: Arc<World>,
    side: Side,
    /// Version of the record of the sender's queue pair that the receiver is connected to.
    version: u64,
}

/// Creates both processes with a connection, and the memory of messages.
fn connect() -> (Sender, Receiver) {
    let world = Arc::new(World {
        records: Board(records(2)),
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
        side: Side {
            sender: Producer::new(offers_in),
            receiver: Consumer::new(answers_out),
        },
    };
    let receiver = Receiver {
        world,
        side: Side {
            sender: Producer::new(answers_in),
            receiver: Consumer::new(offers_out),
        },
        version,
    };
    (sender, receiver)
}

impl Side {
    fn say(&self, tag: u16) {
        let nothing = |_: super::ring::Room<'_>| Ok::<(), ()>(());
        assert_eq!(self.sender.push(tag, &[], 0, nothing), Ok(()));
    }

    fn hear(&mut self) -> Option<u16> {
        self.receiver.pop(|message| message.tag).unwrap()
    }
}

impl Sender {
    /// Offers a message.
    fn offer(&self) {
        self.side.say(OFFER);
    }

    /// Fails the queue pair and completes its requests, so that the program reuses the memory.
    fn give_up(&self) {
        self.world.records.retract(QUEUE_PAIR);
        for word in &self.world.bytes {
            word.store(REUSED, Ordering::Relaxed);
        }
    }

    /// Deregisters the region, and removes its mapping.
    fn deregister(&self) {
        let World { records, lanes, .. } = &*self.world;
        records.retract(REGION);
        let lanes = Lanes(lanes);
        let mut copies = lanes.occupied();
        while !copies.are_left(lanes) {
            thread::yield_now();
        }
        // The model fails if this access is not ordered after the copy.
        self.world.mapping.with_mut(|_| ());
    }
}

impl Receiver {
    /// Takes the next offer, if there is one, and answers it. Returns whether it was accepted.
    fn take(&mut self) -> Option<bool> {
        let tag = self.side.hear()?;
        assert_eq!(tag, OFFER);
        let copied = self.copy();
        if let Some(bytes) = copied {
            assert_eq!(bytes, [MESSAGE; 2], "not the bytes of the message");
        }
        let is_accepted = copied.is_some();
        self.side.say(if is_accepted { ACCEPTED } else { DECLINED });
        Some(is_accepted)
    }

    /// Copies the bytes of a message during a visit. Returns `None` if the bytes must be discarded.
    fn copy(&self) -> Option<[u64; 2]> {
        let World { records, lanes, .. } = &*self.world;
        let _lane = Lanes(lanes).enter(0);
        if !records.is_current(QUEUE_PAIR, self.version) {
            return None;
        }
        records.find(REGION)?;
        let load = |at: usize| self.world.bytes[at].load(Ordering::Relaxed);
        let bytes = self.world.mapping.with(|_| [0, 1].map(load));
        records
            .was_current(QUEUE_PAIR, self.version)
            .then_some(bytes)
    }
}

#[test]
fn no_message_is_lost_while_nobody_fails() {
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
        // Two parts are in flight at the same time.
        sender.offer();
        sender.offer();
        let mut answered = 0;
        while answered < 2 {
            match sender.side.hear() {
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

/// Checks that after the sender has given up an unanswered message, the receiver has copied the bytes before or declines.
#[test]
fn bytes_that_were_changed_after_the_completion_are_not_accepted() {
    loom::model(|| {
        let (mut sender, mut receiver) = connect();
        sender.offer();
        let other = thread::spawn(move || receiver.take());
        match sender.side.hear() {
            Some(answer) => assert_eq!(answer, ACCEPTED),
            None => sender.give_up(),
        }
        // The message arrived before the receiver checked.
        assert!(other.join().unwrap().is_some());
    });
}

/// Checks a queue pair that is connected again during a copy, with another record version and other bytes.
#[test]
fn a_message_of_an_earlier_connection_is_not_accepted() {
    loom::model(|| {
        let (sender, mut receiver) = connect();
        sender.offer();
        let other = thread::spawn(move || receiver.take());
        sender.give_up();
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
        sender.give_up();
        sender.deregister();
        assert!(other.join().unwrap().is_some());
    });
}

/// Checks that when the region ends while its queue pair continues, the message is accepted or declined, and the copy is waited
/// for.
#[test]
fn a_region_that_ends_is_not_copied_from() {
    loom::model(|| {
        let (mut sender, mut receiver) = connect();
        sender.offer();
        let other = thread::spawn(move || receiver.take());
        sender.deregister();
        let is_accepted = other.join().unwrap();
        let answer = sender.side.hear();
        assert_eq!(
            answer,
            is_accepted.map(|is| if is { ACCEPTED } else { DECLINED })
        );
    });
}
