//! Checks that processes of two users share an address without disturbing each other. The kernel
//! lets them share no memory, so packets carry their messages.

mod common;

use std::env;
use std::fs;
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::namespace::{ROLE, must_skip, report_ready, wait_until_ready};
use common::{LIMIT, builder, bytes, pattern, run};
use rdma_async::{LocalMrReadAccess, Rdma};
use softroce::path::Way;

const TEST: &str = "users_share_an_address";
/// The address of all processes.
const ADDRESS: &str = "127.94.73.2";
/// Command that runs a program as another user.
const OTHER_USER: &[&str] = &[
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];
const SAME_USER: &[&str] = &["env"];
/// Ports of the servers of both users.
const PORTS: [u16; 2] = [7851, 7852];
const LENGTH: usize = 20_000;

/// Starts a server of each user, and clients of both users at both servers. Then kills the
/// processes of one user, and checks that those of the other continue.
#[test]
fn users_share_an_address() {
    if let Ok(role) = env::var(ROLE) {
        let words: Vec<&str> = role.split(' ').collect();
        let port = words[1].parse().unwrap();
        return run(async {
            match words[0] {
                "server" => serve(port).await,
                _ => exchange_until_input_ends(port, words[0] == "same").await,
            }
        });
    }
    if must_skip(&[OTHER_USER, &["true"]].concat()) {
        return;
    }
    let program = Program::copy();
    let users = [SAME_USER, OTHER_USER];
    let [own_server, other_server] = [0, 1].map(|user| {
        let server = program.start(&format!("server {}", PORTS[user]), users[user]);
        Process::ready(server)
    });
    let client = |client: usize, server: usize| {
        let kind = if client == server { "same" } else { "other" };
        Process::ready(program.start(&format!("{kind} {}", PORTS[server]), users[client]))
    };
    let clients = [client(0, 0), client(1, 1), client(0, 1), client(1, 0)];
    let [own, other, own_at_other, other_at_own] = clients;
    own_at_other.end();
    // The processes of the other user end in the middle of their traffic.
    for killed in [other, other_at_own, other_server] {
        killed.kill();
    }
    own.end();
    own_server.kill();
}

/// Copy of this program that every user can execute.
struct Program(PathBuf);

impl Program {
    fn copy() -> Self {
        let path = env::temp_dir().join(format!("rdma-async-two-users-{}", std::process::id()));
        fs::copy(env::current_exe().unwrap(), &path).unwrap();
        Self(path)
    }

    fn start(&self, role: &str, by: &[&str]) -> Child {
        let mut command = Command::new(by[0]);
        command.args(&by[1..]).arg(&self.0);
        command.args(["--exact", TEST, "--nocapture"]);
        command.env(ROLE, role).env("SOFTROCE_ADDRESS", ADDRESS);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.current_dir("/").spawn().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn ready(mut child: Child) -> Self {
        let output = wait_until_ready(&mut child);
        Self { child, output }
    }

    /// Ends the standard input of a client, which ends the client.
    fn end(mut self) {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
    }

    fn kill(mut self) {
        let is_running = self.child.try_wait().unwrap().is_none();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        assert!(is_running, "the process has failed");
    }
}

/// Sends each message of each connection back, until this process is killed.
async fn serve(port: u16) {
    let mut listener = builder().bind((ADDRESS, port)).await.unwrap();
    report_ready();
    while let Ok(connection) = listener.accept().await {
        tokio::spawn(async move {
            while let Ok(message) = connection.receive().await {
                if connection.send(&message).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// Exchanges messages with a server until the standard input ends. `is_same_user` is set if the
/// server is a process of the same user, with which this process shares memory.
async fn exchange_until_input_ends(port: u16, is_same_user: bool) {
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        over.store(true, Ordering::Relaxed);
    });
    let connection = builder().connect((ADDRESS, port)).await.unwrap();
    let end = Instant::now() + LIMIT;
    let expected = if is_same_user { Way::Shared } else { Way::Udp };
    loop {
        exchange(&connection, 1).await;
        let way = softroce::path::way(connection.queue_pair().number());
        if way == Some(expected) {
            break;
        }
        assert!(Instant::now() < end, "{way:?} instead of {expected:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    report_ready();
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        exchange(&connection, number).await;
        number = number.wrapping_add(1);
    }
    let way = softroce::path::way(connection.queue_pair().number());
    assert_eq!(way, Some(expected));
    connection.close().await.unwrap();
}

async fn exchange(connection: &Rdma, seed: u8) {
    let sent = pattern(connection, LENGTH, seed);
    connection.send(&sent).await.unwrap();
    let message = connection.receive().await.unwrap();
    assert!(message.as_slice() == bytes(LENGTH, seed));
}
