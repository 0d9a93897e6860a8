use std::sync::atomic::AtomicBool;
use std::thread;

use super::memory::memory;
use super::*;

fn no_content(_: MessageChunks<'_>) -> Result<(), ()> {
    unreachable!("there are no chunks")
}

#[test]
fn messages_are_received_in_order_with_their_bytes() {
    let (here, there) = memory(4, 8);
    let (producer, mut consumer) = (Producer::new(here), Consumer::new(there));
    assert!(consumer.is_empty());
    for round in 0..100_u64 {
        // Uses payloads of all lengths, so that chunks wrap around the end of the memory.
        let data: Vec<u8> = (0..round % 190).map(|at| (at + round) as u8).collect();
        let chunks = data.len().div_ceil(CHUNK) as u16;
        let fill = |room: MessageChunks<'_>| {
            assert_eq!(room.length(), usize::from(chunks) * CHUNK);
            room.write(&data);
            Ok::<(), ()>(())
        };
        producer
            .push(3, &[round, 1, 2, 3, 4, 5, 6], chunks, fill)
            .unwrap();
        assert!(!consumer.is_empty());
        let popped = consumer.pop(|message| {
            assert_eq!(message.tag, 3);
            assert_eq!(message.words, [round, 1, 2, 3, 4, 5, 6]);
            let mut out = vec![0; data.len()];
            message.room.read(&mut out);
            assert_eq!(out, data);
            // Reads fewer bytes than the message has, and then more.
            let mut begin = vec![0; data.len() / 2];
            message.room.read(&mut begin);
            assert_eq!(begin, data[..data.len() / 2]);
            let mut beyond = vec![7; data.len() + CHUNK];
            message.room.read(&mut beyond);
            assert_eq!(beyond[..data.len()], data);
            assert_eq!(
                beyond[message.room.length()..],
                vec![7; data.len() + CHUNK - message.room.length()]
            );
        });
        assert_eq!(popped, Ok(Some(())));
        assert_eq!(consumer.pop(|_| ()), Ok(None));
    }
}

#[test]
fn a_full_ring_accepts_no_message_until_space_is_freed() {
    let (here, there) = memory(4, 4);
    let (producer, mut consumer) = (Producer::new(here), Consumer::new(there));
    for _ in 0..3 {
        for _ in 0..4 {
            producer.push(1, &[], 0, no_content).unwrap();
        }
        assert_eq!(producer.push(1, &[], 0, no_content), Err(PushError::Full));
        for _ in 0..4 {
            assert_eq!(consumer.pop(|_| ()), Ok(Some(())));
        }
    }
    let fill = |_: MessageChunks<'_>| Ok::<(), ()>(());
    producer.push(1, &[], 3, fill).unwrap();
    assert_eq!(producer.push(1, &[], 2, fill), Err(PushError::Full));
    producer.push(1, &[], 1, fill).unwrap();
    assert_eq!(producer.push(1, &[], 1, fill), Err(PushError::Full));
    // A message without chunks must still fit.
    producer.push(1, &[], 0, no_content).unwrap();
    assert!(producer.request_space(0));
    assert!(!producer.request_space(1));
    assert!(!consumer.must_wake_producer());
    assert_eq!(consumer.pop(|_| ()), Ok(Some(())));
    assert!(consumer.must_wake_producer());
    assert!(!consumer.must_wake_producer(), "once");
    assert!(producer.request_space(3));
}

#[test]
fn a_message_that_cannot_be_filled_is_not_received() {
    let (here, there) = memory(4, 4);
    let (producer, mut consumer) = (Producer::new(here), Consumer::new(there));
    let failed = producer.push(1, &[], 2, |_| Err("fault"));
    assert_eq!(failed, Err(PushError::Content("fault")));
    assert_eq!(consumer.pop(|_| ()), Ok(None));
    producer.push(2, &[], 0, no_content).unwrap();
    assert_eq!(consumer.pop(|message| message.tag), Ok(Some(2)));
}

#[test]
fn positions_wrap() {
    let (here, there) = memory(4, 8);
    let start = Position {
        slot: u32::MAX - 5,
        chunk: u32::MAX - 7,
    };
    here.marks.released.0.store(start.word(), Ordering::Relaxed);
    let (producer, mut consumer) = (Producer::at(start, here), Consumer::at(start, there));
    for round in 0..50_u64 {
        let byte = [round as u8; 2 * CHUNK];
        producer
            .push(1, &[round], 2, |room| {
                room.write(&byte);
                Ok::<(), ()>(())
            })
            .unwrap();
        let (number, bytes) = consumer
            .pop(|message| {
                let mut bytes = [0; 2 * CHUNK];
                message.room.read(&mut bytes);
                (message.words[0], bytes)
            })
            .unwrap()
            .unwrap();
        assert_eq!((number, bytes), (round, byte));
    }
}

#[test]
fn an_invalid_record_ends_the_ring() {
    let (here, there) = memory(4, 4);
    let memory = Memory {
        slots: std::sync::Arc::clone(&there.slots),
        chunks: std::sync::Arc::clone(&there.chunks),
        marks: std::sync::Arc::clone(&there.marks),
    };
    let mut consumer = Consumer::new(there);
    for head in [5_u64 << 32 | 1, u64::MAX << 32 | 1] {
        memory.slots[0].0[0].store(head, Ordering::Relaxed);
        assert_eq!(consumer.pop(|_| ()), Err(Violation), "{head:#x}");
    }
    let producer = Producer::new(here);
    for _ in 0..4 {
        producer.push(1, &[], 0, no_content).unwrap();
    }
    for told in [5_u64 << 32, u64::MAX, 1] {
        memory.marks.released.0.store(told, Ordering::Relaxed);
        let result = producer.push(1, &[], 0, no_content);
        assert_eq!(result, Err(PushError::Violation), "{told:#x}");
    }
}

#[test]
fn several_threads_send_through_one_ring() {
    const PER_THREAD: u64 = 2_000;
    let (here, there) = memory(16, 32);
    let (producer, mut consumer) = (Producer::new(here), Consumer::new(there));
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (producer, failed) = (&producer, &failed);
            scope.spawn(move || {
                for number in 0..PER_THREAD {
                    let chunks = (number % 4) as u16;
                    let bytes = vec![number as u8; usize::from(chunks) * CHUNK];
                    let fill = |room: MessageChunks<'_>| {
                        room.write(&bytes);
                        Ok::<(), ()>(())
                    };
                    while let Err(error) = producer.push(1, &[thread, number], chunks, fill) {
                        assert_eq!(error, PushError::Full);
                        if failed.load(std::sync::atomic::Ordering::Relaxed) {
                            return;
                        }
                        thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0; 3];
        let mut check = || {
            while next.iter().sum::<u64>() < 3 * PER_THREAD {
                let popped = consumer.pop(|message| {
                    let [thread, number, ..] = message.words;
                    let mut bytes = vec![0; message.room.length()];
                    message.room.read(&mut bytes);
                    let chunks = (number % 4) as usize;
                    let right = bytes == vec![number as u8; chunks * CHUNK];
                    (thread as usize, number, right)
                });
                match popped {
                    Ok(Some((thread, number, right))) => {
                        if !right || next[thread] != number {
                            return false;
                        }
                        next[thread] += 1;
                    }
                    Ok(None) => thread::yield_now(),
                    Err(Violation) => return false,
                }
            }
            true
        };
        let right = check();
        failed.store(!right, std::sync::atomic::Ordering::Relaxed);
        assert!(right);
    });
}
