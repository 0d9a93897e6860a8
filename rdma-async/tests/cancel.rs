//! Checks futures that are dropped or forgotten while their operations are in flight.

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use common::{
    assert_disconnected, builder, bytes, check, layout, listen, one_thread, pair, pair_with,
    pattern, poll_and_drop, run, run_on, two_threads,
};
use rdma_async::{
    CompletionMode, LocalMr, LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaBuilder, RemoteMr,
};
use tokio::time::timeout;

const ROUNDS: usize = 200;

/// Returns two connected ends that wait for completion events without polling, so that the first
/// poll of an operation rarely finds its completion.
async fn pair_by_events() -> (Rdma, Rdma) {
    pair_with(|builder| builder.completion(CompletionMode::Event)).await
}

/// Waits until no operation uses the memory.
async fn wait_until_unused(region: &mut LocalMr) {
    while region.try_as_mut_slice().is_err() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn dropped_writes_and_reads_complete() {
    run(async {
        // Some devices complete a short operation immediately.
        for (len, rounds) in [(64, ROUNDS), (1 << 20, 20)] {
            let (client, server) = pair_by_events().await;
            let mut remote = client.request_remote_mr(layout(len)).await.unwrap();
            let mut source = pattern(&client, len, 1);
            let mut target = client.alloc_local_mr(layout(len)).unwrap();
            for _ in 0..rounds {
                poll_and_drop(client.write(&source, &mut remote));
                // The operation only reads the memory, so the program can also read it.
                assert_eq!(source.try_as_slice().unwrap().len(), len);
                wait_until_unused(&mut source).await;
                poll_and_drop(client.read(&mut target, &remote));
                if let Err(error) = target.try_as_slice() {
                    assert!(error.to_string().contains("in use"), "{error}");
                }
                wait_until_unused(&mut target).await;
                assert!(target.as_slice() == bytes(len, 1));
                target.as_mut_slice().fill(0);
                let word = remote.get_mut(0..8);
                poll_and_drop(client.fetch_and_add(&mut word.unwrap(), 0));
            }
            check(&client, &server).await;
            check(&server, &client).await;
        }
    });
}

#[test]
fn dropped_operations_that_wait_for_a_slot_hold_no_resources() {
    run(async {
        const LONG: usize = 2 << 20;
        let small = |builder: RdmaBuilder| builder.send_depth(8).completion(CompletionMode::Event);
        let (client, server) = pair_with(small).await;
        let long = client.request_remote_mr(layout(LONG)).await.unwrap();
        let remote = client.request_remote_mr(layout(8)).await.unwrap();
        let words = || (0..20).map(|_| RemoteMr::from_token(remote.token()));
        for _ in 0..10 {
            let mut context = Context::from_waker(Waker::noop());
            // These operations occupy the slots for some time.
            let mut targets: Vec<_> = (0..8)
                .map(|_| client.alloc_local_mr(layout(LONG)).unwrap())
                .collect();
            let reads = targets
                .iter_mut()
                .map(|to| Box::pin(client.read(to, &long)));
            let mut reads: Vec<_> = reads.collect();
            let mut dropped: Vec<_> = words().collect();
            let adds = dropped
                .iter_mut()
                .map(|word| Box::pin(client.fetch_and_add(word, 1)));
            let mut adds: Vec<_> = adds.collect();
            for read in &mut reads {
                drop(read.as_mut().poll(&mut context));
            }
            for add in &mut adds {
                drop(add.as_mut().poll(&mut context));
            }
            drop((adds, reads));
            // All resources of the operations are available again.
            let adds = words().map(|mut word| {
                let client = &client;
                async move { client.fetch_and_add(&mut word, 0).await }
            });
            futures_util::future::try_join_all(adds).await.unwrap();
        }
        let mut word = RemoteMr::from_token(remote.token());
        assert!(client.fetch_and_add(&mut word, 0).await.unwrap() <= 200);
        check(&client, &server).await;
    });
}

#[test]
fn a_dropped_send_arrives_at_most_once() {
    run(async {
        let (client, server) = pair_by_events().await;
        let receiver = async {
            let mut last = None;
            loop {
                let message = server.receive().await.unwrap();
                let number = u32::from_ne_bytes(message.as_slice()[..4].try_into().unwrap());
                assert!(last < Some(number), "{number} after {last:?}");
                last = Some(number);
                if number == u32::MAX {
                    return;
                }
            }
        };
        let sender = async {
            for number in 0..ROUNDS as u32 {
                // Every third message is too long for one piece.
                let mut message = pattern(&client, if number % 3 == 0 { 6000 } else { 60 }, 0);
                message.as_mut_slice()[..4].copy_from_slice(&number.to_ne_bytes());
                poll_and_drop(client.send(&message));
                if number % 2 == 0 {
                    wait_until_unused(&mut message).await;
                }
            }
            let mut message = pattern(&client, 60, 0);
            message.as_mut_slice()[..4].fill(0xff);
            client.send(&message).await.unwrap();
        };
        tokio::join!(receiver, sender);
        check(&client, &server).await;
        check(&server, &client).await;
    });
}

#[test]
fn dropped_sends_that_wait_for_credits_use_no_credit() {
    run(async {
        let few = |builder: RdmaBuilder| builder.receive_depth(2);
        let (client, server) = pair_with(few).await;
        let message = pattern(&client, 16, 3);
        let long = pattern(&client, 6000, 4);
        client.send(&message).await.unwrap();
        client.send(&message).await.unwrap();
        let mut remote = client.request_remote_mr(layout(16)).await.unwrap();
        for _ in 0..ROUNDS {
            assert!(poll_and_drop(client.send(&message)).is_none());
            assert!(poll_and_drop(client.send(&long)).is_none());
            assert!(poll_and_drop(client.write_with_immediate(&message, &mut remote, 1)).is_none());
        }
        for _ in 0..2 {
            assert_eq!(server.receive().await.unwrap().as_slice(), bytes(16, 3));
        }
        for _ in 0..20 {
            client.send(&message).await.unwrap();
            assert_eq!(server.receive().await.unwrap().as_slice(), bytes(16, 3));
        }
        check(&client, &server).await;
    });
}

#[test]
fn dropped_receives_lose_no_message() {
    run(async {
        const COUNT: usize = 60;
        let (client, server) = pair_by_events().await;
        let sender = async {
            for at in 0..COUNT {
                let len = if at % 2 == 0 { 40 } else { 20_000 };
                client.send(&pattern(&client, len, at as u8)).await.unwrap();
            }
        };
        let receiver = async {
            for at in 0..COUNT {
                let message = loop {
                    if let Some(message) = poll_and_drop(server.receive()) {
                        break message.unwrap();
                    }
                    // Polls more than once: a long message whose receive is always dropped at its
                    // first
                    // poll would never be read.
                    if at % 4 == 1 {
                        break server.receive().await.unwrap();
                    }
                    if at % 4 == 3 {
                        // Drops a second receive, unless the message has already arrived.
                        break match poll_and_drop(server.receive()) {
                            Some(message) => message.unwrap(),
                            None => server.receive().await.unwrap(),
                        };
                    }
                    tokio::task::yield_now().await;
                };
                let len = if at % 2 == 0 { 40 } else { 20_000 };
                assert!(message.as_slice() == bytes(len, at as u8), "message {at}");
            }
        };
        tokio::join!(sender, receiver);
        for _ in 0..ROUNDS {
            assert!(poll_and_drop(server.receive()).is_none());
            assert!(poll_and_drop(server.receive_local_mr()).is_none());
            assert!(poll_and_drop(server.receive_remote_mr()).is_none());
            assert!(poll_and_drop(server.receive_write_immediate()).is_none());
        }
        check(&client, &server).await;
    });
}

#[test]
fn a_rendezvous_keeps_its_memory_until_the_peer_has_read_it() {
    run(async {
        let (client, server) = pair_by_events().await;
        let mut message = pattern(&client, 6000, 5);
        {
            let mut send = pin!(client.send(&message));
            // Polls until the message was offered. The peer receives the message next.
            let mut context = Context::from_waker(Waker::noop());
            assert!(send.as_mut().poll(&mut context).is_pending());
        }
        // The message was offered, and the peer has not read it.
        assert!(message.try_as_mut_slice().is_err());
        assert_eq!(message.try_as_slice().unwrap().len(), 6000);
        let received = server.receive().await.unwrap();
        assert!(received.as_slice() == bytes(6000, 5));
        wait_until_unused(&mut message).await;
        check(&client, &server).await;
    });
}

#[test]
fn forgotten_futures_keep_only_their_memory_claimed() {
    run(async {
        let (client, server) = pair_by_events().await;
        let mut remote = client.request_remote_mr(layout(4096)).await.unwrap();
        for _ in 0..50 {
            let mut target = client.alloc_local_mr(layout(4096)).unwrap();
            let mut read = Box::pin(client.read(&mut target, &remote));
            let polled = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if polled.is_pending() {
                std::mem::forget(read);
            } else {
                drop(read);
            }
            wait_until_unused(&mut target).await;
            let source = pattern(&client, 4096, 1);
            let mut write = Box::pin(client.write(&source, &mut remote));
            let polled = write.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if polled.is_pending() {
                std::mem::forget(write);
            } else {
                drop(write);
            }
        }
        check(&client, &server).await;
        check(&server, &client).await;
    });
}

#[test]
fn memory_dropped_in_flight_is_not_reused_before_completion() {
    run(async {
        let (client, server) = pair_by_events().await;
        let remote = client.request_remote_mr(layout(1 << 16)).await.unwrap();
        let mut filled = RemoteMr::from_token(remote.token());
        client
            .write(&pattern(&client, 1 << 16, 8), &mut filled)
            .await
            .unwrap();
        for _ in 0..ROUNDS {
            let mut target = client.alloc_local_mr(layout(1 << 16)).unwrap();
            poll_and_drop(client.read(&mut target, &remote));
            drop(target);
            // If this allocation reused the memory, the read would write to it.
            let fresh = client.alloc_local_mr(layout(1 << 16)).unwrap();
            tokio::task::yield_now().await;
            assert!(fresh.as_slice().iter().all(|&byte| byte == 0));
        }
        check(&client, &server).await;
    });
}

#[test]
fn a_connection_can_be_dropped_with_operations_in_flight() {
    run(async {
        for _ in 0..20 {
            let (client, server) = pair().await;
            let remote = client.request_remote_mr(layout(1 << 16)).await.unwrap();
            let mut target = client.alloc_local_mr(layout(1 << 16)).unwrap();
            let mut given = RemoteMr::from_token(remote.token());
            let source = pattern(&client, 1 << 16, 1);
            poll_and_drop(client.read(&mut target, &remote));
            poll_and_drop(client.write(&source, &mut given));
            poll_and_drop(client.send(&source));
            drop(client);
            // The memory outlives the connection, and the program can reuse the memory.
            wait_until_unused(&mut target).await;
            drop((target, source, remote));
            assert_disconnected(server.receive_local_mr().await);
        }
    });
}

#[test]
fn a_message_that_was_read_is_not_lost_when_its_receive_is_dropped() {
    const LEN: usize = 10_000;
    // The number of messages exceeds the number of credits for their answers.
    const MESSAGES: u8 = 40;
    run_on(two_threads(), async {
        let mut listener = listen(|builder| builder).await;
        let address = listener.local_address().unwrap();
        let (begun, sent) = tokio::sync::oneshot::channel();
        let (go_on, resume) = std::sync::mpsc::channel::<()>();
        let sending = tokio::task::spawn_blocking(move || {
            let runtime = one_thread();
            let client = runtime.block_on(builder().connect(address)).unwrap();
            let messages = (0..MESSAGES).map(|seed| pattern(&client, LEN, seed));
            let messages: Vec<_> = messages.collect();
            let sends = messages
                .iter()
                .map(|message| Box::pin(client.send(message)));
            let mut sends: Vec<_> = sends.collect();
            runtime.block_on(async {
                let mut context = Context::from_waker(Waker::noop());
                for send in &mut sends {
                    assert!(send.as_mut().poll(&mut context).is_pending());
                }
            });
            begun.send(()).unwrap();
            // The receiver gets no credits back during this time.
            resume.recv().unwrap();
            let all = futures_util::future::try_join_all(sends);
            runtime.block_on(all).unwrap();
        });
        let server = listener.accept().await.unwrap();
        sent.await.unwrap();
        let mut seed = 0;
        while let Ok(message) = timeout(Duration::from_millis(300), server.receive()).await {
            assert_eq!(message.unwrap().as_slice(), bytes(LEN, seed));
            seed += 1;
        }
        assert!(seed < MESSAGES, "no receive had to wait for a credit");
        go_on.send(()).unwrap();
        for seed in seed..MESSAGES {
            let message = server.receive().await.unwrap();
            assert_eq!(message.as_slice(), bytes(LEN, seed));
        }
        sending.await.unwrap();
    });
}
