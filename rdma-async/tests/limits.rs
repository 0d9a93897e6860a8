//! Checks the limits of the memory that peers request and hold, and its statistics.

mod common;

use std::alloc::Layout;
use std::net::SocketAddr;
use std::time::Duration;

use common::{builder, check, context, eventually, layout, pattern, run};
use rdma_async::{
    Error, GrantedMemory, PoolOptions, Rdma, RdmaBuilder, RdmaDevice, RdmaListener, RemoteMr,
};
use rdma_core::WorkStatus;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket};

fn held(granted: GrantedMemory) -> (usize, usize) {
    (granted.bytes, granted.regions)
}

/// A device with a listener.
async fn owner(configure: impl FnOnce(RdmaBuilder) -> RdmaBuilder) -> (RdmaDevice, RdmaListener) {
    let device = RdmaDevice::new(&context()).unwrap();
    let builder = configure(builder().on(&device));
    let listener = builder.bind("127.0.0.1:0").await.unwrap();
    (device, listener)
}

async fn join(listener: &mut RdmaListener) -> (Rdma, Rdma) {
    common::join(listener, |builder| builder).await
}

/// Creates a connection whose connecting end has another IP address than the other connections of
/// the tests, by passing its TCP connection on from that address.
async fn join_from_other_host(listener: &mut RdmaListener) -> (Rdma, Rdma) {
    let address = listener.local_address().unwrap();
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let there = proxy.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut client, _) = proxy.accept().await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
        let mut server = socket.connect(address).await.unwrap();
        copy_bidirectional(&mut client, &mut server).await
    });
    let (client, server) = tokio::join!(builder().connect(there), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(server.peer_address().ip().to_string(), "127.0.0.2");
    (client, server)
}

/// Requests memory that the peer refuses, and returns the reason.
async fn refusal(rdma: &Rdma, bytes: usize) -> String {
    refusal_of(rdma, layout(bytes)).await
}

async fn refusal_of(rdma: &Rdma, layout: Layout) -> String {
    match rdma.request_remote_mr(layout).await {
        Err(Error::Refused { reason, .. }) => reason.into_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_names_the_limit_and_released_memory_can_be_requested_again() {
    run(async {
        let (device, mut listener) = owner(|builder| {
            let builder = builder.remote_memory_limit(1000);
            builder.remote_region_limit(3).peer_memory_limit(1500)
        })
        .await;
        let (client, server) = join(&mut listener).await;
        let (other, other_server) = join(&mut listener).await;
        let host = server.peer_address().ip();
        let first = client.request_remote_mr(layout(600)).await.unwrap();
        let reason = refusal(&client, 401).await;
        assert!(
            reason.contains("at most 1000 bytes on one connection"),
            "{reason}"
        );
        let second = client.request_remote_mr(layout(400)).await.unwrap();
        assert_eq!(held(server.granted_memory()), (1000, 2));

        // The other connection of this host gets the rest of the host's limit.
        let third = other.request_remote_mr(layout(500)).await.unwrap();
        let reason = refusal(&other, 8).await;
        assert!(
            reason.contains("at most 1500 bytes, on all connections"),
            "{reason}"
        );
        assert_eq!(held(device.granted_memory(host)), (1500, 3));
        assert_eq!(held(other_server.granted_memory()), (500, 1));

        drop(first);
        let released = || (device.granted_memory(host).bytes == 900).then_some(());
        eventually(released).await;
        let fourth = other.request_remote_mr(layout(8)).await.unwrap();
        let fifth = other.request_remote_mr(layout(8)).await.unwrap();
        let reason = refusal(&other, 8).await;
        assert!(
            reason.contains("at most 3 regions on one connection"),
            "{reason}"
        );
        drop((second, third, fourth, fifth));
        let released = || (device.granted_memory(host) == GrantedMemory::default()).then_some(());
        eventually(released).await;

        // The end of a connection releases the memory that its peer has held.
        let kept = client.request_remote_mr(layout(1000)).await.unwrap();
        drop((client, server));
        eventually(released).await;
        // The memory is back in the pool, although the peer has not returned it.
        eventually(|| (device.pool_statistics().in_use == 0).then_some(())).await;
        drop(kept);
        other.request_remote_mr(layout(1000)).await.unwrap();
    });
}

#[test]
fn access_to_requested_memory_ends_at_its_time_limit() {
    run(async {
        // Long enough for the writes below.
        let limit = Duration::from_secs(2);
        let (device, mut listener) = owner(|builder| builder.remote_memory_time(limit)).await;
        let (client, server) = join(&mut listener).await;
        let mut regions = Vec::new();
        for _ in 0..3 {
            regions.push(client.request_remote_mr(layout(64)).await.unwrap());
        }
        let token = regions[0].token();
        let local = pattern(&client, 64, 1);
        // This region is released before its time limit, which then has no effect.
        drop(regions.pop());
        for region in &mut regions {
            client.write(&local, region).await.unwrap();
        }
        for region in &mut regions {
            eventually(|| region.has_ended().then_some(())).await;
            let late = client.write(&local, region).await;
            assert!(matches!(late, Err(Error::LeaseEnded)), "{late:?}");
        }
        let host = server.peer_address().ip();
        eventually(|| (device.granted_memory(host).regions == 0).then_some(())).await;
        assert_eq!(held(server.granted_memory()), (0, 0));
        // The connection remains open, and memory can be requested again.
        regions.clear();
        let mut region = client.request_remote_mr(layout(64)).await.unwrap();
        client.write(&local, &mut region).await.unwrap();
        // A peer that ignores the end is refused by the device.
        let late = client.write(&local, &mut RemoteMr::from_token(token)).await;
        match late {
            Err(Error::Work(error)) => assert_eq!(error.status, WorkStatus::RemoteAccess),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn expired_regions_count_until_the_peer_has_released_them() {
    run(async {
        let limit = Duration::from_millis(50);
        let configure = |builder: RdmaBuilder| {
            let builder = builder.remote_memory_time(limit);
            builder.remote_region_limit(2)
        };
        let (_device, mut listener) = owner(configure).await;
        let (client, server) = join(&mut listener).await;
        let request = || client.request_remote_mr(layout(64));
        let regions = [request().await.unwrap(), request().await.unwrap()];
        for region in &regions {
            eventually(|| region.has_ended().then_some(())).await;
        }
        assert_eq!(held(server.granted_memory()), (0, 0));
        let reason = refusal(&client, 64).await;
        assert!(reason.contains("at most 2 regions"), "{reason}");
        drop(regions);
        while let Err(error) = request().await {
            // The release may arrive after the request.
            assert!(matches!(error, Error::Refused { .. }), "{error}");
        }
    });
}

#[test]
fn by_default_one_host_gets_a_limited_amount_on_all_its_connections() {
    run(async {
        let (_device, mut listener) = owner(|builder| builder).await;
        // Counts with its alignment, 256 MiB, but uses little memory.
        let aligned = Layout::from_size_align(64, 256 << 20).unwrap();
        let mut held = Vec::new();
        for _ in 0..4 {
            let (client, server) = join(&mut listener).await;
            let region = client.request_remote_mr(aligned).await.unwrap();
            held.push((region, client, server));
        }
        let (client, _server) = join(&mut listener).await;
        let reason = refusal(&client, 8).await;
        let limit = format!("at most {} bytes, on all connections", 1 << 30);
        assert!(reason.contains(&limit), "{reason}");
        let (other, other_server) = join_from_other_host(&mut listener).await;
        check(&other, &other_server).await;
    });
}

#[test]
fn peers_that_request_all_memory_of_a_limited_pool_leave_a_share_to_its_owner() {
    run(async {
        let limit = 1 << 20;
        let options = PoolOptions::default().limit(limit);
        let device = RdmaDevice::with_pool(&context(), &options).unwrap();
        let builder = builder().on(&device).peer_memory_limit(limit / 2);
        let mut listener = builder.bind("127.0.0.1:0").await.unwrap();
        let mut greedy = Vec::new();
        for _ in 0..16 {
            greedy.push(join(&mut listener).await);
        }
        // Small regions use more memory than their bytes.
        let small = Layout::from_size_align(2049, 1).unwrap();
        let (mut held, mut reasons) = (Vec::new(), Vec::new());
        for (client, _) in &greedy {
            loop {
                match client.request_remote_mr(layout(48 << 10)).await {
                    Ok(region) => held.push(region),
                    Err(error) => break reasons.push(error.to_string()),
                }
            }
        }
        let expected = format!("at most {} bytes, on all connections", limit / 2);
        for reason in &reasons {
            assert!(reason.contains(&expected), "{reason}");
        }
        assert_eq!(reasons.len(), greedy.len());

        // Another host gets memory, until all peers together have three quarters of the limit.
        let (other, other_server) = join_from_other_host(&mut listener).await;
        check(&other, &other_server).await;
        let reason = loop {
            match other.request_remote_mr(small).await {
                Ok(region) => held.push(region),
                Err(error) => break error.to_string(),
            }
        };
        let expected = format!("at most {} bytes to all peers together", limit / 4 * 3);
        assert!(reason.contains(&expected), "{reason}");

        // The owner allocates the rest. Then the limit of the pool itself refuses a peer.
        let in_use = device.pool_statistics().in_use;
        assert!(in_use <= limit / 4 * 3, "{in_use} bytes");
        let mut own = Vec::new();
        while let Ok(region) = device.alloc_local_mr(layout(16 << 10)) {
            own.push(region);
        }
        assert!(own.len() >= limit / 4 / (16 << 10), "{} regions", own.len());
        held.clear();
        eventually(|| (device.pool_statistics().in_use == own.len() * (16 << 10)).then_some(()))
            .await;
        while let Ok(region) = device.alloc_local_mr(layout(16 << 10)) {
            own.push(region);
        }
        let reason = refusal(&other, 64).await;
        let expected = format!("registered memory has reached the limit of {limit} bytes");
        assert!(reason.contains(&expected), "{reason}");
        own.clear();
        let (client, server) = &greedy[0];
        check(client, server).await;
    });
}

#[test]
fn returned_memory_counts_until_the_owner_has_received_it() {
    run(async {
        let configure = |builder: RdmaBuilder| builder.peer_memory_limit(1000);
        let (device, mut listener) = owner(configure).await;
        let (client, server) = join(&mut listener).await;
        let host = server.peer_address().ip();
        for returned in 1..=2 {
            let region = client.request_remote_mr(layout(500)).await.unwrap();
            client.send_remote_mr(region).await.unwrap();
            eventually(|| (server.granted_memory().regions == 0).then_some(())).await;
            assert_eq!(
                held(device.granted_memory(host)),
                (500 * returned, returned)
            );
        }
        let reason = refusal(&client, 8).await;
        assert!(reason.contains("at most 1000 bytes, on all"), "{reason}");
        server.receive_local_mr().await.unwrap();
        client.request_remote_mr(layout(500)).await.unwrap();
    });
}

#[test]
fn regions_that_the_owner_has_not_received_count_towards_the_limit_of_regions() {
    run(async {
        let (_device, mut listener) = owner(|builder| builder.remote_region_limit(2)).await;
        let (client, server) = join(&mut listener).await;
        for _ in 0..2 {
            let region = client.request_remote_mr(layout(8)).await.unwrap();
            client.send_remote_mr(region).await.unwrap();
        }
        let reason = refusal(&client, 8).await;
        assert!(reason.contains("at most 2 regions"), "{reason}");
        server.receive_local_mr().await.unwrap();
        client.request_remote_mr(layout(8)).await.unwrap();
    });
}

#[test]
fn bytes_that_the_owner_has_not_received_count_towards_the_limit_of_the_connection() {
    run(async {
        let (_device, mut listener) = owner(|builder| builder.remote_memory_limit(1000)).await;
        let (client, server) = join(&mut listener).await;
        for _ in 0..2 {
            let region = client.request_remote_mr(layout(500)).await.unwrap();
            client.send_remote_mr(region).await.unwrap();
        }
        let reason = refusal(&client, 8).await;
        assert!(reason.contains("at most 1000 bytes"), "{reason}");
        server.receive_local_mr().await.unwrap();
        client.request_remote_mr(layout(500)).await.unwrap();
    });
}

#[test]
fn returned_memory_that_the_owner_had_offered_does_not_count_towards_the_limit_of_regions() {
    run(async {
        let (_device, mut listener) = owner(|builder| builder.remote_region_limit(1)).await;
        let (client, server) = join(&mut listener).await;
        let offered = server.alloc_local_mr(layout(8)).unwrap();
        let (sent, remote) =
            tokio::join!(server.send_local_mr(offered), client.receive_remote_mr());
        sent.unwrap();
        client.send_remote_mr(remote.unwrap()).await.unwrap();
        client.request_remote_mr(layout(8)).await.unwrap();
        server.receive_local_mr().await.unwrap();
    });
}
