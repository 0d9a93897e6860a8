//! Checks the lending of memory from one end to the other, and its return.

mod common;

use common::{bytes, check, layout, pair, pair_with, pattern, poll_and_drop, run};
use rdma_async::{Error, LocalMrReadAccess, LocalMrWriteAccess, RemoteMr, RemoteMrReadAccess};

#[test]
fn requested_memory_is_returned_to_its_owner() {
    run(async {
        let (client, server) = pair().await;
        for len in [1, 8, 100, 4096, 70_000, 2 << 20] {
            let mut remote = client.request_remote_mr(layout(len)).await.unwrap();
            assert_eq!(remote.length(), len);
            let source = pattern(&client, len, 1);
            client.write(&source, &mut remote).await.unwrap();
            client.send_remote_mr(remote).await.unwrap();
            let mut region = server.receive_local_mr().await.unwrap();
            assert!(region.as_slice() == bytes(len, 1));
            region.as_mut_slice().fill(0);
        }
    });
}

#[test]
fn requested_memory_is_zeroed_and_aligned() {
    run(async {
        let (client, _server) = pair().await;
        for align in [1, 8, 64, 4096, 8192] {
            let layout = std::alloc::Layout::from_size_align(256, align).unwrap();
            for _ in 0..20 {
                let mut remote = client.request_remote_mr(layout).await.unwrap();
                assert!(remote.token().address.is_multiple_of(align as u64));
                let mut target = client.alloc_local_mr(layout).unwrap();
                client.read(&mut target, &remote).await.unwrap();
                assert_eq!(target.as_slice(), [0; 256]);
                client
                    .write(&pattern(&client, 256, 9), &mut remote)
                    .await
                    .unwrap();
            }
        }
    });
}

#[test]
fn lent_memory_is_returned() {
    run(async {
        let (client, server) = pair().await;
        for round in 0..20 {
            client
                .send_local_mr(pattern(&client, 500, round))
                .await
                .unwrap();
            let mut remote = server.receive_remote_mr().await.unwrap();
            let mut copy = server.alloc_local_mr(layout(500)).unwrap();
            server.read(&mut copy, &remote).await.unwrap();
            assert_eq!(copy.as_slice(), bytes(500, round));
            let mut part = remote.get_mut(100..200).unwrap();
            server
                .write(&pattern(&server, 100, 77), &mut part)
                .await
                .unwrap();
            server.send_remote_mr(remote).await.unwrap();
            let region = client.receive_local_mr().await.unwrap();
            assert_eq!(region.as_slice()[..100], bytes(500, round)[..100]);
            assert_eq!(region.as_slice()[100..200], bytes(100, 77));
        }
    });
}

#[test]
fn a_received_message_can_be_lent() {
    run(async {
        let (client, server) = pair().await;
        client.send(&pattern(&client, 300, 2)).await.unwrap();
        let message = server.receive().await.unwrap();
        server.send_local_mr(message).await.unwrap();
        let remote = client.receive_remote_mr().await.unwrap();
        assert_eq!(remote.length(), 300);
        let mut copy = client.alloc_local_mr(layout(300)).unwrap();
        client.read(&mut copy, &remote).await.unwrap();
        assert_eq!(copy.as_slice(), bytes(300, 2));
        client.send_remote_mr(remote).await.unwrap();
        assert_eq!(
            server.receive_local_mr().await.unwrap().as_slice(),
            bytes(300, 2)
        );
    });
}

#[test]
fn dropped_remote_memory_can_be_requested_again() {
    run(async {
        let limited = |builder: rdma_async::RdmaBuilder| builder.remote_memory_limit(1000);
        let (client, server) = pair_with(limited).await;
        for _ in 0..200 {
            let first = client.request_remote_mr(layout(600)).await.unwrap();
            let refusal = client.request_remote_mr(layout(600)).await;
            assert!(matches!(refusal, Err(Error::Refused { .. })), "{refusal:?}");
            drop(first);
        }
        // Memory is also released if its request was dropped before the answer arrived.
        for _ in 0..200 {
            poll_and_drop(client.request_remote_mr(layout(600)));
        }
        let region = loop {
            match client.request_remote_mr(layout(1000)).await {
                Ok(region) => break region,
                Err(Error::Refused { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        };
        client.send_remote_mr(region).await.unwrap();
        drop(server.receive_local_mr().await.unwrap());
        drop(client.request_remote_mr(layout(1000)).await.unwrap());
    });
}

#[test]
fn thousands_of_regions_can_be_dropped_at_once() {
    run(async {
        const COUNT: usize = 5000;
        let (client, server) = pair().await;
        let mut regions = Vec::new();
        for _ in 0..COUNT {
            match client.request_remote_mr(layout(8)).await {
                Ok(region) => regions.push(region),
                // The device has no registrations left.
                Err(Error::Refused { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        drop(regions);
        check(&client, &server).await;
        check(&server, &client).await;
    });
}

#[test]
fn an_excessive_request_is_refused() {
    run(async {
        let (client, server) = pair().await;
        let absurd = [
            std::alloc::Layout::from_size_align(1 << 60, 1).unwrap(),
            std::alloc::Layout::from_size_align(1, 1 << 40).unwrap(),
        ];
        for layout in absurd {
            let refusal = client.request_remote_mr(layout).await;
            assert!(matches!(refusal, Err(Error::Refused { .. })), "{refusal:?}");
        }
        check(&client, &server).await;
    });
}

#[test]
fn memory_is_returned_only_on_its_own_connection() {
    run(async {
        let mut listener = common::listen(|builder| builder).await;
        let (client, server) = common::join(&mut listener, |builder| builder).await;
        let (other, _other_server) = common::join(&mut listener, |builder| builder).await;
        let remote = client.request_remote_mr(layout(8)).await.unwrap();
        let token = remote.token();
        let refusal = other.send_remote_mr(remote).await;
        assert!(
            matches!(refusal, Err(Error::InvalidArgument { .. })),
            "{refusal:?}"
        );
        let refusal = client.send_remote_mr(RemoteMr::from_token(token)).await;
        assert!(
            matches!(refusal, Err(Error::InvalidArgument { .. })),
            "{refusal:?}"
        );
        check(&client, &server).await;
    });
}

#[test]
fn dropped_transfers_of_memory_lose_no_memory() {
    run(async {
        let few =
            |builder: rdma_async::RdmaBuilder| builder.receive_depth(2).remote_memory_limit(64);
        let (client, server) = pair_with(few).await;
        // Uses all credits, so that the offers must wait.
        let message = pattern(&client, 8, 0);
        client.send(&message).await.unwrap();
        client.send(&message).await.unwrap();
        for _ in 0..100 {
            let offered = client.alloc_local_mr(layout(8)).unwrap();
            assert!(poll_and_drop(client.send_local_mr(offered)).is_none());
        }
        server.receive().await.unwrap();
        server.receive().await.unwrap();
        client.send_local_mr(pattern(&client, 8, 3)).await.unwrap();
        let offered = server.receive_remote_mr().await.unwrap();
        let mut copy = server.alloc_local_mr(layout(8)).unwrap();
        server.read(&mut copy, &offered).await.unwrap();
        assert_eq!(
            copy.as_slice(),
            bytes(8, 3),
            "the first offer that was made"
        );
        // Memory whose return was dropped is either released or returned.
        for _ in 0..100 {
            let region = loop {
                match client.request_remote_mr(layout(64)).await {
                    Ok(region) => break region,
                    // Returned memory counts until the owner has received it.
                    Err(Error::Refused { .. }) => {
                        poll_and_drop(server.receive_local_mr());
                        tokio::task::yield_now().await;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            poll_and_drop(client.send_remote_mr(region));
        }
        check_small(&client, &server).await;
    });
}

/// Checks a message in each direction.
async fn check_small(client: &rdma_async::Rdma, server: &rdma_async::Rdma) {
    for (from, to) in [(client, server), (server, client)] {
        from.send(&pattern(from, 8, 6)).await.unwrap();
        assert_eq!(to.receive().await.unwrap().as_slice(), bytes(8, 6));
    }
}
