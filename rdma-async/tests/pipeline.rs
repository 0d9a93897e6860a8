//! Checks pipelines, which keep many reads and writes of one task in flight.

mod common;

use std::time::Duration;

use common::{bytes, layout, one_thread, pair, pair_with, pattern, run, run_on, two_threads};
use rdma_async::{CompletionMode, Error, LocalMrReadAccess, RemoteMr};

const PARTS: usize = 300;

/// Writes [`PARTS`] parts of `len` bytes by a pipeline, reads the parts back by the pipeline, and
/// compares them.
async fn write_and_read_back(depth: usize, len: usize) {
    let (client, _server) = pair().await;
    let size = PARTS * len;
    let mut remote = client.request_remote_mr(layout(size)).await.unwrap();
    let source = pattern(&client, size, 7);
    let mut pipeline = client.pipeline(depth);
    for number in 0..PARTS {
        let part = number * len..(number + 1) * len;
        let mut target = remote.get_mut(part.clone()).unwrap();
        let source = source.get(part).unwrap();
        pipeline.write(&source, &mut target).await.unwrap();
    }
    pipeline.finish().await.unwrap();
    let mut parts: Vec<_> = (0..PARTS)
        .map(|_| client.alloc_local_mr(layout(len)).unwrap())
        .collect();
    for (number, part) in parts.iter_mut().enumerate() {
        let source = remote.get(number * len..(number + 1) * len).unwrap();
        pipeline.read(part, &source).await.unwrap();
    }
    pipeline.finish().await.unwrap();
    for (part, expected) in parts.iter().zip(bytes(size, 7).chunks(len)) {
        assert_eq!(part.as_slice(), expected);
    }
}

#[test]
fn every_byte_arrives_at_every_depth() {
    for runtime in [one_thread, two_threads] {
        for depth in [0, 1, 3, 64, 10_000] {
            for len in [8, 5000] {
                run_on(runtime(), write_and_read_back(depth, len));
            }
        }
    }
}

#[test]
fn a_pipeline_needs_no_polling_driver() {
    run(async {
        let (client, _server) =
            pair_with(|builder| builder.completion(CompletionMode::Event)).await;
        let mut remote = client.request_remote_mr(layout(8)).await.unwrap();
        let source = pattern(&client, 8, 1);
        for _ in 0..20 {
            let mut pipeline = client.pipeline(4);
            for _ in 0..50 {
                pipeline.write(&source, &mut remote).await.unwrap();
            }
            pipeline.finish().await.unwrap();
        }
        let mut copy = client.alloc_local_mr(layout(8)).unwrap();
        client.read(&mut copy, &remote).await.unwrap();
        assert_eq!(copy.as_slice(), source.as_slice());
    });
}

#[test]
fn memory_is_claimed_until_its_request_has_completed() {
    run(async {
        let (client, _server) = pair().await;
        let remote = client.request_remote_mr(layout(4096)).await.unwrap();
        let mut local = client.alloc_local_mr(layout(4096)).unwrap();
        let mut pipeline = client.pipeline(8);
        // The first request is posted immediately, the second would be posted at the end of the
        // turn. If this thread is stopped between the two, the first may have completed, and the
        // second is accepted.
        let mut refusal = None;
        for _ in 0..100 {
            pipeline.read(&mut local, &remote).await.unwrap();
            let again = pipeline.read(&mut local, &remote).await;
            pipeline.finish().await.unwrap();
            refusal = again.err();
            if refusal.is_some() {
                break;
            }
        }
        assert!(matches!(refusal, Some(Error::Verbs { .. })), "{refusal:?}");
        pipeline.read(&mut local, &remote).await.unwrap();
        drop(pipeline);
        // The request is still in flight. Later operations complete after the request.
        let mut other = client.alloc_local_mr(layout(8)).unwrap();
        client
            .read(&mut other, &remote.get(0..8).unwrap())
            .await
            .unwrap();
        assert_eq!(local.as_slice(), [0; 4096]);
    });
}

#[test]
fn a_refused_access_is_an_error_of_the_waiting_operation() {
    run(async {
        let (client, _server) = pair().await;
        let granted = client.request_remote_mr(layout(64)).await.unwrap();
        let mut token = granted.token();
        token.address += 1 << 30;
        let mut forged = RemoteMr::from_token(token);
        let source = pattern(&client, 64, 1);
        let mut pipeline = client.pipeline(4);
        let error = loop {
            if let Err(error) = pipeline.write(&source, &mut forged).await {
                break error;
            }
        };
        assert!(matches!(error, Error::Work { .. }), "{error:?}");
        let later = pipeline.write(&source, &mut forged).await;
        assert!(later.is_err());
        assert!(pipeline.finish().await.is_err());
    });
}

#[test]
fn other_tasks_run_beside_a_pipeline_that_never_waits() {
    run(async {
        let (client, _server) = pair().await;
        let mut remote = client.request_remote_mr(layout(8)).await.unwrap();
        let source = pattern(&client, 8, 1);
        let writing = async {
            let mut pipeline = client.pipeline(64);
            loop {
                pipeline.write(&source, &mut remote).await.unwrap();
            }
        };
        let other = tokio::time::sleep(Duration::from_millis(20));
        tokio::select! {
            () = writing => {}
            () = other => {}
        }
    });
}
