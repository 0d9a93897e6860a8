//! The removal of a device that has connections.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use manager::{MAX_WAIT, connected, connection_error, listener};
use rdma_core::Context;
use rdma_core::cm::ConnectionError;
use rdma_core::device::DeviceSelector;

const DEVICE: &str = "rxe_gone";

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 78, 0, 1));

/// Returns whether no other program uses this machine: in the guest, the tests create and remove
/// devices.
fn ours_alone() -> bool {
    Path::new("/run/guest/config").exists()
}

#[track_caller]
fn run(line: &str) {
    let mut words = line.split_whitespace();
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.unwrap().success(), "{line}");
}

/// Creates a device that no other test uses.
fn make_device() {
    run("ip link add gone0 type dummy");
    run("ip link set gone0 mtu 4200 up");
    run(&format!("ip addr add {ADDRESS}/24 dev gone0"));
    run(&format!("rdma link add {DEVICE} type rxe netdev gone0"));
    let selector: DeviceSelector = format!("={DEVICE}").parse().unwrap();
    common::eventually("an address of the device", || {
        thread::sleep(Duration::from_millis(10));
        let context = Context::open_selected(&selector).ok()?;
        let mut gids = context.gids().unwrap().into_iter();
        gids.find(|entry| entry.gid.to_ip() == ADDRESS)
    });
}

#[test]
fn connections_and_listeners_report_the_removal_of_their_device() {
    if manager::address().is_none() {
        return;
    }
    if !ours_alone() {
        println!("devices of this machine are not removed");
        return;
    }
    make_device();
    let (listener, _) = listener(ADDRESS);
    let (client, server) = connected(ADDRESS);
    assert_eq!(client.id().device_name().as_deref(), Some(DEVICE));
    // The command ends when no process has the device open, at the latest when this process ends.
    let mut command = Command::new("rdma");
    command
        .args(["link", "delete", DEVICE])
        .stdout(Stdio::null());
    let mut removal = command.spawn().unwrap();
    for end in [&client, &server] {
        let error = connection_error(end.wait_disconnected(Some(MAX_WAIT)));
        assert!(
            matches!(error, ConnectionError::DeviceRemoved { .. }),
            "{error:?}"
        );
    }
    let error = connection_error(listener.next(Some(MAX_WAIT)));
    assert!(
        matches!(error, ConnectionError::DeviceRemoved { .. }),
        "{error:?}"
    );
    // After the removal, all objects can be dropped in any order.
    drop((client, listener, server));
    println!("{:?}", removal.try_wait());
}
