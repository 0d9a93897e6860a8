//! Loom models of the ring (message queue). Loom tries every order in which threads can run, and
//! every value that loads can return.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test --release -p softroce --lib models
//! ```

use loom::sync::Arc;
use loom::thread;

use super::memory::memory;
use super::*;

/// Calls [`Consumer::pop`] `times` times, and checks the payload of each received message. Returns
/// the number that each message contains, in the order of the messages.
fn take<S, C, M>(consumer: &mut Consumer<S, C, M>, times: usize) -> Vec<u64>
where
    S: Deref<Target = [Slot]>,
    C: Deref<Target = [Chunk]>,
    M: Deref<Target = ControlWords>,
{
    let mut taken = Vec::new();
    for _ in 0..times {
        let popped = consumer.pop(|message| {
            let mut word = [0; 8];
            message.room.read(&mut word);
            assert_eq!(u64::from_ne_bytes(word), message.words[0]);
            message.words[0]
        });
        match popped.expect("nobody breaks it") {
            Some(number) => taken.push(number),
            None => thread::yield_now(),
        }
    }
    taken
}

fn fill(number: u64) -> impl FnOnce(MessageChunks<'_>) -> Result<(), ()> {
    move |room| {
        room.write(&number.to_ne_bytes());
        Ok(())
    }
}

/// Checks that the consumer receives each message completely or not at all. The producer must not
/// overwrite a slot or a chunk (cache lines of the ring) that the consumer has not read yet. The
/// consumer must not read them before the producer has written them.
#[test]
fn a_message_is_received_completely_or_not_at_all() {
    loom::model(|| {
        let (here, there) = memory(1, 1);
        let mut consumer = Consumer::new(there);
        let sender = thread::spawn(move || {
            let producer = Producer::new(here);
            producer.push(1, &[1], 1, fill(1)).unwrap();
            producer.push(1, &[2], 1, fill(2)).is_ok()
        });
        let mut taken = take(&mut consumer, 2);
        let both = sender.join().unwrap();
        taken.extend(take(&mut consumer, 2));
        assert_eq!(taken, if both { vec![1, 2] } else { vec![1] });
    });
}

/// Checks that each message arrives exactly once if two producers send at the same time.
#[test]
fn each_message_of_two_producers_arrives_once() {
    loom::model(|| {
        let (here, there) = memory(2, 2);
        let producer = Arc::new(Producer::new(here));
        let mut consumer = Consumer::new(there);
        let other = {
            let producer = Arc::clone(&producer);
            thread::spawn(move || producer.push(1, &[7], 1, fill(7)).unwrap())
        };
        producer.push(1, &[8], 1, fill(8)).unwrap();
        let mut taken = take(&mut consumer, 1);
        other.join().unwrap();
        taken.extend(take(&mut consumer, 2));
        taken.sort_unstable();
        assert_eq!(taken, [7, 8]);
    });
}

/// Checks a producer that waits for space in a full ring buffer: the consumer wakes the producer,
/// or the producer finds free space immediately.
#[test]
fn a_waiting_producer_gets_a_wakeup_or_space() {
    loom::model(|| {
        let (here, there) = memory(1, 1);
        let mut consumer = Consumer::new(there);
        let producer = Producer::new(here);
        producer.push(1, &[1], 1, fill(1)).unwrap();
        let receiver = thread::spawn(move || {
            assert_eq!(take(&mut consumer, 1), [1]);
            consumer.must_wake_producer()
        });
        let sees_room = producer.request_space(1);
        let is_woken = receiver.join().unwrap();
        assert!(sees_room || is_woken);
    });
}
