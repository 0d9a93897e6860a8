//! Checks short and long messages, and that credits limit the sender.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{bytes, check, layout, pair, pair_with, pattern, run};
use futures_util::future::join_all;
use rdma_async::{Error, LocalMrReadAccess, Rdma, RdmaBuilder};

#[test]
fn messages_of_every_length_keep_their_boundaries() {
    run(async {
        let (client, server) = pair().await;
        // Lengths up to the maximum of one piece (4352), just above and far above the maximum.
        let lengths = [1, 2, 63, 64, 4096, 4336, 4351, 4352, 4353, 10_000, 1 << 20];
        let sends = async {
            for (seed, len) in lengths.into_iter().enumerate() {
                client
                    .send(&pattern(&client, len, seed as u8))
                    .await
                    .unwrap();
            }
        };
        let receives = async {
            for (seed, len) in lengths.into_iter().enumerate() {
                let message = server.receive().await.unwrap();
                assert!(message.as_slice() == bytes(len, seed as u8), "{len} bytes");
            }
        };
        tokio::join!(sends, receives);
    });
}

#[test]
fn long_messages_reuse_registered_memory() {
    const LENGTH: usize = 5 << 20;
    run(async {
        let (client, server) = pair().await;
        let mut places = Vec::new();
        for seed in 0..3 {
            let sent = pattern(&client, LENGTH, seed);
            let (sending, received) = tokio::join!(client.send(&sent), server.receive());
            sending.unwrap();
            let received = received.unwrap();
            assert!(received.as_slice() == bytes(LENGTH, seed));
            places.push((
                sent.as_slice().as_ptr().addr(),
                received.as_slice().as_ptr().addr(),
            ));
        }
        assert_eq!(places[1], places[0]);
        assert_eq!(places[2], places[0]);
    });
}

#[test]
fn a_message_can_be_a_slice_or_empty() {
    run(async {
        let (client, server) = pair().await;
        let whole = pattern(&client, 100, 1);
        client.send(&whole.get(10..20).unwrap()).await.unwrap();
        client.send(&whole.get(5..5).unwrap()).await.unwrap();
        assert_eq!(
            server.receive().await.unwrap().as_slice(),
            &bytes(100, 1)[10..20]
        );
        let nothing = server.receive().await.unwrap();
        assert_eq!(nothing.as_slice(), []);
        // A received message can be sent again.
        server.send(&nothing).await.unwrap();
        assert_eq!(client.receive().await.unwrap().length(), 0);
        assert!(
            server.send_local_mr(nothing).await.is_err(),
            "no bytes can be lent"
        );
        check(&client, &server).await;
    });
}

#[test]
fn short_and_long_messages_carry_immediate_data() {
    run(async {
        let (client, server) = pair().await;
        let sends = async {
            client
                .send_with_immediate(&pattern(&client, 8, 0), 0xdead_beef)
                .await
                .unwrap();
            client.send(&pattern(&client, 8, 0)).await.unwrap();
            client
                .send_with_immediate(&pattern(&client, 8192, 0), 7)
                .await
                .unwrap();
            client
                .send_with_immediate(&pattern(&client, 8, 0), 8)
                .await
                .unwrap();
        };
        let receives = async {
            for number in [Some(0xdead_beef), None, Some(7)] {
                let (_, received) = server.receive_with_immediate().await.unwrap();
                assert_eq!(received, number);
            }
            // `receive` returns the message without its immediate data.
            assert_eq!(server.receive().await.unwrap().as_slice(), bytes(8, 0));
        };
        tokio::join!(sends, receives);
    });
}

#[test]
fn a_sender_waits_for_credits_and_order_is_kept() {
    run(async {
        const DEPTH: u32 = 8;
        const COUNT: u32 = 100;
        let depths = |builder: RdmaBuilder| builder.receive_depth(DEPTH as u16);
        let (client, server) = pair_with(depths).await;
        let sent = Arc::new(AtomicU32::new(0));
        let sender = {
            let sent = Arc::clone(&sent);
            tokio::spawn(async move {
                for seed in 0..COUNT {
                    client
                        .send(&pattern(&client, 16, seed as u8))
                        .await
                        .unwrap();
                    sent.fetch_add(1, Ordering::SeqCst);
                }
                client
            })
        };
        // A request uses a control credit, so the peer answers while data messages wait for
        // credits. The answer also proves that every message with a credit was sent.
        common::eventually(|| (sent.load(Ordering::SeqCst) == DEPTH).then_some(())).await;
        for _ in 0..50 {
            server.request_remote_mr(layout(8)).await.unwrap();
        }
        assert_eq!(sent.load(Ordering::SeqCst), DEPTH, "no credit, no message");
        for seed in 0..COUNT {
            let message = server.receive().await.unwrap();
            assert_eq!(message.as_slice(), bytes(16, seed as u8));
        }
        let client = sender.await.unwrap();
        check(&client, &server).await;
    });
}

/// Sends and receives `count` messages of varying length concurrently in both directions.
async fn flood(
    rdma: Arc<Rdma>,
    count: usize,
    len: impl Fn(usize) -> usize + Send + Copy + 'static,
) {
    let sender = {
        let rdma = Arc::clone(&rdma);
        tokio::spawn(async move {
            for at in 0..count {
                rdma.send(&pattern(&rdma, len(at), at as u8)).await.unwrap();
            }
        })
    };
    for at in 0..count {
        let message = rdma.receive().await.unwrap();
        assert!(
            message.as_slice() == bytes(len(at), at as u8),
            "message {at}"
        );
    }
    sender.await.unwrap();
}

async fn flood_both(
    configure: impl Fn(RdmaBuilder) -> RdmaBuilder,
    count: usize,
    len: impl Fn(usize) -> usize + Send + Copy + 'static,
) {
    let (client, server) = pair_with(configure).await;
    let (client, server) = (Arc::new(client), Arc::new(server));
    let one = tokio::spawn(flood(Arc::clone(&client), count, len));
    let other = tokio::spawn(flood(Arc::clone(&server), count, len));
    one.await.unwrap();
    other.await.unwrap();
    check(&client, &server).await;
}

#[test]
fn messages_in_both_directions_at_full_speed_arrive() {
    run(flood_both(|builder| builder, 2000, |_| 64));
}

#[test]
fn messages_at_full_speed_arrive_with_the_smallest_queues() {
    run(flood_both(
        |builder| builder.send_depth(8).receive_depth(2),
        500,
        |at| at % 300 + 1,
    ));
}

#[test]
fn long_messages_at_full_speed_arrive() {
    let small = |builder: RdmaBuilder| builder.message_length(64).receive_depth(4);
    run(flood_both(
        small,
        300,
        |at| if at % 3 == 0 { 60 } else { 5000 },
    ));
}

#[test]
fn many_concurrent_long_messages_arrive() {
    run(async {
        const COUNT: usize = 200;
        let (client, server) = pair_with(|builder| builder.message_length(64)).await;
        let (client, server) = (Arc::new(client), Arc::new(server));
        let both = [(&client, &server), (&server, &client)].map(|(from, to)| {
            let senders = (0..COUNT).map(|_| {
                let from = Arc::clone(from);
                tokio::spawn(async move { from.send(&pattern(&from, 1000, 4)).await })
            });
            let receivers = (0..COUNT).map(|_| {
                let to = Arc::clone(to);
                tokio::spawn(async move {
                    let message = to.receive().await?;
                    assert_eq!(message.as_slice(), bytes(1000, 4));
                    Ok(())
                })
            });
            senders.chain(receivers).collect::<Vec<_>>()
        });
        for task in both.into_iter().flatten() {
            task.await.unwrap().unwrap();
        }
        check(&client, &server).await;
    });
}

#[test]
fn a_message_above_the_limit_is_an_error_at_both_ends() {
    run(async {
        let (client, server) = pair_with(|builder| builder.message_limit(100_000)).await;
        let (sent, received) = tokio::join!(
            async { client.send(&pattern(&client, 100_001, 0)).await },
            server.receive()
        );
        assert!(matches!(sent, Err(Error::Refused { .. })), "{sent:?}");
        assert!(
            matches!(received, Err(Error::InvalidArgument { .. })),
            "{received:?}"
        );
        check(&client, &server).await;
    });
}

/// Checks that messages are received in order if all have arrived before the first receive, so that
/// long messages are read ahead. The messages exceed both limits of reading ahead, and include
/// short messages and a refused message.
#[test]
fn messages_that_are_read_ahead_keep_their_order_and_their_errors() {
    const LIMIT: usize = 2 << 20;
    run(async {
        let (client, server) = pair_with(|builder| builder.message_limit(LIMIT)).await;
        let lengths = [5000, LIMIT + 1, 40]
            .into_iter()
            .chain([5000; 20])
            .chain([1 << 20; 6])
            .chain([10, 5000]);
        let lengths: Vec<usize> = lengths.collect();
        let messages = lengths.iter().zip(0..);
        let messages: Vec<_> = messages
            .map(|(&len, seed)| pattern(&client, len, seed))
            .collect();
        let sends = join_all(messages.iter().map(|message| client.send(message)));
        let receives = async {
            let mut received = Vec::new();
            for _ in &lengths {
                received.push(server.receive().await);
            }
            received
        };
        let (sent, received) = tokio::join!(sends, receives);
        for (((len, seed), sent), received) in lengths.iter().zip(0..).zip(sent).zip(received) {
            if *len > LIMIT {
                assert!(matches!(sent, Err(Error::Refused { .. })), "{sent:?}");
                assert!(matches!(received, Err(Error::InvalidArgument { .. })));
            } else {
                sent.unwrap();
                assert!(received.unwrap().as_slice() == bytes(*len, seed));
            }
        }
        check(&client, &server).await;
    });
}

#[test]
fn posted_messages_arrive_in_order() {
    run(async {
        let (client, server) = pair().await;
        let posts = async {
            for at in 0..300 {
                client.post(&pattern(&client, 40, at as u8)).await.unwrap();
            }
        };
        let receives = async {
            for at in 0..300 {
                assert_eq!(
                    server.receive().await.unwrap().as_slice(),
                    bytes(40, at as u8)
                );
            }
        };
        tokio::join!(posts, receives);
    });
}
