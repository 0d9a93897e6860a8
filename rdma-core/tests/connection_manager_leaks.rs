//! Checks that connections leave no resources behind. The only test of its process, because it
//! counts the resources of the process.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;

use manager::{MAX_WAIT, connected, connection_error, connector, listener};
use rdma_core::cm::{Connection, ConnectionError, ConnectionParameters, Listener};

const ROUNDS: usize = 100;

/// Returns the numbers of the process's resources: descriptors by kind, and RDMA objects of the
/// kernel.
fn held() -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let target = fs::read_link(entry.unwrap().path());
        let target = target.map_or_else(|_| "?".into(), |target| target.display().to_string());
        // The numbers of sockets, pipes and processes in the names vary.
        let kind = target.split(['[', ':']).next().unwrap_or_default();
        if !kind.starts_with("/proc") {
            *counts.entry(format!("descriptor {kind}")).or_insert(0) += 1;
        }
    }
    // The kernel names the thread that created an object, and that thread may have ended. Therefore
    // the objects of all programs are counted.
    let device = common::context().name().to_owned();
    for kind in ["cm_id", "qp", "cq", "pd", "mr"] {
        let Ok(output) = Command::new("rdma")
            .args(["resource", "show", kind])
            .output()
        else {
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let objects = text.lines().filter(|line| line.contains(&device));
        let own = objects.filter(|line| !line.contains("comm ["));
        counts.insert(format!("kernel's {kind}"), own.count());
    }
    counts
}

/// Performs one round: a connection that either side ends, a rejection, a request that is dropped,
/// and a connection for which no side waits.
fn round(number: usize, listener: &Listener) {
    let there = listener.local_address().unwrap();
    let (client, server) = connected(there.ip());
    let farewell = |one: &Connection, other: &Connection| {
        thread::scope(|scope| {
            scope.spawn(|| assert!(other.wait_disconnected(Some(MAX_WAIT)).unwrap()));
            one.disconnect().unwrap();
        });
    };
    match number % 4 {
        0 => farewell(&client, &server),
        1 => farewell(&server, &client),
        2 => drop(client),
        _ => {
            let (id, pair, _) = client.into_parts();
            drop((server, id, pair));
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
            match number % 3 {
                0 => incoming.reject(b"not today").unwrap(),
                1 => drop(incoming),
                _ => {
                    let domain = incoming.context().unwrap().protection_domain().unwrap();
                    drop(incoming.prepare(domain.queue_pair()).unwrap());
                }
            }
        });
        let refused = connector(there)
            .parameters(ConnectionParameters::default().private_data(*b"may I?"))
            .connect(|context| Ok(context.protection_domain()?.queue_pair()));
        let error = connection_error(refused);
        assert!(matches!(error, ConnectionError::Rejected { .. }), "{error}");
    });
}

#[test]
fn a_hundred_rounds_of_connections_and_rejections_leave_nothing() {
    let Some(address) = manager::address() else {
        // A failed attempt leaves nothing behind either.
        let before = held();
        for _ in 0..ROUNDS {
            Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap_err();
        }
        assert_eq!(held(), before);
        return;
    };
    let (listener, _) = listener(address);
    // Objects that are created once and kept, such as librdmacm's contexts, are created here.
    round(0, &listener);
    let before = held();
    println!("{before:?}");
    if let Some(&listening) = before.get("kernel's cm_id") {
        assert!(listening > 0, "the listener is not among what is counted");
    }
    for number in 0..ROUNDS {
        round(number, &listener);
    }
    let after = common::eventually("as much as before", || {
        let after = held();
        (after == before).then_some(after)
    });
    println!("{after:?}");
    assert_eq!(listener.channel().identifiers(), 1);
}
