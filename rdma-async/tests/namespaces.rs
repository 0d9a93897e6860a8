//! Checks connections between two hosts with default settings. The hosts are two network
//! namespaces, which a pair of interfaces connects.

mod common;

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use common::namespace::{
    self, ROLE, add_address, ip, must_skip, parsed, report_ready, succeeds, wait_until,
    wait_until_ready,
};
use common::{LIMIT, builder, bytes, pattern, run};
use rdma_async::{LocalMrReadAccess, Rdma};
use softroce::path::Way;

const TEST: &str = "two_hosts_connect_with_default_settings";
const SERVER: &str = "veth-server";
const CLIENT: &str = "veth-client";
/// Addresses of the server and the client.
const ADDRESSES: [(&str, &str); 2] = [("10.82.0.1", "10.82.0.2"), ("fd82::1", "fd82::2")];

/// Runs a server in a new network namespace. Clients connect by IPv4 and by IPv6, from the server's
/// namespace and from another namespace. The server's interface and addresses are created for each
/// connection. The network has the MTU of Ethernet, which is shorter than the path MTU on one host.
///
/// The role of the server process is `inside`. The role of a client process is `here` (in the
/// server's namespace) or `there` (in another namespace), followed by the address of the server.
#[test]
fn two_hosts_connect_with_default_settings() {
    let role = env::var(ROLE).ok();
    match role.as_deref().map(|role| role.split_once(' ').ok_or(role)) {
        None => {
            let by = ["unshare", "--net", "--map-root-user"];
            if must_skip(&[&by[..], &["true"]].concat()) {
                return;
            }
            let status = again("inside", &by)
                .spawn()
                .and_then(|mut child| child.wait())
                .unwrap();
            assert!(status.success(), "{status}");
        }
        Some(Err(_)) => serve(),
        Some(Ok((place, server))) => connect(place == "here", parsed(server)),
    }
}

fn again(role: &str, by: &[&str]) -> Command {
    namespace::again(TEST, role, by)
}

fn serve() {
    ip("link set lo up");
    for (server, client) in ADDRESSES {
        ip(&format!("link add {SERVER} type veth peer name {CLIENT}"));
        for (server, _) in ADDRESSES {
            add_address(server, SERVER);
        }
        ip(&format!("link set {SERVER} up"));
        let mut here = again(&format!("here {server}"), &["env"]).spawn().unwrap();
        let output = wait_until_ready(&mut here);
        answer(server, server);
        assert!(here.wait().unwrap().success());
        drop(output);

        let by = ["unshare", "--net"];
        let mut there = again(&format!("there {server}"), &by).spawn().unwrap();
        let output = wait_until_ready(&mut there);
        ip(&format!("link set {CLIENT} netns {}", there.id()));
        answer(server, client);
        assert!(there.wait().unwrap().success());
        drop(output);
        // The end of the client's namespace removes both ends of the pair of interfaces.
        wait_until(|| !succeeds(&format!("link show {SERVER}")));
    }
    // Both ends of a connection over the loopback address of TCP have loopback addresses.
    run(async {
        let (server, client) = tokio::join!(builder().listen("127.0.0.1:7812"), async {
            loop {
                if let Ok(client) = builder().connect("127.0.0.1:7812").await {
                    return client;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        for connection in [&client, &server.unwrap()] {
            let gid = connection.queue_pair().address().gid.to_ip();
            assert!(gid.is_loopback(), "{gid}");
        }
    });
}

/// Accepts a connection at the address `server` from the address `client`, and sends its messages
/// back.
fn answer(server: &str, client: &str) {
    run(async {
        let connection = builder().listen((server, 7811)).await.unwrap();
        check_address(&connection, server);
        assert_eq!(connection.peer_address().ip(), parsed(client));
        let mut messages = 0;
        while let Ok(message) = connection.receive().await {
            assert!(message.as_slice() == bytes(1 << 20, 7));
            connection.send(&message).await.unwrap();
            messages += 1;
        }
        assert_ne!(messages, 0);
    });
}

/// Connects to the server, sends messages, and receives the messages back, until they take the
/// path that is expected. `is_here` is set if this process is in the server's namespace.
fn connect(is_here: bool, server: IpAddr) {
    report_ready();
    let own = ADDRESSES.iter().find(|(other, _)| parsed(other) == server);
    let (own, client) = *own.unwrap();
    if !is_here {
        wait_until(|| succeeds(&format!("link show {CLIENT}")));
        ip("link set lo up");
        for (_, client) in ADDRESSES {
            add_address(client, CLIENT);
        }
        ip(&format!("link set {CLIENT} up"));
    }
    run(async {
        let end = Instant::now() + LIMIT;
        let connection = loop {
            match builder().connect(SocketAddr::new(server, 7811)).await {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        check_address(&connection, if is_here { own } else { client });
        let sent = pattern(&connection, 1 << 20, 7);
        let expected = if is_here { Way::Shared } else { Way::Udp };
        // Packets carry the messages until the processes have agreed to share memory.
        loop {
            connection.send(&sent).await.unwrap();
            let message = connection.receive().await.unwrap();
            assert!(message.as_slice() == sent.as_slice());
            let way = softroce::path::way(connection.queue_pair().number());
            if way == Some(expected) {
                break;
            }
            assert!(Instant::now() < end, "{way:?} instead of {expected:?}");
        }
        connection.close().await.unwrap();
    });
}

fn check_address(connection: &Rdma, expected: &str) {
    let address = connection.queue_pair().address();
    assert_eq!(address.gid.to_ip(), parsed(expected), "{address}");
}
