//! Tests of the GIDs for the addresses of the host.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use super::namespace::{add_interface, ip, is_inside};
use super::{
    Inbox, Network, TIMEOUT, address, collect, number, path, port, receive, send, try_open,
};
use crate::config::Config;
use crate::proto::{Arrival, Mtu, Path};

const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 81, 0, 1));
const V6: Ipv6Addr = Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, 0, 1);

fn v4() -> Ipv6Addr {
    match V4 {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn config() -> Config {
    Config {
        port: port(),
        ..Config::default()
    }
}

/// Returns the GIDs of a network except those of its loopback address, which must be the first.
fn of_host(network: &Network) -> Vec<(u8, Ipv6Addr)> {
    let all: Vec<_> = network.gids().collect();
    let (index, first) = all[0];
    assert!(index == 0 && first.to_ipv4_mapped().unwrap().is_loopback());
    assert!(all[1].0 == 1 && address::address_in_gid(all[1].1).is_some());
    all[2..].to_vec()
}

/// Sends a packet on `path` until it has arrived, because the kernel may lose packets while an
/// interface is coming up. Returns its arrival.
fn exchange(from: &Network, path: &Path, to: &Network) -> Arrival {
    let (mut inbox, end) = (Inbox::new(), Instant::now() + TIMEOUT);
    loop {
        send(from, path, number(to), 0..1);
        let (mut got, next) = (Vec::new(), Instant::now() + Duration::from_millis(100));
        while Instant::now() < next {
            collect(to, &mut inbox, &mut got);
            if let Some(got) = got.iter().find(|got| got.arrival.local == path.source) {
                return got.arrival;
            }
        }
        assert!(Instant::now() < end, "no packet comes on {path:?}");
    }
}

#[test]
fn the_loopback_address_precedes_the_addresses_of_the_host() {
    if !is_inside("net::tests::host::the_loopback_address_precedes_the_addresses_of_the_host") {
        return;
    }
    add_interface();
    let network = try_open(&config()).unwrap();
    assert_eq!(of_host(&network), [(2, v4()), (3, V6)]);
    assert!(network.interface(2) != 0 && network.interface(2) != network.interface(0));
    // The port has the MTU of the loopback interface, and the others that of Ethernet.
    assert_eq!(network.mtu(), Mtu::Mtu4096);
    let mtus = [0, 1, 2, 3].map(|gid| network.mtu_of(gid));
    assert_eq!(mtus[..2], [Mtu::Mtu4096; 2]);
    assert_eq!(mtus[2..], [Mtu::Mtu1024; 2]);
    let down = Config {
        interfaces: Some(vec!["veth1".to_owned()]),
        ..config()
    };
    assert_eq!(of_host(&try_open(&down).unwrap()), []);
    let none = Config {
        interfaces: Some(vec!["veth7".to_owned()]),
        ..config()
    };
    let error = try_open(&none).unwrap_err().to_string();
    assert!(
        error.contains("SOFTROCE_NETDEV") && error.contains("veth7"),
        "{error}"
    );
}

#[test]
fn an_address_gets_a_socket_at_its_first_use() {
    if !is_inside("net::tests::host::an_address_gets_a_socket_at_its_first_use") {
        return;
    }
    add_interface();
    let config = config();
    let [a, b] = [(); 2].map(|()| try_open(&config).unwrap());
    assert_eq!([a.slot(), b.slot()], [0, 1]);
    let sockets = |network: &Network| network.endpoints().sockets().count();
    assert_eq!([&a, &b].map(sockets), [1, 1]);
    for (gid, address) in [(2, v4()), (3, V6)] {
        let to_b = path(gid, address);
        assert!(a.can_send_on(&to_b));
        a.activate(gid);
        b.activate(gid);
        b.activate(gid);
        assert_eq!([&a, &b].map(sockets), [usize::from(gid); 2]);
        let arrival = exchange(&a, &to_b, &b);
        assert_eq!((arrival.local, arrival.source), (gid, address));
        assert_eq!(arrival.slot, Some(0));
    }
    let c = try_open(&config).unwrap();
    c.receive_everywhere();
    assert_eq!((c.slot(), sockets(&c)), (2, 3));
    for gid in [0, 2, 3] {
        let to_c = path(gid, c.gid(gid.into()).unwrap());
        assert_eq!(exchange(&a, &to_c, &c).local, gid);
    }
}

#[test]
fn a_port_in_use_affects_only_its_address() {
    if !is_inside("net::tests::host::a_port_in_use_affects_only_its_address") {
        return;
    }
    add_interface();
    // The port range has two ports.
    let config = Config {
        port: 65_400,
        ..config()
    };
    let first = UdpSocket::bind((V4, 65_400)).unwrap();
    let network = try_open(&config).unwrap();
    assert_eq!((network.slot(), of_host(&network).len()), (1, 2));
    drop(network);
    let second = UdpSocket::bind((V4, 65_500)).unwrap();
    let network = try_open(&config).unwrap();
    assert_eq!((network.slot(), of_host(&network)), (0, vec![(2, V6)]));
    network.activate(2);
    assert_eq!(exchange(&network, &path(2, V6), &network).source, V6);
    // Without any port, the loopback address stays.
    let others = try_open(&config).unwrap();
    let last = try_open(&config).unwrap();
    assert_eq!((others.slot(), of_host(&others).len()), (1, 1));
    assert_eq!((last.slot(), of_host(&last).len()), (0, 0));
    send(
        &last,
        &path(0, others.gid(0).unwrap()),
        number(&others),
        0..1,
    );
    assert_eq!(receive(&others, 1).len(), 1);
    drop((first, second));
}

#[test]
fn a_process_more_than_an_address_has_ports_reaches_only_its_own_host() {
    if !is_inside(
        "net::tests::host::a_process_more_than_an_address_has_ports_reaches_only_its_own_host",
    ) {
        return;
    }
    add_interface();
    let config = config();
    let all: Vec<Network> = (0..address::PORT_SLOTS)
        .map(|_| try_open(&config).unwrap())
        .collect();
    for (slot, network) in (0..address::PORT_SLOTS).zip(&all) {
        assert_eq!((network.slot(), of_host(network).len()), (slot, 2));
    }
    let more = try_open(&config).unwrap();
    assert_eq!((more.slot(), of_host(&more).len()), (0, 0));
    // A process that may only use this address cannot open the device.
    let only = Config {
        addresses: vec![V4],
        ..config.clone()
    };
    let error = try_open(&only).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let error = error.to_string();
    assert!(error.contains("at most 255 processes"), "{error}");
    // A port of a process that has ended is free.
    let mut all = all;
    drop(all.remove(7));
    let next = try_open(&config).unwrap();
    assert_eq!((next.slot(), of_host(&next).len()), (7, 2));
}

#[test]
fn the_gid_table_follows_changes_of_the_host_addresses() {
    if !is_inside("net::tests::host::the_gid_table_follows_changes_of_the_host_addresses") {
        return;
    }
    ip("link set lo up");
    let network = try_open(&config()).unwrap();
    assert_eq!(of_host(&network), []);
    let until = |expected: &[(u8, Ipv6Addr)]| {
        let end = Instant::now() + TIMEOUT;
        while of_host(&network) != expected {
            assert!(Instant::now() < end, "{:?}", of_host(&network));
            network.update_from_host();
        }
    };
    add_interface();
    until(&[(2, v4()), (3, V6)]);
    ip("address delete 10.81.0.1/24 dev veth0");
    until(&[(3, V6)]);
    assert!(network.gid(2).is_none());
    // Another address gets an index of its own, and the first one its old index.
    ip("address add 10.81.0.9/24 dev veth0");
    let other = "::ffff:10.81.0.9".parse().unwrap();
    until(&[(3, V6), (4, other)]);
    ip("address add 10.81.0.1/24 dev veth0");
    until(&[(2, v4()), (3, V6), (4, other)]);
    ip("link set veth0 down");
    until(&[]);
    assert!(!network.update_from_host());
}

#[test]
fn a_socket_that_cannot_be_opened_without_its_address_is_opened_later() {
    let test = "a_socket_that_cannot_be_opened_without_its_address_is_opened_later";
    if !is_inside(&format!("net::tests::host::{test}")) {
        return;
    }
    add_interface();
    let network = try_open(&config()).unwrap();
    assert_eq!(network.gid(2), Some(v4()));
    ip("address delete 10.81.0.1/24 dev veth0");
    let error = network.open_socket(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    ip("address add 10.81.0.1/24 dev veth0");
    assert!(
        network.open_socket(2).unwrap(),
        "the socket is not open yet"
    );
    assert!(!network.open_socket(2).unwrap(), "the socket is open");
}

#[test]
fn the_socket_of_a_returned_address_is_opened_for_the_queue_pairs_that_use_it() {
    let test = "the_socket_of_a_returned_address_is_opened_for_the_queue_pairs_that_use_it";
    if !is_inside(&format!("net::tests::host::{test}")) {
        return;
    }
    add_interface();
    let config = config();
    let [a, b] = [(); 2].map(|()| try_open(&config).unwrap());
    ip("address delete 10.81.0.1/24 dev veth0");
    a.activate(2);
    b.activate(2);
    assert_eq!((a.open_addresses(), b.open_addresses()), (1, 1));
    ip("address add 10.81.0.1/24 dev veth0");
    let end = Instant::now() + TIMEOUT;
    while (a.open_addresses(), b.open_addresses()) != (2, 2) {
        assert!(Instant::now() < end, "a socket is not opened");
        a.update_from_host();
        b.update_from_host();
    }
    assert_eq!(exchange(&a, &path(2, v4()), &b).source, v4());
}

#[test]
fn a_group_is_also_joined_on_interfaces_that_the_host_gets_later() {
    let test = "a_group_is_also_joined_on_interfaces_that_the_host_gets_later";
    if !is_inside(&format!("net::tests::host::{test}")) {
        return;
    }
    ip("link set lo up");
    let network = try_open(&config()).unwrap();
    let group: Ipv6Addr = "ff0e::ffff:239.192.7.1".parse().unwrap();
    let sockets = || network.endpoints().sockets().count();
    network.join(group).unwrap();
    let before = sockets();
    add_interface();
    let end = Instant::now() + TIMEOUT;
    while sockets() == before {
        assert!(Instant::now() < end, "the group is not joined");
        network.update_from_host();
    }
    network.leave(group);
    assert_eq!(sockets(), 1);
}

#[test]
fn a_change_of_routes_ends_the_trials_of_bursts() {
    if !is_inside("net::tests::host::a_change_of_routes_ends_the_trials_of_bursts") {
        return;
    }
    add_interface();
    let network = try_open(&config()).unwrap();
    while network.update_from_host() {}
    let (peer, now) = (IpAddr::from([10, 99, 0, 1]), network.timers.now());
    let first = network.trials.begin(V4, peer, now).unwrap();
    network.trials.record_answer(V4, peer, first + 1, now);
    assert!(network.trials.is_proven(V4, peer));
    ip("route add 10.99.0.0/24 dev veth0");
    let end = Instant::now() + TIMEOUT;
    while network.trials.is_proven(V4, peer) {
        assert!(Instant::now() < end, "the trial is still valid");
        network.update_from_host();
    }
}
