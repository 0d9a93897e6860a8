//! Checks connections between two hosts, without any setting: two network namespaces that are joined
//! by a pair of interfaces.

mod common;

use std::env;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{LIMIT, builder, bytes, layout, pattern, run};
use rdma_async::{LocalMrReadAccess, Rdma};

/// Variable with the role of a process: `inside` for the server, or the address of the server for the
/// client.
const ROLE: &str = "RDMA_TEST_ROLE";
const SERVER: &str = "veth-server";
const CLIENT: &str = "veth-client";
/// Addresses of the server and the client.
const ADDRESSES: [(&str, &str); 2] = [("10.82.0.1", "10.82.0.2"), ("fd82::1", "fd82::2")];

/// Runs this test in a new network namespace, in which another process with another namespace
/// connects to it, first by IPv4 and then by IPv6. The server's interface and addresses are new each time. The network has
/// the MTU of Ethernet, which is shorter than the path MTU of softroce on one host.
#[test]
fn two_hosts_connect_without_a_setting() {
    let role = env::var(ROLE).ok();
    match role.as_deref() {
        None => {
            if env::var_os("RDMA_DEVICE").is_some_and(|device| device != "softroce0") {
                eprintln!("skipped: only softroce has the addresses of a namespace");
                return;
            }
            let allowed = Command::new("unshare")
                .args(["--net", "--map-root-user", "true"])
                .status();
            if !allowed.is_ok_and(|status| status.success()) {
                eprintln!("skipped: this system allows no network namespace");
                return;
            }
            let status = again("inside", &["--net", "--map-root-user"])
                .spawn()
                .and_then(|mut child| child.wait())
                .unwrap();
            assert!(status.success(), "{status}");
        }
        Some("inside") => serve(),
        Some(address) => connect(address.parse().unwrap()),
    }
}

/// Returns a command that runs the test in another namespace.
fn again(role: &str, namespace: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(namespace)
        .arg(env::current_exe().unwrap())
        .args([
            "--exact",
            "two_hosts_connect_without_a_setting",
            "--nocapture",
        ])
        .env(ROLE, role);
    for variable in ["SOFTROCE_ADDRESS", "SOFTROCE_NETDEV", "RDMA_GID_INDEX"] {
        command.env_remove(variable);
    }
    command
}

fn serve() {
    ip("link set lo up");
    for (server, client) in ADDRESSES {
        ip(&format!("link add {SERVER} type veth peer name {CLIENT}"));
        for (server, _) in ADDRESSES {
            add_address(server, SERVER);
        }
        ip(&format!("link set {SERVER} up"));
        let mut other = again(server, &["--net"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let _output = wait_for_namespace(&mut other);
        ip(&format!("link set {CLIENT} netns {}", other.id()));
        run(async {
            let connection = builder().listen((server, 7811)).await.unwrap();
            check_address(&connection, server);
            assert_eq!(connection.peer_address().ip(), parsed(client));
            let message = connection.receive().await.unwrap();
            assert!(message.as_slice() == bytes(1 << 20, 7));
            connection.send(&message).await.unwrap();
            connection.receive().await.unwrap_err();
        });
        assert!(other.wait().unwrap().success());
        // The interface has ended with the namespace of the client, and so has its other end.
        let end = Instant::now() + LIMIT;
        while succeeds(&format!("link show {SERVER}")) {
            assert!(Instant::now() < end, "the interface stays");
            thread::sleep(Duration::from_millis(10));
        }
    }
    // Both ends of a connection may be on one host, and then have loopback addresses.
    run(async {
        let listen = builder().listen("127.0.0.1:7812");
        let (server, client) = tokio::join!(listen, async {
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

fn connect(server: IpAddr) {
    println!("ready");
    let end = Instant::now() + LIMIT;
    while !succeeds(&format!("link show {CLIENT}")) {
        assert!(Instant::now() < end, "the interface does not come");
        thread::sleep(Duration::from_millis(10));
    }
    ip("link set lo up");
    for (_, client) in ADDRESSES {
        add_address(client, CLIENT);
    }
    ip(&format!("link set {CLIENT} up"));
    run(async {
        let connection = loop {
            match builder().connect(SocketAddr::new(server, 7811)).await {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let own = ADDRESSES.iter().find(|(other, _)| parsed(other) == server);
        check_address(&connection, own.unwrap().1);
        let sent = pattern(&connection, 1 << 20, 7);
        connection.send(&sent).await.unwrap();
        let message = connection.receive().await.unwrap();
        assert!(message.as_slice() == sent.as_slice());
        connection.alloc_local_mr(layout(8)).unwrap();
        connection.close().await.unwrap();
    });
}

fn check_address(connection: &Rdma, expected: &str) {
    let address = connection.queue_pair().address();
    assert_eq!(address.gid.to_ip(), parsed(expected), "{address}");
}

fn parsed(address: &str) -> IpAddr {
    address.parse().unwrap()
}

/// Waits until the child runs in its namespace. Returns its output, which must be kept open.
fn wait_for_namespace(child: &mut Child) -> BufReader<ChildStdout> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("ready\n") {
        line.clear();
        let length = output.read_line(&mut line).unwrap();
        assert!(length > 0, "the client has ended");
    }
    output
}

fn add_address(address: &str, interface: &str) {
    let (length, flag) = match parsed(address) {
        IpAddr::V4(_) => (24, ""),
        IpAddr::V6(_) => (64, " nodad"),
    };
    ip(&format!(
        "address add {address}/{length} dev {interface}{flag}"
    ));
}

fn ip(command: &str) {
    assert!(succeeds(command), "ip {command}");
}

fn succeeds(command: &str) -> bool {
    let output = Command::new("ip")
        .args(command.split(' '))
        .output()
        .unwrap();
    output.status.success()
}
