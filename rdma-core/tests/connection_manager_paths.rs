//! Effects of options and parameters on the queue pairs of a connection, and addresses other than
//! IPv4.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::net::{SocketAddr, SocketAddrV6};
use std::thread;

use manager::{MAX_WAIT, connector, listener};
use rdma_core::cm::{ConnectionIdOption, ConnectionParameters, Listener};
use rdma_core::device::GidType;
use rdma_core::{AccessFlags, Context, QueuePairBuilder};

fn plain(context: &Context) -> rdma_core::Result<QueuePairBuilder> {
    Ok(context.protection_domain()?.queue_pair())
}

#[test]
fn options_and_parameters_reach_the_queue_pairs() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = listener(address);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
            let builder = plain(&incoming.context().unwrap()).unwrap();
            let builder = builder.access(AccessFlags::REMOTE_READ).incoming_reads(4);
            let parameters = ConnectionParameters::default()
                .min_rnr_timer(5)
                .rnr_retries(2);
            incoming.accept(builder, &parameters).unwrap()
        });
        let client = connector(there)
            .option(ConnectionIdOption::TypeOfService(0x68))
            .option(ConnectionIdOption::AckTimeoutExponent(16))
            .parameters(ConnectionParameters::default().retries(4).rnr_retries(6))
            .connect(|context| Ok(plain(context)?.outgoing_reads(8).incoming_reads(1)))
            .unwrap();
        let server = server.join().unwrap();
        let here = client.queue_pair().attributes().unwrap();
        let there = server.queue_pair().attributes().unwrap();
        assert_eq!(here.ack_timeout_exponent(), 16);
        assert_eq!((here.retries(), there.retries()), (4, 4));
        // Each side uses the retries and the delay that the other side has sent.
        assert_eq!((here.rnr_retries(), there.rnr_retries()), (2, 6));
        assert_eq!((here.min_rnr_timer(), there.min_rnr_timer()), (12, 5));
        // The values are powers of two, because devices round up to these.
        assert_eq!((here.outgoing_reads(), there.incoming_reads()), (4, 4));
        assert_eq!((here.incoming_reads(), there.outgoing_reads()), (1, 1));
        assert_eq!(there.access(), AccessFlags::REMOTE_READ);
        assert_eq!(here.path_mtu(), there.path_mtu());
        // The kernel gives the listening side the traffic class of the request.
        assert_eq!(here.address().traffic_class, 0x68);
        assert_eq!(there.address().traffic_class, 0x68);
        assert_eq!(here.address().gid.unwrap().to_ip(), address);
        assert_eq!(here.destination(), server.queue_pair().number());
        assert_eq!(here.send_sequence(), there.receive_sequence());
    });
}

#[test]
fn ipv6_is_an_address_like_any_other() {
    if manager::address().is_none() {
        return;
    }
    let context = common::context();
    let gids = context.gids().unwrap();
    let of_ipv6 = gids.iter().find(|entry| {
        entry.kind == GidType::RoceV2 && entry.gid.to_ipv4().is_none() && entry.interface > 0
    });
    let Some(entry) = of_ipv6 else {
        println!("{} has no IPv6 address", context.name());
        return;
    };
    let place = |port| {
        let scope = if entry.gid.is_link_local() {
            entry.interface
        } else {
            0
        };
        SocketAddr::from(SocketAddrV6::new(entry.gid.to_ipv6(), port, 0, scope))
    };
    let listener = Listener::builder(place(0));
    let listener = listener.option(ConnectionIdOption::AddressFamilyOnly(true));
    let listener = listener.timeout(MAX_WAIT).listen().unwrap();
    let port = listener.local_address().unwrap().port();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
            let builder = plain(&incoming.context().unwrap()).unwrap();
            incoming
                .accept(builder, &ConnectionParameters::default())
                .unwrap()
        });
        let client = connector(place(port))
            .source(place(0))
            .connect(plain)
            .unwrap();
        let server = server.join().unwrap();
        for end in [&client, &server] {
            assert_eq!(end.queue_pair().remote().unwrap().gid, entry.gid);
            assert_eq!(end.queue_pair().address().gid, entry.gid);
            assert!(end.id().peer_address().unwrap().is_ipv6());
        }
    });
}
