//! Checks connections to one peer over two networks, of which one fails and recovers. The hosts
//! are two network namespaces, which two pairs of interfaces connect.

mod common;

use std::env;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::namespace::{
    ROLE, add_address, again, ip, must_skip, parsed, report_ready, succeeds, wait_until,
    wait_until_ready,
};
use common::{LIMIT, builder, bytes, context, pattern, run};
use rdma_async::{
    Backoff, LocalMrReadAccess, Rdma, RdmaBuilder, RdmaDevice, Reconnect, TcpConnector,
};

const TEST: &str = "the_loss_of_one_of_two_networks_fails_no_idempotent_request";
const PORT: u16 = 7814;
/// Interface and address of the server, then of the client, in each network.
const NETWORKS: [[(&str, &str); 2]; 2] = [
    [("server0", "10.84.0.1"), ("client0", "10.84.0.2")],
    [("server1", "10.84.1.1"), ("client1", "10.84.1.2")],
];
/// Time after which a silent peer counts as dead.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Time limit of an attempt to connect. A connection over a working network takes less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The role of the first process is that of the client, which starts the server in another
/// namespace.
#[test]
fn the_loss_of_one_of_two_networks_fails_no_idempotent_request() {
    match env::var(ROLE).as_deref() {
        Err(_) => {
            let by = ["unshare", "--net", "--map-root-user"];
            if must_skip(&[&by[..], &["true"]].concat()) {
                return;
            }
            let mut client = again(TEST, "client", &by).spawn().unwrap();
            assert!(client.wait().unwrap().success());
        }
        Ok("client") => be_client(),
        Ok(_server) => be_server(),
    }
}

fn settings() -> RdmaBuilder {
    builder()
        .keep_alive(KEEP_ALIVE)
        .connect_timeout(CONNECT_TIMEOUT)
}

fn be_client() {
    let mut server = again(TEST, "server", &["unshare", "--net"])
        .spawn()
        .unwrap();
    let output = wait_until_ready(&mut server);
    ip("link set lo up");
    for [(peer, _), (own, address)] in NETWORKS {
        let namespace = server.id();
        ip(&format!(
            "link add {own} type veth peer name {peer} netns {namespace}"
        ));
        add_address(address, own);
        ip(&format!("link set {own} up"));
    }
    run(async {
        let device = RdmaDevice::new(&context()).unwrap();
        let connectors = NETWORKS.map(|[(_, address), _]| {
            let address = SocketAddr::new(parsed(address), PORT);
            settings().on(&device).connector(address)
        });
        let ms = Duration::from_millis;
        let backoff = Backoff::default().first(ms(1)).longest(ms(100));
        let peer = Arc::new(Reconnect::over(connectors, backoff.limit(Some(LIMIT))));
        let maintaining = tokio::spawn({
            let peer = Arc::clone(&peer);
            async move { peer.maintain().await }
        });
        let [_, (interface, _)] = NETWORKS[1];
        wait_for_connections(&peer, 2).await;
        assert_eq!(make_requests(&peer, 100).await, [50, 50]);

        ip(&format!("link set {interface} down"));
        // Requests that are in flight on the lost network are repeated on the other one.
        make_requests(&peer, 20).await;
        wait_for_connections(&peer, 1).await;
        assert_eq!(make_requests(&peer, 100).await, [100, 0]);

        ip(&format!("link set {interface} up"));
        wait_for_connections(&peer, 2).await;
        assert_eq!(make_requests(&peer, 100).await, [50, 50]);
        maintaining.abort();
    });
    server.kill().unwrap();
    server.wait().unwrap();
    drop(output);
}

/// Makes `count` requests, each of which the server must answer. Returns the numbers of requests
/// that were answered over each network.
async fn make_requests(peer: &Reconnect<TcpConnector<SocketAddr>>, count: usize) -> [usize; 2] {
    let mut answered = [0; 2];
    for number in 0..count {
        let request = |rdma: Arc<Rdma>| async move {
            let number = number as u8;
            rdma.send(&pattern(&rdma, 100, number)).await?;
            let answer = rdma.receive().await?;
            assert!(answer.as_slice() == bytes(100, number));
            Ok(rdma.peer_address().ip())
        };
        let address = peer.perform_idempotent(request).await.unwrap();
        let network = NETWORKS
            .iter()
            .position(|[(_, server), _]| parsed(server) == address);
        answered[network.unwrap()] += 1;
    }
    answered
}

async fn wait_for_connections(peer: &Reconnect<TcpConnector<SocketAddr>>, count: usize) {
    let limit = tokio::time::timeout(LIMIT / 2, async {
        while peer.open_connections() != count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    limit
        .await
        .unwrap_or_else(|_| panic!("there are {} connections", peer.open_connections()));
}

/// Answers every message of every connection with the same message, until the process is killed.
fn be_server() {
    report_ready();
    ip("link set lo up");
    for [(own, address), _] in NETWORKS {
        wait_until(|| succeeds(&format!("link show {own}")));
        add_address(address, own);
        ip(&format!("link set {own} up"));
    }
    run(async {
        let device = RdmaDevice::new(&context()).unwrap();
        let listener = settings().on(&device).bind(("0.0.0.0", PORT)).await;
        let mut listener = listener.unwrap();
        loop {
            let rdma = listener.accept().await.unwrap();
            tokio::spawn(async move {
                while let Ok(message) = rdma.receive().await {
                    if rdma.send(&message).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
}
