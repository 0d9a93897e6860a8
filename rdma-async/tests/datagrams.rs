//! Checks datagram sockets: many peers, groups, limits, and futures that are dropped.

mod common;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use common::{builder, bytes, context, layout, poll_and_drop, run};
use rdma_async::{
    Datagram, DatagramAddress, DatagramPeer, DatagramSocket, Error, LocalMr, LocalMrReadAccess,
    LocalMrWriteAccess, RdmaBuilder, RdmaDevice,
};

fn device() -> RdmaDevice {
    RdmaDevice::new(&context()).expect("a device")
}

fn socket(device: &RdmaDevice) -> DatagramSocket {
    socket_with(device, |builder| builder)
}

fn socket_with(
    device: &RdmaDevice,
    configure: impl FnOnce(RdmaBuilder) -> RdmaBuilder,
) -> DatagramSocket {
    let socket = configure(builder().on(device)).datagrams();
    socket.expect("a socket")
}

fn message(device: &RdmaDevice, len: usize, seed: u8) -> LocalMr {
    let mut region = device.alloc_local_mr(layout(len)).expect("memory");
    region.as_mut_slice().copy_from_slice(&bytes(len, seed));
    region
}

/// Sends a datagram repeatedly until it arrives, because a network may lose datagrams.
async fn deliver(
    from: &DatagramSocket,
    message: &LocalMr,
    peer: &DatagramPeer,
    to: &DatagramSocket,
) -> Datagram {
    loop {
        from.send_to(message, peer).await.expect("sending");
        let limit = std::time::Duration::from_secs(2);
        if let Ok(datagram) = tokio::time::timeout(limit, to.receive_from()).await {
            return datagram.expect("receiving");
        }
    }
}

#[test]
fn one_socket_exchanges_datagrams_with_many_peers() {
    run(async {
        let device = device();
        let hub = socket(&device);
        let peers: Vec<_> = (0..16).map(|_| socket(&device)).collect();
        let to_hub = hub.address().to_string().parse().unwrap();
        for (seed, peer) in peers.iter().enumerate() {
            let len = [1, 100, hub.max_len()][seed % 3];
            let sent = message(&device, len, seed as u8);
            let datagram = deliver(peer, &sent, &peer.peer(&to_hub).unwrap(), &hub).await;
            assert_eq!(datagram.region.as_slice(), bytes(len, seed as u8));
            assert_eq!(datagram.source, peer.address());
            // Answers to the source address of the datagram.
            let back = hub.peer(&datagram.source).unwrap();
            let datagram = deliver(&hub, &datagram.region, &back, peer).await;
            assert_eq!(datagram.region.as_slice(), bytes(len, seed as u8));
            assert_eq!(datagram.source, hub.address());
        }
    });
}

#[test]
fn tasks_share_a_socket() {
    const EACH: u8 = 50;
    run(async {
        let device = device();
        // Receives for all datagrams, so that no datagram is lost within this host.
        let all = socket_with(&device, |builder| builder.receive_depth(1024));
        let all = Arc::new(all);
        let senders: Vec<_> = (0..4_u8)
            .map(|number| {
                let (device, address) = (device.clone(), all.address());
                tokio::spawn(async move {
                    let socket = Arc::new(socket_with(&device, |builder| builder.send_depth(8)));
                    let peer = socket.peer(&address).unwrap();
                    let sends = (0..EACH).map(async |seed| {
                        let message = message(&device, 2, seed);
                        socket
                            .send_with_immediate_to(&message, &peer, u32::from(number))
                            .await
                            .unwrap();
                    });
                    // The number of concurrent sends exceeds the capacity of the send queue.
                    futures_util::future::join_all(sends).await;
                    socket
                })
            })
            .collect();
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let all = Arc::clone(&all);
                tokio::spawn(async move {
                    let mut seen = Vec::new();
                    for _ in 0..2 * EACH {
                        let datagram = all.receive_from().await.unwrap();
                        let bytes = datagram.region.as_slice().to_vec();
                        seen.push((datagram.immediate.unwrap(), bytes));
                    }
                    seen
                })
            })
            .collect();
        for sender in senders {
            sender.await.unwrap();
        }
        let mut seen = HashSet::new();
        for receiver in receivers {
            seen.extend(receiver.await.unwrap());
        }
        assert_eq!(seen.len(), 4 * usize::from(EACH));
    });
}

#[test]
fn dropped_futures_lose_no_datagram_and_free_their_memory() {
    run(async {
        let device = device();
        let (left, right) = (socket(&device), socket(&device));
        let peer = left.peer(&right.address()).unwrap();
        let mut region = message(&device, 64, 5);
        drop(poll_and_drop(left.send_to(&region, &peer)));
        // The first poll has posted the datagram to the device.
        loop {
            match poll_and_drop(right.receive_from()) {
                Some(datagram) => {
                    assert_eq!(datagram.unwrap().region.as_slice(), bytes(64, 5));
                    break;
                }
                None => tokio::task::yield_now().await,
            }
        }
        // Another operation handles the completion of the first, which frees the memory.
        deliver(&left, &message(&device, 8, 1), &peer, &right).await;
        region.try_as_mut_slice().unwrap();
    });
}

#[test]
fn datagrams_above_the_mtu_are_errors_and_a_full_socket_drops_further_datagrams() {
    run(async {
        let device = device();
        let (left, right) = (
            socket(&device),
            socket_with(&device, |builder| builder.receive_depth(8)),
        );
        let peer = left.peer(&right.address()).unwrap();
        let long = message(&device, left.max_len() + 1, 0);
        let outcome = left.send_to(&long, &peer).await;
        assert!(
            matches!(outcome, Err(Error::InvalidArgument { .. })),
            "{outcome:?}"
        );
        for seed in 0..100 {
            left.send_to(&message(&device, 16, seed), &peer)
                .await
                .unwrap();
        }
        let mut arrived = Vec::new();
        let limit = std::time::Duration::from_millis(300);
        while let Ok(datagram) = tokio::time::timeout(limit, right.receive_from()).await {
            arrived.push(datagram.unwrap().region.as_slice().to_vec());
        }
        // The datagrams that were sent before the application received any.
        let first: Vec<_> = (0..arrived.len() as u8)
            .map(|seed| bytes(16, seed))
            .collect();
        assert!(arrived == first && arrived.len() <= 8, "{arrived:?}");
        // The socket receives again.
        let datagram = deliver(&left, &message(&device, 16, 200), &peer, &right).await;
        assert_eq!(datagram.region.as_slice(), bytes(16, 200));
    });
}

#[test]
fn datagrams_with_a_wrong_key_or_queue_pair_are_dropped() {
    run(async {
        let device = device();
        let (left, right) = (socket(&device), socket(&device));
        let to = |change: fn(&mut DatagramAddress)| {
            let mut address = right.address();
            change(&mut address);
            left.peer(&address).unwrap()
        };
        let forged = [
            to(|address| address.queue_key ^= 1),
            to(|address| address.queue_pair ^= 0x0012_3450),
        ];
        let message = message(&device, 8, 1);
        for peer in &forged {
            left.send_to(&message, peer).await.unwrap();
        }
        let right_way = to(|_| {});
        let seen = deliver(&left, &message, &right_way, &right).await;
        assert_eq!(seen.region.as_slice(), bytes(8, 1));
        assert!(poll_and_drop(right.receive_from()).is_none());
    });
}

#[test]
fn group_members_receive_datagrams_until_they_leave() {
    run(async {
        let device = device();
        let group = IpAddr::V4(Ipv4Addr::new(239, 77, 2, 1));
        let members = [socket(&device), socket(&device)];
        let sender = socket(&device);
        let mut memberships: Vec<_> = members
            .iter()
            .map(|member| member.join(group).unwrap())
            .collect();
        let peer = sender.group(group).unwrap();
        sender
            .send_to(&message(&device, 32, 3), &peer)
            .await
            .unwrap();
        for member in &members {
            let datagram = member.receive_from().await.unwrap();
            assert_eq!(datagram.region.as_slice(), bytes(32, 3));
            assert_eq!(datagram.source, sender.address());
        }
        assert_eq!(memberships.pop().unwrap().group(), group);
        sender
            .send_to(&message(&device, 32, 4), &peer)
            .await
            .unwrap();
        let datagram = members[0].receive_from().await.unwrap();
        assert_eq!(datagram.region.as_slice(), bytes(32, 4));
        // This datagram arrives after any datagram that the other socket would have received.
        let direct = sender.peer(&members[1].address()).unwrap();
        let datagram = deliver(&sender, &message(&device, 8, 5), &direct, &members[1]).await;
        assert_eq!(datagram.region.as_slice(), bytes(8, 5));
        let none = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        assert!(sender.group(none).is_err() && sender.join(none).is_err());
    });
}
