//! Checks connections between containers, as docs/src/containers.md describes them. The containers
//! are processes in separate namespaces.

mod common;

use std::env;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::namespace::{
    ROLE, add_address, again, ip, must_skip, report_ready, succeeds, wait_until, wait_until_ready,
};
use common::{LIMIT, builder, bytes, pattern, run};
use rdma_async::{LocalMrReadAccess, Rdma};
use softroce::path::Way;

/// Command that creates the namespaces that each container of a pod has for itself.
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
/// Command that creates the network namespace of a pod, and a user namespace, in which no root
/// rights are needed.
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
/// Seeds of the patterns of the messages, and of the last message of a connection.
const SEED: u8 = 3;
const LAST: u8 = 4;
/// Name of the network interface of a container.
const INTERFACE: &str = "eth0";

/// Checks the containers of a pod, which have a common network namespace. Containers with a common
/// PID namespace also share memory.
#[test]
fn containers_of_a_pod_connect() {
    const TEST: &str = "containers_of_a_pod_connect";
    if let Some(role) = Role::of_this_process() {
        return role.run_process(|| {
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
        if !must_skip(&[&by, CONTAINER, &["true"]].concat()) && !cannot_run_program(&by) {
            assert_succeeds(again(TEST, "host", &by).spawn().unwrap());
        }
    }
}

/// Checks two containers with separate network namespaces, which a bridge of their host connects.
#[test]
fn containers_on_a_bridge_connect() {
    const TEST: &str = "containers_on_a_bridge_connect";
    const ADDRESSES: [&str; 2] = ["10.83.0.1", "10.83.0.2"];
    if let Some(role) = Role::of_this_process() {
        return role.run_process(|| {
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
    let bridge = ["ip", "link", "add", "bridge0", "type", "bridge"];
    for by in [POD.to_vec(), [WITHOUT_ROOT, POD].concat()] {
        if !must_skip(&[&by[..], &bridge].concat()) && !cannot_run_program(&by) {
            assert_succeeds(again(TEST, "host", &by).spawn().unwrap());
        }
    }
}

/// Checks two processes of a job that has no privileges, no settings and no namespaces of its own.
#[test]
fn processes_of_a_ci_job_connect_without_privileges() {
    const TEST: &str = "processes_of_a_ci_job_connect_without_privileges";
    if let Some(role) = Role::of_this_process() {
        return role.run_process(|| {});
    }
    if must_skip(&[WITHOUT_ROOT, &["true"]].concat()) || cannot_run_program(WITHOUT_ROOT) {
        return;
    }
    let start = |end: &str| {
        let role = format!("{end} 127.0.0.1 memory");
        again(TEST, &role, WITHOUT_ROOT).spawn().unwrap()
    };
    let mut server = start("server");
    let mut output = wait_until_ready(&mut server);
    let client = start("client");
    assert_succeeds(client);
    std::io::copy(&mut output, &mut std::io::stderr()).unwrap();
    assert_succeeds(server);
}

/// Role of a process of a test, decoded from the environment variable [`ROLE`].
enum Role {
    /// The process that starts the containers, in the namespaces of the host or of the pod.
    Host,
    /// A process in a container.
    Container {
        is_server: bool,
        server: String,
        /// Path that the messages must take.
        way: Way,
        /// Address that the process assigns to the container's interface, once the interface
        /// exists.
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

    /// Runs `host` in the role `Host`, or one end of the connection in the role `Container`.
    fn run_process(self, host: impl FnOnce()) {
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
            report_ready();
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
    let mut is_last = false;
    while !is_last {
        let message = connection.receive().await.unwrap();
        is_last = message.as_slice() == bytes(1 << 20, LAST);
        assert!(is_last || message.as_slice() == bytes(1 << 20, SEED));
        if is_last {
            wait_for_way(&connection, way).await;
        }
        connection.send(&message).await.unwrap();
    }
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
    // Packets carry the messages until the processes have agreed to share memory.
    loop {
        echo(&connection, SEED).await;
        let found = current_way(&connection);
        if found == Some(way) {
            break;
        }
        assert!(Instant::now() < end, "{found:?} instead of {way:?}");
    }
    echo(&connection, LAST).await;
    connection.close().await.unwrap();
}

/// Sends a message with the pattern `seed`, and checks the message that comes back.
async fn echo(connection: &Rdma, seed: u8) {
    let sent = pattern(connection, 1 << 20, seed);
    connection.send(&sent).await.unwrap();
    let message = connection.receive().await.unwrap();
    assert!(message.as_slice() == sent.as_slice());
}

fn current_way(connection: &Rdma) -> Option<Way> {
    softroce::path::way(connection.queue_pair().number())
}

async fn wait_for_way(connection: &Rdma, way: Way) {
    let end = Instant::now() + LIMIT;
    while current_way(connection) != Some(way) {
        let found = current_way(connection);
        assert!(Instant::now() < end, "{found:?} instead of {way:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn assert_succeeds(mut process: Child) {
    let status = process.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// Returns whether the user under which the command `by` runs cannot execute this program. Prints a
/// message in that case.
fn cannot_run_program(by: &[&str]) -> bool {
    let program = env::current_exe().unwrap();
    let status = Command::new(by[0])
        .args(&by[1..])
        .args(["test", "-x"])
        .arg(&program)
        .status();
    let cannot_run_program = !status.is_ok_and(|status| status.success());
    if cannot_run_program {
        eprintln!("skipped: `{}` cannot run {program:?}", by.join(" "));
    }
    cannot_run_program
}
