//! Checks published values: readers never read a partial update.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use common::{bytes, check, join, listen, pair, pattern, run};
use rdma_async::{Error, PublishedReader};
use rdma_core::{RemoteMemory, WorkStatus};

/// Returns the value with the number `number`, on which its length and all its bytes depend.
fn value(number: u64, capacity: usize) -> Vec<u8> {
    let mut value = vec![number as u8; 8 + (number as usize * 7) % (capacity - 7)];
    value[..8].copy_from_slice(&number.to_ne_bytes());
    value
}

/// Asserts that `found` is the complete value with the number `version`.
#[track_caller]
fn assert_complete(found: &[u8], version: u64, capacity: usize) {
    assert!(
        found == value(version, capacity),
        "version {version}: {} bytes that begin with {:?}",
        found.len(),
        &found[..found.len().min(16)]
    );
}

#[test]
fn a_reader_gets_the_last_value_of_any_length() {
    run(async {
        let (client, server) = pair().await;
        for capacity in [8, 64, 900, 5000, 1 << 20] {
            let mut board = server.device().publish(capacity).unwrap();
            let mut reader = PublishedReader::new(&client, board.token()).unwrap();
            assert_eq!(reader.read().await.unwrap(), []);
            for round in 0..20_u8 {
                let len = capacity * usize::from(round) / 19;
                let version = board.update(&bytes(len, round)).unwrap();
                assert!(reader.read().await.unwrap() == bytes(len, round));
                assert_eq!(reader.version(), version);
            }
            let long = board.update(&vec![0; capacity + 1]);
            assert!(matches!(long, Err(Error::InvalidArgument { .. })));
        }
    });
}

#[test]
fn readers_never_read_a_partial_update() {
    // An emulated machine takes a thousand times as long.
    let reads = match common::context().name() {
        "softroce0" => common::variable("READS", 20_000),
        _ => 300,
    };
    for capacity in [64, 4000] {
        run(async move {
            let mut listener = listen(|builder| builder).await;
            let (first, first_server) = join(&mut listener, |builder| builder).await;
            let (second, _second_server) = join(&mut listener, |builder| builder).await;
            let mut board = first_server.device().publish(capacity).unwrap();
            board.update(&value(1, capacity)).unwrap();
            let token = board.token();
            let is_over = Arc::new(AtomicBool::new(false));
            let writing = {
                let is_over = Arc::clone(&is_over);
                std::thread::spawn(move || {
                    let mut number = 1;
                    while !is_over.load(Ordering::Relaxed) {
                        number += 1;
                        board.update(&value(number, capacity)).unwrap();
                    }
                    number
                })
            };
            let read = |rdma| async move {
                let mut reader = PublishedReader::new(rdma, token).unwrap();
                let mut last = 0;
                for _ in 0..reads {
                    let found = reader.read().await.unwrap().to_vec();
                    assert_complete(&found, reader.version(), capacity);
                    assert!(reader.version() >= last, "a value older than the last");
                    last = reader.version();
                }
            };
            tokio::join!(read(&first), read(&second));
            is_over.store(true, Ordering::Relaxed);
            assert!(
                writing.join().unwrap() > 100,
                "the owner has hardly written"
            );
        });
    }
}

#[test]
fn a_reader_waits_for_a_change() {
    run(async {
        let (client, server) = pair().await;
        let mut board = server.device().publish(16).unwrap();
        board.update(b"first").unwrap();
        let mut reader = PublishedReader::new(&client, board.token()).unwrap();
        let interval = Duration::from_millis(1);
        assert_eq!(reader.changed(interval).await.unwrap(), b"first");
        let later = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            board.update(b"second").unwrap();
        };
        let (found, ()) = tokio::join!(reader.changed(interval), later);
        assert_eq!(found.unwrap(), b"second");
    });
}

#[test]
fn ending_a_published_value_ends_the_access_at_the_device() {
    run(async {
        let mut listener = listen(|builder| builder).await;
        let (client, server) = join(&mut listener, |builder| builder).await;
        let (other, other_server) = join(&mut listener, |builder| builder).await;
        let board = server.device().publish(16).unwrap();
        let mut reader = PublishedReader::new(&client, board.token()).unwrap();
        reader.read().await.unwrap();
        board.end().unwrap();
        match reader.read().await {
            Err(Error::Work(error)) => assert_eq!(error.status, WorkStatus::RemoteAccess),
            outcome => panic!("not refused: {outcome:?}"),
        }
        check(&other, &other_server).await;
    });
}

#[test]
fn tokens_of_other_memory_are_refused() {
    run(async {
        let (client, server) = pair().await;
        let token = server.device().publish(16).unwrap().token();
        for len in [0, 127, 129, u64::MAX] {
            let wrong = RemoteMemory { len, ..token };
            let refused = PublishedReader::new(&client, wrong);
            assert!(
                matches!(refused, Err(Error::InvalidArgument { .. })),
                "{len}"
            );
        }
    });
}

#[test]
fn ending_the_right_of_a_reader_does_not_affect_other_readers() {
    run(async {
        let mut listener = listen(|builder| builder).await;
        let (one, server) = join(&mut listener, |builder| builder).await;
        let (other, _other_server) = join(&mut listener, |builder| builder).await;
        let (third, _third_server) = join(&mut listener, |builder| builder).await;
        let mut board = server.device().publish(16).unwrap();
        board.update(b"value").unwrap();
        let rights = [board.admit().unwrap(), board.admit().unwrap()];
        assert_ne!(rights[0].token().rkey, rights[1].token().rkey);
        let mut reader = PublishedReader::new(&one, rights[0].token()).unwrap();
        let mut lasting = PublishedReader::new(&other, rights[1].token()).unwrap();
        assert_eq!(reader.read().await.unwrap(), b"value");
        let [right, other_right] = rights;
        right.end().unwrap();
        let refused = |outcome: Result<&[u8], Error>| match outcome {
            Err(Error::Work(error)) => assert_eq!(error.status, WorkStatus::RemoteAccess),
            outcome => panic!("not refused: {outcome:?}"),
        };
        refused(reader.read().await);
        board.update(b"next").unwrap();
        assert_eq!(lasting.read().await.unwrap(), b"next");
        // Dropping the value ends every right, even if the right itself is not dropped.
        let mut at_end = PublishedReader::new(&third, board.token()).unwrap();
        at_end.read().await.unwrap();
        board.end().unwrap();
        refused(lasting.read().await);
        refused(at_end.read().await);
        drop(other_right);
    });
}

#[test]
fn the_last_change_is_announced_to_slow_subscribers() {
    run(async {
        let few = |builder: rdma_async::RdmaBuilder| builder.receive_depth(2);
        let mut listener = listen(few).await;
        let mut board = None;
        let mut readers = Vec::new();
        for number in 0..3 {
            let (client, server) = join(&mut listener, few).await;
            // The first connection opens a device, which the other connections also use.
            let board = board.get_or_insert_with(|| server.device().publish(16).unwrap());
            let announcer = board.announcer();
            let token = board.token();
            tokio::spawn(async move { announcer.announce(&server, number).await });
            readers.push(tokio::spawn(async move {
                let mut reader = PublishedReader::new(&client, token).unwrap();
                let (mut last, mut seen) = (0, 0);
                while last < 1000 {
                    let value = reader.announced().await.unwrap();
                    last = u64::from_ne_bytes(value.try_into().unwrap());
                    seen += 1;
                    // The subscribers wait for different times.
                    tokio::time::sleep(Duration::from_millis(u64::from(number))).await;
                }
                seen
            }));
        }
        let mut board = board.unwrap();
        for value in 1..=1000_u64 {
            board.update(&value.to_ne_bytes()).unwrap();
            if value % 10 == 0 {
                tokio::task::yield_now().await;
            }
        }
        for reader in readers {
            assert!((1..=1000).contains(&reader.await.unwrap()));
        }
    });
}

#[test]
fn a_lost_reader_does_not_affect_the_owner_and_a_lost_owner_is_an_error() {
    run(async {
        let mut listener = listen(|builder| builder).await;
        let (client, server) = join(&mut listener, |builder| builder).await;
        let (other, other_server) = join(&mut listener, |builder| builder).await;
        let mut board = server.device().publish(4000).unwrap();
        let announcer = board.announcer();
        let announcing = tokio::spawn(async move { announcer.announce(&server, 1).await });
        // The reader is dropped during reads and announcements.
        for number in 1..200 {
            board.update(&value(number, 4000)).unwrap();
            let mut reader = PublishedReader::new(&client, board.token()).unwrap();
            drop(common::poll_and_drop(reader.read()));
        }
        drop(client);
        announcing.await.unwrap().unwrap_err();
        let mut reader = PublishedReader::new(&other, board.token()).unwrap();
        board.update(b"still here").unwrap();
        assert_eq!(reader.read().await.unwrap(), b"still here");
        // The owner is dropped during a read.
        let reading = async {
            loop {
                if let Err(error) = reader.read().await {
                    return error;
                }
            }
        };
        let (error, ()) = tokio::join!(reading, async { drop(other_server) });
        common::assert_gone(&error);
        drop(board);
    });
}

#[test]
fn announcements_end_with_the_value_while_no_credit_is_available() {
    run(async {
        let few = |builder: rdma_async::RdmaBuilder| builder.receive_depth(2);
        let mut listener = listen(few).await;
        let (client, server) = join(&mut listener, few).await;
        // The reader receives no message, so the announcement waits for a credit.
        for number in 0..2 {
            server.send(&pattern(&server, 8, number)).await.unwrap();
        }
        let board = server.device().publish(64).unwrap();
        let announcer = board.announcer();
        let mut announcing = Box::pin(announcer.announce(&server, 1));
        let mut unwoken = Context::from_waker(Waker::noop());
        assert!(announcing.as_mut().poll(&mut unwoken).is_pending());
        drop(board);
        announcing.await.unwrap();
        drop(client);
    });
}
