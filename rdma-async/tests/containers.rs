//! Checks connections between containers, as docs/src/containers.md describes them: containers are
//! processes in namespaces of their own.

mod common;

use std::env;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::namespace::{
    ROLE, add_address, again, ip, must_skip, say_ready, succeeds, wait_until, wait_until_ready,
};
use common::{LIMIT, builder, bytes, pattern, run};
use rdma_async::{LocalMrReadAccess, Rdma};
use softroce::path::Way;

/// Namespaces that each container of a pod has for itself, with the options of `unshare`.
const CONTAINER: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--fork",
    "--mount",
    "--mount-proc",
    "--ipc",
    "--uts",
];
/// Network namespace of a pod, and the user namespace that permits its creation without root.
const POD: &[&str] = &["unshare", "--net", "--user", "--map-root-user"];
/// Command that runs a program as a user without privileges.
const WITHOUT_ROOT: &[&str] = &[
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
];
const PORT: u16 = 7831;
/// Name of a container's interface.
const INTERFACE: &str = "eth0";

/// The containers of a pod have one network namespace. If they also have one PID namespace, they
/// share memory.
#[test]
fn containers_of_a_pod_connect() {
    const TEST: &str = "containers_of_a_pod_connect";
    if let Some(role) = Role::of_this_process() {
        return role.play(|| {
            ip("link set lo up");
            for (by, way) in [(CONTAINER, "packets"), (&["env"], "memory")] {
                let container = |end: &str| {
                    let role = format!("{end} 127.0.0.1 {way}");
                    again(TEST, &role, by).spawn().unwrap()
                };
                let mut server = container("server");
                let mut output = wait_until_ready(&mut server);
                let client = container("client");
                assert_succeeds(client);
                std::io::copy(&mut output, &mut std::io::stderr()).unwrap();
                assert_succeeds(server);
            }
        });
    }
    for by in [POD.to_vec(), [WITHOUT_ROOT, POD].concat()] {
        if !must_skip(&[&by, CONTAINER, &["true"]].concat()) && !is_out_of_reach(&by) {
            assert_succeeds(again(TEST, "host", &by).spawn().unwrap());
        }
    }
}

/// Two containers, each with a network namespace of its own, are joined by a bridge of their host.
#[test]
fn containers_on_a_bridge_connect() {
    const TEST: &str = "containers_on_a_bridge_connect";
    const ADDRESSES: [&str; 2] = ["10.83.0.1", "10.83.0.2"];
    if let Some(role) = Role::of_this_process() {
        return role.play(|| {
            ip("link add bridge0 type bridge");
            ip("link set bridge0 up");
            let [server, client] = [0, 1].map(|index| {
                let end = ["server", "client"][index];
                let role = format!("{end} {} packets {}", ADDRESSES[0], ADDRESSES[index]);
                let mut container = again(TEST, &role, &["unshare", "--net"]).spawn().unwrap();
                let output = wait_until_ready(&mut container);
                let peer = format!("peer name {INTERFACE} netns {}", container.id());
                ip(&format!("link add port{index} type veth {peer}"));
                ip(&format!("link set port{index} master bridge0"));
                ip(&format!("link set port{index} up"));
                (container, output)
            });
            for (container, _output) in [client, server] {
                assert_succeeds(container);
            }
        });
    }
    if !must_skip(&[POD, &["ip", "link", "add", "bridge0", "type", "bridge"]].concat()) {
        assert_succeeds(again(TEST, "host", POD).spawn().unwrap());
    }
}

/// Role of a process of a test, which the variable [`ROLE`] contains.
enum Role {
    /// Process in the namespaces of the host or pod, which starts the containers.
    Host,
    /// Process in a container.
    Container {
        is_server: bool,
        server: String,
        /// Path that the messages must take.
        way: Way,
        /// Address of the container's own interface, which the process waits for.
        own: Option<String>,
    },
}

impl Role {
    fn of_this_process() -> Option<Self> {
        let role = env::var(ROLE).ok()?;
        let mut words = role.split(' ').map(str::to_owned);
        let end = words.next()?;
        if end == "host" {
            return Some(Self::Host);
        }
        let server = words.next()?;
        let way = match words.next()?.as_str() {
            "memory" => Way::Shared,
            _ => Way::Udp,
        };
        Some(Self::Container {
            is_server: end == "server",
            server,
            way,
            own: words.next(),
        })
    }

    /// Runs `host` if this is the process that starts the containers, or else one end of the
    /// connection.
    fn play(self, host: impl FnOnce()) {
        let (is_server, server, way, own) = match self {
            Self::Host => return host(),
            Self::Container {
                is_server,
                server,
                way,
                own,
            } => (is_server, server, way, own),
        };
        if own.is_some() || is_server {
            say_ready();
        }
        if let Some(own) = own {
            wait_until(|| succeeds(&format!("link show {INTERFACE}")));
            ip("link set lo up");
            add_address(&own, INTERFACE);
            ip(&format!("link set {INTERFACE} up"));
        }
        run(async {
            match is_server {
                true => answer(&server, way).await,
                false => ask(&server, way).await,
            }
        });
    }
}

async fn answer(server: &str, way: Way) {
    let connection = builder().listen((server, PORT)).await.unwrap();
    let message = connection.receive().await.unwrap();
    assert!(message.as_slice() == bytes(1 << 20, 3));
    connection.send(&message).await.unwrap();
    assert_way(&connection, way);
    connection.receive().await.unwrap_err();
}

async fn ask(server: &str, way: Way) {
    let end = Instant::now() + LIMIT;
    let connection = loop {
        match builder().connect((server, PORT)).await {
            Ok(connection) => break connection,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let sent = pattern(&connection, 1 << 20, 3);
    connection.send(&sent).await.unwrap();
    let message = connection.receive().await.unwrap();
    assert!(message.as_slice() == sent.as_slice());
    assert_way(&connection, way);
    connection.close().await.unwrap();
}

fn assert_way(connection: &Rdma, way: Way) {
    let found = softroce::path::way(connection.queue_pair().number());
    assert_eq!(found, Some(way));
}

fn assert_succeeds(mut process: Child) {
    let status = process.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// Returns whether the user of the command `by` cannot read this program. Prints a message then.
fn is_out_of_reach(by: &[&str]) -> bool {
    let program = env::current_exe().unwrap();
    let status = Command::new(by[0])
        .args(&by[1..])
        .args(["test", "-x"])
        .arg(&program)
        .status();
    let is_out_of_reach = !status.is_ok_and(|status| status.success());
    if is_out_of_reach {
        eprintln!("skipped: `{}` cannot run {program:?}", by.join(" "));
    }
    is_out_of_reach
}
