//! Datagrams to groups.

mod common;

use rdma_core::{
    DatagramOptions, Error, Gid, ProtectionDomain, QueuePair, Transport, multicast_gid,
};

fn domain() -> ProtectionDomain {
    common::context().protection_domain().unwrap()
}

/// A queue pair of datagrams.
fn datagrams(domain: &ProtectionDomain) -> QueuePair {
    let prepared = domain
        .queue_pair()
        .transport(Transport::Datagram)
        .build()
        .unwrap();
    prepared.activate(&DatagramOptions::default()).unwrap()
}

fn group(last: u8) -> Gid {
    multicast_gid([239, 77, 1, last].into()).unwrap()
}

#[test]
fn a_membership_keeps_its_queue_pair_and_ends_when_dropped() {
    let domain = domain();
    let queue_pair = datagrams(&domain);
    let first = queue_pair.attach_to_group(group(1), 0).unwrap();
    let second = queue_pair.attach_to_group(group(1), 0).unwrap();
    assert_eq!((first.gid(), first.lid()), (group(1), 0));
    drop(queue_pair);
    drop(first);
    second.leave().unwrap();
}

#[test]
fn only_datagram_queue_pairs_are_members_and_only_of_groups() {
    let pair = common::Pair::new();
    let error = pair.left.attach_to_group(group(2), 0).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");

    assert!(multicast_gid([10, 0, 0, 1].into()).is_err());
    let queue_pair = datagrams(&pair.domain);
    let nobody = Gid::from(std::net::IpAddr::from([10, 0, 0, 1]));
    let error = queue_pair.attach_to_group(nobody, 0).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Verb {
                verb: "ibv_attach_mcast",
                ..
            }
        ),
        "{error}"
    );
}
