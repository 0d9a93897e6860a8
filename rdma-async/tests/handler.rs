//! Checks messages that are handled within the poll that finds them.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{bytes, check, join, listen, one_thread, pair, pattern, run, run_on, two_threads};
use rdma_async::{Error, LocalMrReadAccess, LocalMrWriteAccess};

#[test]
fn a_handler_echoes_messages_without_a_task() {
    for runtime in [one_thread(), two_threads()] {
        run_on(runtime, async {
            let (client, server) = pair().await;
            server
                .handle_messages(|message, poster| match poster.try_post(&message.region) {
                    Ok(true) => None,
                    _ => Some(message),
                })
                .unwrap();
            // The number of messages exceeds the number of credits.
            for seed in 0..200 {
                client.send(&pattern(&client, 300, seed)).await.unwrap();
                let echo = client.receive().await.unwrap();
                assert_eq!(echo.as_slice(), bytes(300, seed));
            }
        });
    }
}

#[test]
fn messages_that_a_handler_returns_are_received_in_order() {
    run(async {
        let (client, server) = pair().await;
        let handled = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&handled);
        server
            .handle_messages(move |message, _| {
                if message.region.as_slice()[0] % 2 == 0 {
                    counter.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                Some(message)
            })
            .unwrap();
        let sending = async {
            for number in 0..100 {
                let mut message = pattern(&client, 64, 0);
                message.as_mut_slice()[0] = number;
                client.send(&message).await.unwrap();
            }
        };
        let receiving = async {
            for number in (1..100).step_by(2) {
                let message = server.receive().await.unwrap();
                assert_eq!(message.as_slice()[0], number);
            }
        };
        tokio::join!(sending, receiving);
        assert_eq!(handled.load(Ordering::Relaxed), 50);
    });
}

#[test]
fn a_connection_has_one_handler() {
    run(async {
        let (client, _server) = pair().await;
        client.handle_messages(|message, _| Some(message)).unwrap();
        let second = client.handle_messages(|_, _| None);
        assert!(matches!(second, Err(Error::InvalidArgument { .. })));
        let long = pattern(&client, 5000, 0);
        let refused = client.try_post(&long);
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })));
    });
}

#[test]
fn a_panic_of_a_handler_ends_only_its_connection() {
    run(async {
        let mut listener = listen(|builder| builder).await;
        let (client, server) = join(&mut listener, |builder| builder).await;
        let (good, good_server) = join(&mut listener, |builder| builder).await;
        server
            .handle_messages(|_, _| panic!("a handler that panics"))
            .unwrap();
        client.post(&pattern(&client, 8, 0)).await.unwrap();
        let end = server.ended().await.to_string();
        assert!(end.contains("panicked"), "{end}");
        client.ended().await;
        check(&good, &good_server).await;
    });
}

#[test]
fn try_post_returns_false_without_credits() {
    run(async {
        let (client, server) = common::pair_with(|builder| builder.receive_depth(4)).await;
        let message = pattern(&client, 8, 0);
        let mut posted = 0;
        while client.try_post(&message).unwrap() {
            posted += 1;
        }
        assert_eq!(posted, 4);
        for _ in 0..posted {
            server.receive().await.unwrap();
        }
        client.send(&message).await.unwrap();
        server.receive().await.unwrap();
    });
}
