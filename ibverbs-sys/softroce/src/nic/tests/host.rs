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
