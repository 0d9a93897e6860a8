//! Checks reads, writes and atomics.

mod common;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use common::{
    bytes, check, layout, one_thread, pair, pair_with, pattern, run, run_on, two_threads,
};
use futures_util::future::try_join_all;
use rdma_async::{
    CompletionMode, Error, LocalMrReadAccess, LocalMrWriteAccess, RemoteMr, RemoteMrReadAccess,
};

#[test]
fn a_slice_is_written_into_a_slice_and_read_back() {
    run(async {
        let (client, server) = pair().await;
        let mut remote = client.request_remote_mr(layout(4096)).await.unwrap();
        let source = pattern(&client, 4096, 3);
        let (from, to) = (source.get(100..1100), remote.get_mut(2000..3000));
        client
            .write(&from.unwrap(), &mut to.unwrap())
            .await
            .unwrap();
        let mut target = client.alloc_local_mr(layout(4096)).unwrap();
        let mut part = target.get_mut(8..1016).unwrap();
        let from = remote.get(1996..3004).unwrap();
        client.read(&mut part, &from).await.unwrap();
        let mut expected = vec![0; 4096];
        expected[12..1012].copy_from_slice(&bytes(4096, 3)[100..1100]);
        assert_eq!(target.as_slice(), expected);
        client.send_remote_mr(remote).await.unwrap();
        let region = server.receive_local_mr().await.unwrap();
        assert_eq!(region.as_slice()[2000..3000], bytes(4096, 3)[100..1100]);
        assert!(region.as_slice()[3000..].iter().all(|&byte| byte == 0));
    });
}

#[test]
fn a_mebibyte_is_written_and_read_back() {
    run(async {
        const LEN: usize = (1 << 20) + 3;
        let (client, _server) = pair().await;
        let mut remote = client.request_remote_mr(layout(LEN)).await.unwrap();
        client
            .write(&pattern(&client, LEN, 9), &mut remote)
            .await
            .unwrap();
        let mut target = client.alloc_local_mr(layout(LEN)).unwrap();
        client.read(&mut target, &remote).await.unwrap();
        assert!(target.as_slice() == bytes(LEN, 9));
    });
}

#[test]
fn invalid_lengths_and_alignments_are_refused_before_anything_is_sent() {
    run(async {
        let (client, server) = pair().await;
        let mut remote = client.request_remote_mr(layout(64)).await.unwrap();
        let mut local = pattern(&client, 65, 0);
        let refusals = [
            client.write(&local, &mut remote).await,
            client.write_with_immediate(&local, &mut remote, 1).await,
            client.read(&mut local, &remote).await,
            client.fetch_and_add(&mut remote, 1).await.map(drop),
        ];
        for refusal in refusals {
            assert!(
                matches!(refusal, Err(Error::InvalidArgument { .. })),
                "{refusal:?}"
            );
        }
        let mut crooked = remote.get_mut(4..12).unwrap();
        let refusal = client.compare_and_swap(&mut crooked, 0, 1).await;
        assert!(matches!(refusal, Err(Error::InvalidArgument { .. })));
        assert!(remote.get(60..65).is_none() && remote.get_mut(0..65).is_none());
        let refusal = client.alloc_local_mr(layout(0));
        assert!(matches!(refusal, Err(Error::InvalidArgument { .. })));
        let refusal = client.request_remote_mr(layout(0)).await;
        assert!(matches!(refusal, Err(Error::InvalidArgument { .. })));
        check(&client, &server).await;
    });
}

#[test]
fn a_write_with_immediate_delivers_its_immediate_data() {
    run(async {
        let (client, server) = pair().await;
        let mut remote = client.request_remote_mr(layout(64)).await.unwrap();
        let source = pattern(&client, 64, 5);
        // The number of writes with immediate data exceeds the number of credits.
        let numbers = async {
            for number in 0..200 {
                let number = number | 0x8000_0000;
                client
                    .write_with_immediate(&source, &mut remote, number)
                    .await
                    .unwrap();
            }
        };
        let receives = async {
            for number in 0..200 {
                let received = server.receive_write_immediate().await.unwrap();
                assert_eq!(received, number | 0x8000_0000);
            }
        };
        tokio::join!(numbers, receives);
        client.send_remote_mr(remote).await.unwrap();
        let region = server.receive_local_mr().await.unwrap();
        assert_eq!(region.as_slice(), bytes(64, 5));
    });
}

#[test]
fn atomics_return_the_previous_value() {
    run(async {
        let (client, _server) = pair().await;
        let mut remote = client.request_remote_mr(layout(16)).await.unwrap();
        let mut word = remote.get_mut(8..16).unwrap();
        assert_eq!(client.fetch_and_add(&mut word, 7).await.unwrap(), 0);
        assert_eq!(client.compare_and_swap(&mut word, 6, 100).await.unwrap(), 7);
        assert_eq!(
            client
                .compare_and_swap(&mut word, 7, u64::MAX)
                .await
                .unwrap(),
            7
        );
        assert_eq!(client.fetch_and_add(&mut word, 2).await.unwrap(), u64::MAX);
        let mut target = client.alloc_local_mr(layout(16)).unwrap();
        client.read(&mut target, &remote).await.unwrap();
        assert_eq!(target.as_slice()[..8], [0; 8]);
        assert_eq!(target.as_slice()[8..], 1_u64.to_ne_bytes());
    });
}

#[test]
fn concurrent_increments_sum_up() {
    run(async {
        const TASKS: u64 = 8;
        const TIMES: u64 = 50;
        let (client, _server) = pair_with(|builder| builder.send_depth(8)).await;
        let client = Arc::new(client);
        let remote = client.request_remote_mr(layout(8)).await.unwrap();
        let token = remote.token();
        let tasks = (0..TASKS).map(|task| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                let mut word = RemoteMr::from_token(token);
                for _ in 0..TIMES {
                    client.fetch_and_add(&mut word, task + 1).await.unwrap();
                }
            })
        });
        try_join_all(tasks.collect::<Vec<_>>()).await.unwrap();
        let mut total = RemoteMr::from_token(token);
        let sum = client.fetch_and_add(&mut total, 0).await.unwrap();
        assert_eq!(sum, TIMES * (1..=TASKS).sum::<u64>());
    });
}

#[test]
fn operations_beyond_the_queue_depth_wait_and_complete() {
    run(async {
        const COUNT: usize = 1000;
        let (client, server) = pair_with(|builder| builder.send_depth(8)).await;
        let remote = client.request_remote_mr(layout(8 * COUNT)).await.unwrap();
        let token = remote.token();
        let client = Arc::new(client);
        // Atomics, which also need slots for their results, as concurrent futures of one task.
        let adds = (0..COUNT).map(|at| {
            let client = Arc::clone(&client);
            async move {
                let mut word = RemoteMr::from_token(token.slice(8 * at..8 * at + 8).unwrap());
                client.fetch_and_add(&mut word, at as u64).await
            }
        });
        let found = try_join_all(adds).await.unwrap();
        assert!(found.iter().all(|&value| value == 0));
        // Writes, each in a task of its own.
        let tasks = (0..COUNT).map(|at| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                let mut word = RemoteMr::from_token(token.slice(8 * at..8 * at + 8).unwrap());
                let mut source = client.alloc_local_mr(layout(8)).unwrap();
                let value = (at as u64) << 32;
                source.as_mut_slice().copy_from_slice(&value.to_ne_bytes());
                client.write(&source, &mut word).await
            })
        });
        for written in try_join_all(tasks.collect::<Vec<_>>()).await.unwrap() {
            written.unwrap();
        }
        let mut target = client.alloc_local_mr(layout(8 * COUNT)).unwrap();
        client.read(&mut target, &remote).await.unwrap();
        for (at, word) in target.as_slice().chunks(8).enumerate() {
            assert_eq!(word, ((at as u64) << 32).to_ne_bytes());
        }
        check(&client, &server).await;
    });
}

#[test]
fn completed_futures_that_are_not_polled_do_not_block_others() {
    run(async {
        const LONG: usize = 2 << 20;
        let (client, server) = pair_with(|builder| builder.send_depth(8).receive_depth(8)).await;
        let remote = client.request_remote_mr(layout(LONG)).await.unwrap();
        let mut targets: Vec<_> = (0..8)
            .map(|_| client.alloc_local_mr(layout(LONG)).unwrap())
            .collect();
        let reads = targets
            .iter_mut()
            .map(|to| Box::pin(client.read(to, &remote)));
        let mut reads: Vec<_> = reads.collect();
        for read in &mut reads {
            let once = |cx: &mut Context<'_>| {
                drop(read.as_mut().poll(cx));
                Poll::Ready(())
            };
            poll_fn(once).await;
        }
        // The peer's sends need credits from this end, and its request needs an answer.
        let message = pattern(&server, 32, 7);
        let sends = async {
            for _ in 0..100 {
                server.send(&message).await.unwrap();
            }
            server.request_remote_mr(layout(8)).await.unwrap();
        };
        let receives = async {
            for _ in 0..100 {
                assert_eq!(client.receive().await.unwrap().as_slice(), bytes(32, 7));
            }
        };
        tokio::join!(sends, receives);
        drop(reads);
    });
}

#[test]
fn every_mode_works_on_every_runtime() {
    let modes = [
        CompletionMode::Event,
        CompletionMode::Adaptive {
            spin: Duration::from_micros(50),
        },
        CompletionMode::Busy,
    ];
    for mode in modes {
        for runtime in [one_thread(), two_threads()] {
            run_on(runtime, async {
                let (client, server) = pair_with(|builder| builder.completion(mode)).await;
                for _ in 0..20 {
                    check(&client, &server).await;
                    check(&server, &client).await;
                }
                // Both directions concurrently.
                let (sent, received) = tokio::join!(check(&client, &server), async {
                    let remote = server.request_remote_mr(layout(8)).await.unwrap();
                    remote.length()
                });
                assert_eq!(((), 8), (sent, received));
            });
        }
    }
}

#[test]
fn immediately_completed_operations_let_other_tasks_run() {
    run_on(one_thread(), async {
        let (client, server) = pair().await;
        let remote = client.request_remote_mr(layout(64)).await.unwrap();
        let mut target = client.alloc_local_mr(layout(64)).unwrap();
        let reading = async {
            loop {
                client.read(&mut target, &remote).await.unwrap();
            }
        };
        let limit = Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, reading).await.is_err());
        check(&client, &server).await;
    });
}

#[test]
fn a_connection_works_from_another_runtime_and_fails_with_its_own() {
    let own = two_threads();
    let (client, server) = own.block_on(pair());
    run(async {
        check(&client, &server).await;
        let (pending, ended) = tokio::join!(client.receive(), async {
            tokio::task::spawn_blocking(move || drop(own))
                .await
                .unwrap();
            server.ended().await
        });
        let text = pending.unwrap_err().to_string();
        assert!(text.contains("runtime") || text.contains("peer"), "{text}");
        assert!(matches!(ended, Error::Disconnected { .. }), "{ended}");
    });
}

#[test]
fn debug_text_names_the_ends_of_a_connection_and_fits_into_a_log() {
    run(async {
        let (client, server) = pair().await;
        let text = format!("{client:?} {:?}", client.device());
        for part in [
            client.peer_address().to_string(),
            client.local_address().to_string(),
            client.queue_pair().number().to_string(),
            client.device().context().name().to_owned(),
        ] {
            assert!(text.contains(&part), "{part} is not in {text}");
        }
        assert!(text.len() < 500, "{} bytes", text.len());
        drop(server);
        let end = client.ended().await.to_string();
        assert!(format!("{client:?}").contains(&end), "{client:?}");
    });
}
