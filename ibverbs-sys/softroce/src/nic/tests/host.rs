//! Tests of the events for changes of the host's addresses.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::ibv_event_type;
use parking_lot::Mutex;

use super::{LOST_TIMEOUT, Nic};
use crate::config::Config;
use crate::fault::Listener;
use crate::net::tests::namespace::{add_interface, ip, is_inside};

#[derive(Default)]
struct ReceivedEvents(Mutex<Vec<ibv_event_type>>);

impl Listener for ReceivedEvents {
    fn raise(&self, kind: ibv_event_type) {
        self.0.lock().push(kind);
    }
}

#[test]
fn a_change_of_the_host_is_an_event() {
    if !is_inside("nic::tests::host::a_change_of_the_host_is_an_event") {
        return;
    }
    ip("link set lo up");
    let config = Config::default();
    let nic = Nic::with(&config, Arc::default(), Arc::new(config.faults())).unwrap();
    let heard = Arc::new(ReceivedEvents::default());
    let listener: Weak<ReceivedEvents> = Arc::downgrade(&heard);
    nic.faults.subscribe(listener);
    let until = |gids: usize| {
        let end = Instant::now() + LOST_TIMEOUT;
        while nic.gids().count() != gids || heard.0.lock().is_empty() {
            assert!(Instant::now() < end);
            thread::sleep(Duration::from_millis(1));
        }
        // The last change raises its event after it is visible.
        thread::sleep(Duration::from_millis(100));
        let events = std::mem::take(&mut *heard.0.lock());
        let is_change = |kind: &ibv_event_type| *kind == ibv_event_type::IBV_EVENT_GID_CHANGE;
        assert!(events.iter().all(is_change), "{events:?}");
    };
    add_interface();
    until(4);
    ip("address delete fd81::1/64 dev veth0");
    until(3);
    assert!(nic.gid(3).is_none() && nic.link_is_up());
}

#[test]
fn the_port_is_down_while_no_configured_address_is_usable() {
    if !is_inside("nic::tests::host::the_port_is_down_while_no_configured_address_is_usable") {
        return;
    }
    add_interface();
    let config = Config {
        addresses: ["10.81.0.1", "fd81::1"]
            .map(|ip| ip.parse().unwrap())
            .into(),
        ..Config::default()
    };
    let nic = Nic::with(&config, Arc::default(), Arc::new(config.faults())).unwrap();
    let heard = Arc::new(ReceivedEvents::default());
    let listener: Weak<ReceivedEvents> = Arc::downgrade(&heard);
    nic.faults.subscribe(listener);
    let gids: Vec<_> = nic.gids().collect();
    let v6: std::net::Ipv6Addr = "fd81::1".parse().unwrap();
    // Waits until `last` has been raised, and returns the events up to then.
    let until = |last: ibv_event_type| {
        let end = Instant::now() + LOST_TIMEOUT;
        while heard.0.lock().last() != Some(&last) {
            assert!(Instant::now() < end, "{:?}", heard.0.lock());
            thread::sleep(Duration::from_millis(1));
        }
        std::mem::take(&mut *heard.0.lock())
    };
    // The other address remains.
    ip("address delete fd81::1/64 dev veth0");
    let events = until(ibv_event_type::IBV_EVENT_GID_CHANGE);
    assert_eq!(events, [ibv_event_type::IBV_EVENT_GID_CHANGE]);
    assert!(nic.link_is_up() && nic.gids().all(|(_, gid)| gid != v6));
    for (down, up) in [
        ("link set veth0 down", "link set veth0 up"),
        (
            "address delete 10.81.0.1/24 dev veth0",
            "address add 10.81.0.1/24 dev veth0",
        ),
    ] {
        ip(down);
        until(ibv_event_type::IBV_EVENT_PORT_ERR);
        assert!(!nic.link_is_up() && nic.gids().count() == 0);
        ip(up);
        until(ibv_event_type::IBV_EVENT_PORT_ACTIVE);
        assert!(nic.link_is_up());
        let expected = gids.iter().filter(|(_, gid)| *gid != v6).copied();
        assert!(nic.gids().eq(expected));
    }
    // Addresses that the configuration does not name get no GID.
    ip("address add 10.81.0.9/24 dev veth0");
    ip("address add fd81::1/64 dev veth0 nodad");
    until(ibv_event_type::IBV_EVENT_GID_CHANGE);
    assert!(nic.gids().eq(gids));
}

#[test]
fn the_port_is_down_if_the_only_interface_is_down_at_opening() {
    if !is_inside("nic::tests::host::the_port_is_down_if_the_only_interface_is_down_at_opening") {
        return;
    }
    add_interface();
    ip("link set veth0 down");
    let config = Config {
        addresses: vec!["10.81.0.1".parse().unwrap()],
        ..Config::default()
    };
    let nic = Nic::with(&config, Arc::default(), Arc::new(config.faults())).unwrap();
    assert!(!nic.link_is_up() && nic.gids().count() == 0);
    ip("link set veth0 up");
    let end = Instant::now() + LOST_TIMEOUT;
    while !nic.link_is_up() {
        assert!(Instant::now() < end, "the port stays down");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(nic.gids().count() > 0);
    // A loopback address is always usable.
    let config = Config {
        addresses: vec!["127.0.0.1".parse().unwrap()],
        ..config
    };
    ip("link set lo down");
    let nic = Nic::with(&config, Arc::default(), Arc::new(config.faults())).unwrap();
    assert!(nic.link_is_up() && nic.gids().count() > 0);
}
