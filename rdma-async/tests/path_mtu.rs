//! Checks the path MTU of connections: the choice of both ends, and that a path that loses long
//! packets is reported when a connection is established.

mod common;

use std::env;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::namespace::{
    ROLE, add_address, again, ip, must_skip, parsed, report_ready, succeeds, wait_until,
    wait_until_ready,
};
use common::{LIMIT, builder, bytes, layout, pattern, run};
use rdma_async::{LocalMrReadAccess, Rdma, RdmaBuilder};
use rdma_core::{ConnectOptions, Mtu};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TEST: &str = "hosts_with_different_mtus_connect_and_lost_packets_are_reported";
/// Command that creates the namespaces of the near host, which has the long MTU.
const HOST: &[&str] = &["unshare", "--net", "--user", "--map-root-user"];
const NEAR: (&str, &str) = ("veth-near", "10.84.0.1");
const FAR: (&str, &str) = ("veth-far", "10.84.0.2");
const PORT: u16 = 7841;

/// Connects two hosts by a network whose interface has the MTU 9000 at the near host and 1500 at
/// the far host, which drops longer packets. With the handshake over TCP, both ends use a path MTU
/// that fits. With endpoints that the program exchanges, the ends do not know the route: the near
/// host must then report the loss, as the client and as the server.
///
/// The role `host` is the process that creates the near host. Any other role consists of the host
/// (`near` or `far`), the end of the connection (`client` or `server`), and the server's address.
#[test]
fn hosts_with_different_mtus_connect_and_lost_packets_are_reported() {
    let role = env::var(ROLE).ok();
    match role
        .as_deref()
        .map(|role| role.split(' ').collect::<Vec<_>>())
    {
        None => {
            if !must_skip(&[HOST, &["true"]].concat()) {
                assert_succeeds(again(TEST, "host", HOST).spawn().unwrap());
            }
        }
        Some(words) => match words[..] {
            [place, "server", address] => serve(place == "far", address),
            [place, "client", address] => connect(place == "far", address),
            _ => join(),
        },
    }
}

/// Joins the near host and the far host by a network, and connects them in both directions.
fn join() {
    ip("link set lo up");
    for (near_end, far_end, server) in [("client", "server", FAR.1), ("server", "client", NEAR.1)] {
        let role = |place: &str, end: &str| format!("{place} {end} {server}");
        let mut far = again(TEST, &role("far", far_end), &["unshare", "--net"])
            .spawn()
            .unwrap();
        let _output = wait_until_ready(&mut far);
        let (near_name, far_name, far_process) = (NEAR.0, FAR.0, far.id());
        ip(&format!(
            "link add {near_name} type veth peer name {far_name} netns {far_process}"
        ));
        ip(&format!("link set {near_name} mtu 9000 up"));
        add_address(NEAR.1, NEAR.0);
        let mut near = again(TEST, &role("near", near_end), &["env"]);
        let near = near.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut near = near.spawn().unwrap();
        wait_for_report(&mut near);
        drop(near.stdin.take());
        assert_succeeds(near);
        assert_succeeds(far);
        // The end of the far host's namespace removes the interface.
        wait_until(|| !succeeds(&format!("link show {near_name}")));
    }
}

/// Waits until the process reports to standard error that long packets are lost.
fn wait_for_report(process: &mut Child) {
    let expected = format!(
        "softroce: long packets from {}, with a path MTU of 4096 bytes, do not arrive at {}",
        NEAR.1, FAR.1
    );
    let (found, report) = channel();
    let lines = BufReader::new(process.stderr.take().unwrap()).lines();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            eprintln!("{line}");
            if line.starts_with(&expected) {
                let _ = found.send(());
            }
        }
    });
    report.recv_timeout(LIMIT).expect("the path is reported");
}

/// Waits for the interface of the far host, and brings it up with the shorter MTU.
fn prepare_far_host() {
    report_ready();
    wait_until(|| succeeds(&format!("link show {}", FAR.0)));
    ip("link set lo up");
    add_address(FAR.1, FAR.0);
    ip(&format!("link set {} mtu 1500 up", FAR.0));
}

fn serve(is_far: bool, address: &str) {
    if is_far {
        prepare_far_host();
    }
    run(async {
        let address = parsed(address);
        let exchange = TcpListener::bind((address, PORT + 1)).await.unwrap();
        let connection = builder().listen((address, PORT)).await.unwrap();
        let message = connection.receive().await.unwrap();
        connection.send(&message).await.unwrap();
        connection.receive().await.unwrap_err();
        let (mut stream, _) = exchange.accept().await.unwrap();
        let connection = connect_by_exchange(&mut stream).await;
        let message = connection.receive().await.unwrap();
        connection.send(&message).await.unwrap();
        end(is_far, connection).await;
    });
}

fn connect(is_far: bool, address: &str) {
    if is_far {
        prepare_far_host();
    }
    run(async {
        let (address, deadline) = (parsed(address), Instant::now() + LIMIT);
        let connection = loop {
            match builder().connect((address, PORT)).await {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let mtu = connection.queue_pair().attributes().unwrap().path_mtu();
        assert_eq!(mtu, Some(Mtu::Mtu1024));
        let sent = pattern(&connection, 1 << 20, 2);
        connection.send(&sent).await.unwrap();
        let message = connection.receive().await.unwrap();
        assert!(message.as_slice() == sent.as_slice());
        connection.close().await.unwrap();
        let mut stream = TcpStream::connect((address, PORT + 1)).await.unwrap();
        let connection = connect_by_exchange(&mut stream).await;
        // Short messages arrive.
        let message = pattern(&connection, 8, 1);
        connection.send(&message).await.unwrap();
        connection.receive().await.unwrap();
        end(is_far, connection).await;
    });
}

/// Connects to the peer of `stream`, by which the ends exchange only their endpoints.
async fn connect_by_exchange(stream: &mut TcpStream) -> Rdma {
    let peer = stream.peer_addr().unwrap().ip();
    let prepared = builder().toward(peer).prepare().unwrap();
    let theirs = exchange(stream, &prepared.hello()).await;
    let connection = prepared.connect(&theirs).unwrap();
    // Neither end may send before both are connected.
    exchange(stream, &[0]).await;
    connection
}

/// Sends bytes to the peer, and receives the same number of bytes.
async fn exchange(stream: &mut TcpStream, own: &[u8]) -> Vec<u8> {
    stream.write_all(own).await.unwrap();
    let mut theirs = vec![0; own.len()];
    stream.read_exact(&mut theirs).await.unwrap();
    theirs
}

/// Closes the connection at the near host once its standard input has ended. At the far host, waits
/// until the near host has closed the connection.
async fn end(is_far: bool, connection: Rdma) {
    if is_far {
        connection.receive().await.unwrap_err();
    } else {
        let until_closed = || io::copy(&mut io::stdin(), &mut io::sink());
        tokio::task::spawn_blocking(until_closed)
            .await
            .unwrap()
            .unwrap();
    }
}

fn assert_succeeds(mut process: Child) {
    let status = process.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn an_mtu_that_one_end_sets_applies_to_both() {
    run(async {
        let limited =
            |builder: RdmaBuilder| builder.options(ConnectOptions::default().mtu(Mtu::Mtu256));
        let mut plain_listener = common::listen(|builder| builder).await;
        let mut limited_listener = common::listen(limited).await;
        let ends = [
            common::join(&mut plain_listener, limited).await,
            common::join(&mut limited_listener, |builder| builder).await,
        ];
        // Longer than one packet of either MTU, in both directions.
        let len = 10_000;
        for (left, right) in ends
            .iter()
            .flat_map(|(one, other)| [(one, other), (other, one)])
        {
            let mut remote = left.request_remote_mr(layout(len)).await.unwrap();
            let source = pattern(left, len, 3);
            left.write(&source, &mut remote).await.unwrap();
            let mut target = left.alloc_local_mr(layout(len)).unwrap();
            left.read(&mut target, &remote).await.unwrap();
            assert_eq!(target.as_slice(), bytes(len, 3));
            let message = pattern(left, 4000, 4);
            let (sent, received) = tokio::join!(left.send(&message), right.receive());
            sent.unwrap();
            assert_eq!(received.unwrap().as_slice(), bytes(4000, 4));
        }
    });
}
