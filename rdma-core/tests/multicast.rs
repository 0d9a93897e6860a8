//! Datagrams to multicast groups.

mod common;

use std::net::{Ipv4Addr, UdpSocket};

use common::{bytes, pattern, succeed};
use rdma_core::address::{AddressVector, DatagramHeader, Destination, multicast_gid};
use rdma_core::{
    Buffer, DatagramOptions, Error, Gid, ProtectionDomain, QueuePair, ReceiveQueue, SendRequest,
    Transport, WorkCompletion,
};

const HEADER: usize = DatagramHeader::LEN;

const QKEY: u32 = 0x2468_ace0;

fn domain() -> ProtectionDomain {
    common::context().protection_domain().unwrap()
}

/// Returns a datagram queue pair.
fn datagrams(domain: &ProtectionDomain) -> QueuePair {
    let prepared = domain.queue_pair().transport(Transport::Datagram);
    let prepared = prepared.build().unwrap();
    prepared.activate(&DatagramOptions::new(QKEY)).unwrap()
}

/// Returns the address of a group that only one test uses.
fn group(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(239, 77, 1, last)
}

fn gid(last: u8) -> Gid {
    multicast_gid(group(last).into()).unwrap()
}

/// Makes the system receive packets of the group as long as the returned socket exists, which is
/// the network's part of a membership.
fn joined(queue_pair: &QueuePair, last: u8) -> UdpSocket {
    let interface = queue_pair.address().gid.to_ipv4();
    let interface = interface.expect("an address of IPv4");
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.join_multicast_v4(&group(last), &interface).unwrap();
    socket
}

/// Sends a datagram to a group.
fn send(domain: &ProtectionDomain, from: &QueuePair, last: u8, seed: u8) {
    let vector = AddressVector::new(from.address(), gid(last), 0);
    let to = Destination {
        handle: domain.address_handle(&vector).unwrap(),
        queue_pair: Destination::EVERY_MEMBER,
        qkey: QKEY,
    };
    let mut sends = from.send_queue();
    let request = SendRequest::send(pattern(domain, 8, seed)).to(&to);
    sends.post(request).unwrap();
    let sent = succeed(from.send_completions());
    assert_eq!(sends.complete(&sent).count(), 1);
}

/// Returns a queue pair with posted receives for four messages.
fn member(domain: &ProtectionDomain) -> (QueuePair, ReceiveQueue<Buffer>) {
    let queue_pair = datagrams(domain);
    let mut receives = queue_pair.receive_queue();
    for _ in 0..4 {
        receives.post(domain.allocate(HEADER + 8).unwrap()).unwrap();
    }
    (queue_pair, receives)
}

/// Waits for the next message of a member, and returns it.
fn receive(member: &mut (QueuePair, ReceiveQueue<Buffer>)) -> Buffer {
    let received = succeed(member.0.receive_completions());
    member.1.complete(&received).unwrap()
}

#[test]
fn every_member_gets_a_copy_of_a_datagram_to_the_group() {
    let domain = domain();
    let sender = datagrams(&domain);
    let (mut one, mut other) = (member(&domain), member(&domain));
    let mut outsider = member(&domain);
    let _joined = joined(&sender, 3);
    let _one = one.0.attach_to_group(gid(3), 0).unwrap();
    let _other = other.0.attach_to_group(gid(3), 0).unwrap();
    send(&domain, &sender, 3, 1);
    for member in [&mut one, &mut other] {
        let memory = receive(member);
        assert_eq!(memory[HEADER..], bytes(8, 1));
        let header = DatagramHeader::parse(&memory).unwrap();
        assert_eq!(header.destination(), gid(3));
        assert_eq!(header.source(), sender.address().gid);
    }

    let _outsider = outsider.0.attach_to_group(gid(3), 0).unwrap();
    send(&domain, &sender, 3, 2);
    assert_eq!(
        receive(&mut outsider)[HEADER..],
        bytes(8, 2),
        "the first was not for it"
    );
    assert_eq!(receive(&mut one)[HEADER..], bytes(8, 2));
}

#[test]
fn a_membership_ends_with_the_last_of_its_handles() {
    let domain = domain();
    let sender = datagrams(&domain);
    let (mut left, mut stays) = (member(&domain), member(&domain));
    let _joined = joined(&sender, 4);
    let first = left.0.attach_to_group(gid(4), 0).unwrap();
    let second = left.0.attach_to_group(gid(4), 0).unwrap();
    let _stays = stays.0.attach_to_group(gid(4), 0).unwrap();
    drop(first);
    send(&domain, &sender, 4, 1);
    assert_eq!(
        receive(&mut left)[HEADER..],
        bytes(8, 1),
        "one copy, though attached twice"
    );
    assert_eq!(receive(&mut stays)[HEADER..], bytes(8, 1));

    second.leave().unwrap();
    send(&domain, &sender, 4, 2);
    assert_eq!(receive(&mut stays)[HEADER..], bytes(8, 2));
    // A second message, so that the device has certainly finished processing the first.
    send(&domain, &sender, 4, 3);
    assert_eq!(receive(&mut stays)[HEADER..], bytes(8, 3));
    let mut room = [WorkCompletion::default()];
    assert!(
        left.0
            .receive_completions()
            .poll(&mut room)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_membership_keeps_its_queue_pair() {
    let domain = domain();
    let queue_pair = datagrams(&domain);
    let membership = queue_pair.attach_to_group(gid(5), 0).unwrap();
    assert_eq!((membership.gid(), membership.lid()), (gid(5), 0));
    drop(queue_pair);
    membership.leave().unwrap();
}

#[test]
fn threads_attach_and_detach_one_queue_pair() {
    let domain = domain();
    let queue_pair = datagrams(&domain);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..50 {
                    drop(queue_pair.attach_to_group(gid(6), 0).unwrap());
                }
            });
        }
    });
    // The device confirms the memberships: it would refuse to end one that does not exist.
    queue_pair
        .attach_to_group(gid(6), 0)
        .unwrap()
        .leave()
        .unwrap();
}

#[test]
fn only_datagram_queue_pairs_are_members_and_only_of_groups() {
    let pair = common::Pair::new();
    let error = pair.left.attach_to_group(gid(2), 0).unwrap_err();
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
