//! Checks the limits of the memory that peers request and hold, and its statistics.

mod common;

use std::time::Duration;

use common::{builder, context, eventually, layout, pattern, run};
use rdma_async::{Error, GrantedMemory, Rdma, RdmaBuilder, RdmaDevice, RdmaListener, RemoteMr};
use rdma_core::WorkStatus;

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

/// Requests memory that the peer refuses, and returns the reason.
async fn refusal(rdma: &Rdma, bytes: usize) -> String {
    match rdma.request_remote_mr(layout(bytes)).await {
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
