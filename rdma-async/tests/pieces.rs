//! Checks operations on several pieces of memory, on owned memory, and on memory shared between
//! tasks.

mod common;

use std::sync::Arc;

use common::{bytes, check, layout, pair, pair_with, pattern, poll_and_drop, run};
use futures_util::future::try_join_all;
use rdma_async::{Error, LocalMr, LocalMrReadAccess, LocalMrWriteAccess};

#[test]
fn disjoint_ranges_are_in_flight_together() {
    run(async {
        let (client, _server) = pair().await;
        let mut remote = client.request_remote_mr(layout(9000)).await.unwrap();
        client
            .write(&pattern(&client, 9000, 4), &mut remote)
            .await
            .unwrap();
        let region = client.alloc_local_mr(layout(9000)).unwrap();
        let (mut front, rest) = region.split_at(2000).unwrap();
        let (mut middle, mut back) = rest.split_at(3000).unwrap();
        let parts = [0..2000, 2000..5000, 5000..9000].map(|range| remote.get(range).unwrap());
        tokio::try_join!(
            client.read(&mut front, &parts[0]),
            client.read(&mut middle, &parts[1]),
            client.read(&mut back, &parts[2]),
        )
        .unwrap();
        let rest = middle.join(back).unwrap();
        let whole = front.join(rest).unwrap();
        assert!(whole.as_slice() == bytes(9000, 4));
    });
}

#[test]
fn only_adjacent_unused_ranges_are_joined() {
    run(async {
        let (client, server) = pair().await;
        let split = |region: LocalMr, at| region.split_at(at).map_err(|(_, error)| error).unwrap();
        let (front, back) = split(pattern(&client, 100, 1), 40);
        let (other, _) = split(pattern(&client, 100, 1), 40);
        let refused = *back.join(front).unwrap_err();
        assert!(matches!(refused.error, Error::InvalidArgument { .. }));
        let (back, front) = (refused.front, refused.back);
        let refused = *front.join(other).unwrap_err();
        assert!(matches!(refused.error, Error::InvalidArgument { .. }));
        let (front, other) = (refused.front, refused.back);
        assert_eq!(other.as_slice(), &bytes(100, 1)[..40]);
        let whole = front.join(back).unwrap();
        assert_eq!(whole.as_slice(), bytes(100, 1));
        let (whole, error) = whole.split_at(101).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        for at in [0, 100] {
            let (front, back) = split(pattern(&client, 100, 2), at);
            assert_eq!((front.length(), back.length()), (at, 100 - at));
        }
        // A part of a received message can be sent.
        client.send(&whole).await.unwrap();
        let (front, back) = split(server.receive().await.unwrap(), 60);
        assert_eq!(front.as_slice(), &bytes(100, 1)[..60]);
        assert_eq!(back.as_slice(), &bytes(100, 1)[60..]);
        drop(front.join(back).unwrap());
        check(&client, &server).await;
    });
}

#[test]
fn pieces_are_written_and_read_in_order() {
    run(async {
        let (client, _server) = pair_with(|builder| builder.send_depth(8)).await;
        let mut remote = client.request_remote_mr(layout(30_000)).await.unwrap();
        // The number of pieces exceeds the capacity of the send queue.
        let lengths: Vec<usize> = (0..40).map(|at| 1 + at * 30).collect();
        let pieces: Vec<_> = lengths
            .iter()
            .map(|&len| pattern(&client, len, len as u8))
            .collect();
        let pieces: Vec<_> = pieces.iter().collect();
        client.write_vectored(&pieces, &mut remote).await.unwrap();
        let mut targets: Vec<_> = lengths
            .iter()
            .map(|&len| client.alloc_local_mr(layout(len)).unwrap())
            .collect();
        let mut into: Vec<_> = targets.iter_mut().collect();
        client.read_vectored(&mut into, &remote).await.unwrap();
        for (target, &len) in targets.iter().zip(&lengths) {
            assert!(target.as_slice() == bytes(len, len as u8), "{len} bytes");
        }
        // One future is dropped in progress. The pieces of the other are longer than the remote
        // memory.
        poll_and_drop(client.write_vectored(&pieces, &mut remote));
        let mut short = remote.get_mut(0..100).unwrap();
        let refused = client.write_vectored(&pieces, &mut short).await;
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
        client
            .write_vectored::<LocalMr>(&[], &mut short)
            .await
            .unwrap();
    });
}

#[test]
fn nothing_is_transferred_if_a_later_piece_is_in_use() {
    run(async {
        let (client, _server) = pair().await;
        let mut remote = client.request_remote_mr(layout(100)).await.unwrap();
        client
            .write(&pattern(&client, 100, 4), &mut remote)
            .await
            .unwrap();
        // The server does not receive this message, so the operation remains in flight.
        let mut used = client.alloc_local_mr(layout(1 << 20)).unwrap();
        assert!(poll_and_drop(client.send(&used)).is_none());
        let mut free = client.alloc_local_mr(layout(50)).unwrap();
        let mut used = used.get_mut(0..50).unwrap();
        let mut pieces = [&mut free.get_mut(0..50).unwrap(), &mut used];
        let refused = client.read_vectored(&mut pieces, &remote).await;
        assert!(matches!(refused, Err(Error::Verbs(_))), "{refused:?}");
        // This read completes after all earlier operations.
        let mut whole = client.alloc_local_mr(layout(100)).unwrap();
        client.read(&mut whole, &remote).await.unwrap();
        assert_eq!(free.as_slice(), [0; 50]);
        assert_eq!(whole.as_slice(), bytes(100, 4));
    });
}

#[test]
fn owned_operations_return_their_memory() {
    run(async {
        let (client, server) = pair().await;
        let mut remote = client.request_remote_mr(layout(5000)).await.unwrap();
        let (outcome, memory) = client
            .write_owned(pattern(&client, 5000, 6), &mut remote)
            .await;
        outcome.unwrap();
        let mut memory = memory;
        memory.as_mut_slice().fill(0);
        let (outcome, memory) = client.read_owned(memory, &remote).await;
        outcome.unwrap();
        assert!(memory.as_slice() == bytes(5000, 6));
        let (sent, received) = tokio::join!(client.send_owned(memory), server.receive());
        sent.0.unwrap();
        assert!(received.unwrap().as_slice() == bytes(5000, 6));
        let (outcome, memory) = client
            .write_with_immediate_owned(sent.1, &mut remote, 5)
            .await;
        outcome.unwrap();
        assert_eq!(server.receive_write_immediate().await.unwrap(), 5);
        let short = remote.get(0..10).unwrap();
        let (outcome, memory) = client.read_owned(memory, &short).await;
        assert!(matches!(outcome, Err(Error::InvalidArgument { .. })));
        drop(memory);
    });
}

#[test]
fn tasks_share_remote_memory_and_the_last_task_returns_it() {
    run(async {
        const COUNT: usize = 16;
        let (client, server) = pair().await;
        let client = Arc::new(client);
        let remote = client.request_remote_mr(layout(8 * COUNT)).await.unwrap();
        let remote = remote.share();
        assert!(remote.get(8 * COUNT - 4..8 * COUNT + 4).is_none());
        let tasks = (0..COUNT).map(|at| {
            let (client, whole) = (Arc::clone(&client), remote.clone());
            tokio::spawn(async move {
                let mut word = whole.get(8 * at..8 * at + 8).unwrap();
                for _ in 0..10 {
                    client.fetch_and_add(&mut word, 1).await.unwrap();
                }
            })
        });
        try_join_all(tasks.collect::<Vec<_>>()).await.unwrap();
        let other = remote.clone();
        let remote = remote.into_whole().unwrap_err();
        drop(other);
        let whole = remote.into_whole().unwrap();
        client.send_remote_mr(whole).await.unwrap();
        let region = server.receive_local_mr().await.unwrap();
        for word in region.as_slice().chunks(8) {
            assert_eq!(word, 10_u64.to_ne_bytes());
        }
    });
}
