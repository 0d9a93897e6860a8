//! Checks published values: readers never see a part of an update.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{bytes, check, join, listen, pair, run};
use rdma_async::{Error, PublishedReader};
use rdma_core::{RemoteMemory, WorkStatus};

/// Returns a value whose bytes all depend on its number, with a length that changes.
fn value(number: u64, capacity: usize) -> Vec<u8> {
    let mut value = vec![number as u8; 8 + (number as usize * 7) % (capacity - 7)];
    value[..8].copy_from_slice(&number.to_ne_bytes());
    value
}

/// Asserts that `value` is the one of its version.
#[track_caller]
fn assert_whole(found: &[u8], version: u64, capacity: usize) {
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
fn readers_never_see_a_part_of_an_update() {
    // An emulated machine takes a thousand times as long.
    let reads = match common::context().name() {
        "softroce0" => 20_000,
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
                    assert_whole(&found, reader.version(), capacity);
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
fn the_end_of_publishing_ends_the_access_at_the_device() {
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
