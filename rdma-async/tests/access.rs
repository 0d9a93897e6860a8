//! Checks that the device refuses access that was not granted or has ended.

mod common;

use common::{bytes, check, join, layout, listen, pattern, run};
use rdma_async::{Error, LocalMrReadAccess, Rdma, RdmaBuilder, RdmaListener, RemoteMr, Result};
use rdma_core::{AccessFlags, RemoteMemory, WorkStatus};

fn plain(builder: RdmaBuilder) -> RdmaBuilder {
    builder
}

/// Asserts that the peer's device refused an access, and that this ended the connection.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T>, rdma: &Rdma) {
    let refused = |error: &Error| {
        matches!(error, Error::Work(work) if matches!(work.status,
            WorkStatus::RemoteAccess | WorkStatus::RemoteInvalidRequest | WorkStatus::RemoteOperation))
    };
    match &outcome {
        Err(error) if refused(error) => {}
        other => panic!("not refused: {other:?}"),
    }
    let end = rdma.failure();
    assert!(end.as_ref().is_some_and(refused), "{end:?}");
}

/// Checks that each kind of access fails with a token that `modify` has made invalid, and that
/// another connection of the listener still works.
async fn check_invalid_token(modify: impl Fn(RemoteMemory) -> RemoteMemory) {
    let mut listener = listen(plain).await;
    let (good, good_server) = join(&mut listener, plain).await;
    for way in 0..4 {
        let (client, server) = join(&mut listener, plain).await;
        let granted = client.request_remote_mr(layout(64)).await.unwrap();
        let mut wrong = RemoteMr::from_token(modify(granted.token()));
        let mut local = pattern(&client, 8, 1);
        let outcome = match way {
            0 => client.write(&local, &mut wrong).await,
            1 => client.read(&mut local, &wrong).await,
            2 => client
                .fetch_and_add(&mut wrong.get_mut(0..8).unwrap(), 1)
                .await
                .map(drop),
            _ => client.write_with_immediate(&local, &mut wrong, 3).await,
        };
        assert_refused(outcome, &client);
        // Later operations at both ends fail because of the refused access.
        assert_refused(client.send(&local).await, &client);
        assert_refused(client.request_remote_mr(layout(8)).await, &client);
        assert_refused(client.receive().await, &client);
        server.ended().await;
        assert!(server.send(&pattern(&server, 8, 1)).await.is_err());
        check(&good, &good_server).await;
    }
    check(&good_server, &good).await;
}

#[test]
fn a_wrong_key_is_refused() {
    run(check_invalid_token(|memory| RemoteMemory {
        rkey: memory.rkey ^ 0x5a5a_0055,
        ..memory
    }));
}

#[test]
fn a_range_outside_the_region_is_refused() {
    run(check_invalid_token(|memory| RemoteMemory {
        address: memory.address + 64,
        ..memory
    }));
}

#[test]
fn a_range_that_begins_outside_the_region_is_refused() {
    run(check_invalid_token(|memory| RemoteMemory {
        address: memory.address - 8,
        ..memory
    }));
}

async fn return_memory(client: &Rdma, server: &Rdma, remote: RemoteMr) -> RemoteMr {
    let kept = RemoteMr::from_token(remote.token());
    client.send_remote_mr(remote).await.unwrap();
    let region = server.receive_local_mr().await.unwrap();
    // The access of the peer has ended, so this end can read the memory as a slice.
    assert_eq!(region.as_slice().len(), kept.token().len as usize);
    kept
}

#[test]
fn requested_memory_cannot_be_accessed_after_its_return() {
    run(async {
        let mut listener = listen(plain).await;
        for way in 0..2 {
            let (client, server) = join(&mut listener, plain).await;
            let remote = client.request_remote_mr(layout(64)).await.unwrap();
            let mut kept = return_memory(&client, &server, remote).await;
            let mut local = pattern(&client, 64, 1);
            let outcome = match way {
                0 => client.write(&local, &mut kept).await,
                _ => client.read(&mut local, &kept).await,
            };
            assert_refused(outcome, &client);
        }
        let (client, server) = join(&mut listener, plain).await;
        check(&client, &server).await;
    });
}

#[test]
fn lent_memory_cannot_be_accessed_after_its_return() {
    run(async {
        let mut listener = listen(plain).await;
        let (client, server) = join(&mut listener, plain).await;
        server.send_local_mr(pattern(&server, 64, 1)).await.unwrap();
        let remote = client.receive_remote_mr().await.unwrap();
        let kept = return_memory(&client, &server, remote).await;
        let mut local = pattern(&client, 64, 1);
        assert_refused(client.read(&mut local, &kept).await, &client);
    });
}

#[test]
fn requested_memory_cannot_be_accessed_after_its_release() {
    run(async {
        let mut listener = listen(plain).await;
        let (client, _server) = join(&mut listener, plain).await;
        let remote = client.request_remote_mr(layout(64)).await.unwrap();
        let kept = RemoteMr::from_token(remote.token());
        drop(remote);
        // The answer to this request arrives after the message about the release.
        let _other = client.request_remote_mr(layout(64)).await.unwrap();
        let mut local = pattern(&client, 64, 1);
        assert_refused(client.read(&mut local, &kept).await, &client);
    });
}

#[test]
fn only_granted_operations_are_executed() {
    run(async {
        let readable = |builder: RdmaBuilder| builder.remote_access(AccessFlags::REMOTE_READ);
        let mut listener = listen(readable).await;
        for way in 0..2 {
            let (client, server) = join(&mut listener, readable).await;
            server.send_local_mr(pattern(&server, 64, 7)).await.unwrap();
            let mut remote = client.receive_remote_mr().await.unwrap();
            let mut local = pattern(&client, 64, 1);
            client.read(&mut local, &remote).await.unwrap();
            assert_eq!(local.as_slice(), bytes(64, 7));
            let outcome = match way {
                0 => client.write(&local, &mut remote).await,
                _ => client
                    .fetch_and_add(&mut remote.get_mut(0..8).unwrap(), 1)
                    .await
                    .map(drop),
            };
            assert_refused(outcome, &client);
        }
    });
}

#[test]
fn a_key_is_refused_in_another_protection_domain() {
    run(async {
        let serving = |listener: &mut RdmaListener| listener.local_address().unwrap();
        let mut one = listen(plain).await;
        let mut other = listen(plain).await;
        assert_ne!(serving(&mut one), serving(&mut other));
        let (client, _server) = join(&mut one, plain).await;
        let (other_client, _other_server) = join(&mut other, plain).await;
        let remote = client.request_remote_mr(layout(64)).await.unwrap();
        // The key belongs to another protection domain.
        let mut foreign = RemoteMr::from_token(remote.token());
        let local = pattern(&other_client, 64, 1);
        assert_refused(
            other_client.write(&local, &mut foreign).await,
            &other_client,
        );
    });
}
