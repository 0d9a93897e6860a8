//! Checks that peers that connect and send nothing do not block other peers.

mod common;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use common::hostile::{hello, prepared};
use common::{builder, check, eventually, join, listen, run};
use rdma_async::{Rdma, RdmaBuilder, RdmaListener};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Returns the number of half-open connections to create.
fn half_open_connections() -> usize {
    // Other devices are tested in a guest whose processor is emulated, and whose TCP connections
    // take ten times as long. 2000 connections are twice the limit of the listener, so that it ends
    // handshakes there, too.
    match common::context().name() {
        "softroce0" => 10_000,
        _ => 2000,
    }
}

const LIMIT: usize = 1000;

fn limited(builder: RdmaBuilder) -> RdmaBuilder {
    builder.half_open_limit(LIMIT)
}

/// Accepts connections in a task, and returns a channel of the connections whose handshakes
/// succeed.
fn serve(mut listener: RdmaListener) -> UnboundedReceiver<Rdma> {
    let (accepted, connections) = unbounded_channel();
    tokio::spawn(async move {
        loop {
            if let Ok(rdma) = listener.accept().await
                && accepted.send(rdma).is_err()
            {
                return;
            }
        }
    });
    connections
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Raises the limit of file descriptors to its maximum, and returns the number of half-open
/// connections that this process can keep open.
fn max_connections() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let most = maximum.map_or(usize::MAX, |most| usize::try_from(most).unwrap());
    half_open_connections().min(most.saturating_sub(2048))
}

async fn connect(address: SocketAddr, connections: &mut UnboundedReceiver<Rdma>) -> (Rdma, Rdma) {
    let connecting = builder().connect(address);
    let (client, server) = tokio::join!(connecting, connections.recv());
    (client.unwrap(), server.unwrap())
}

#[test]
fn ten_thousand_half_open_connections_are_limited_and_do_not_block_others() {
    run(async {
        let max_connections = max_connections();
        assert!(max_connections >= 1000, "{max_connections} descriptors");
        let mut listener = listen(limited).await;
        let address = listener.local_address().unwrap();
        let (old, old_server) = join(&mut listener, limited).await;
        let mut connections = serve(listener);
        let before = descriptors();
        let (mut silent, flood) = (Vec::new(), half_open_connections());
        for number in 0..flood {
            if silent.len() == max_connections {
                silent.clear();
            }
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Sends a part of a hello, or nothing.
            drop(stream.write_all(&b"RDMAsync"[..number % 9]).await);
            silent.push(stream);
            if number % 1000 == 500 {
                let (client, server) = connect(address, &mut connections).await;
                check(&client, &server).await;
                check(&old, &old_server).await;
            }
        }
        // The listener has accepted all half-open connections, and keeps only a few. Each dropped
        // connection of the check above keeps a descriptor at each end for a second.
        let bound = before + silent.len() + LIMIT + 40;
        eventually(|| (descriptors() <= bound).then_some(())).await;
        let (client, server) = connect(address, &mut connections).await;
        check(&client, &server).await;
        check(&old_server, &old).await;
    });
}

/// Waits until the listener has ended a half-open connection, and returns the reason in its
/// rejection.
async fn rejection(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let reason = bytes.strip_prefix(b"RDMAdeny").expect("a rejection");
    assert_eq!(reason[..2], (reason.len() as u16 - 2).to_be_bytes());
    String::from_utf8(reason[2..].to_vec()).unwrap()
}

#[test]
fn a_silent_peer_gets_the_reason_when_its_handshake_ends_for_another_peer() {
    run(async {
        let listener = listen(|builder| builder.half_open_limit(1)).await;
        let address = listener.local_address().unwrap();
        let mut connections = serve(listener);
        for sent in [0, 5] {
            let mut silent = TcpStream::connect(address).await.unwrap();
            silent.write_all(&b"RDMAsync"[..sent]).await.unwrap();
            let (client, server) = connect(address, &mut connections).await;
            check(&client, &server).await;
            let reason = rejection(silent).await;
            assert_eq!(
                reason,
                "another peer waits, and the limit of 1 handshakes is reached"
            );
        }
    });
}

#[test]
fn a_silent_peer_gets_the_reason_when_its_handshake_takes_too_long() {
    run(async {
        let limit = Duration::from_millis(300);
        let mut listener = listen(|builder| builder.connect_timeout(limit)).await;
        let address = listener.local_address().unwrap();
        let silent = TcpStream::connect(address).await.unwrap();
        let (ended, reason) = tokio::join!(listener.accept(), rejection(silent));
        assert_eq!(reason, "the handshake took longer than 300ms");
        let error = ended.unwrap_err().to_string();
        assert!(error.ends_with(&reason), "{error}");
    });
}

#[test]
fn peers_that_stop_after_a_valid_hello_do_not_block_others() {
    run(async {
        let few = |builder: RdmaBuilder| builder.half_open_limit(4);
        let listener = listen(few).await;
        let address = listener.local_address().unwrap();
        let mut connections = serve(listener);
        let (_domain, own) = prepared();
        let right = hello(&own.endpoint());
        let mut stopped = Vec::new();
        for _ in 0..12 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&right).await.unwrap();
            stopped.push(stream);
        }
        let (client, server) = connect(address, &mut connections).await;
        check(&client, &server).await;
        drop(stopped);
    });
}

#[test]
fn a_slow_handshake_continues_while_no_other_peer_waits() {
    run(async {
        let mut listener = listen(|builder| builder.half_open_limit(1)).await;
        let address = listener.local_address().unwrap();
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = proxy.local_addr().unwrap();
        let passing = tokio::spawn(async move {
            let (mut client, _) = proxy.accept().await.unwrap();
            let mut server = TcpStream::connect(address).await.unwrap();
            // This time is longer than the minimum time of a handshake.
            tokio::time::sleep(Duration::from_millis(700)).await;
            copy_bidirectional(&mut client, &mut server).await
        });
        let connected = tokio::try_join!(builder().connect(there), listener.accept());
        let (client, server) = connected.unwrap();
        check(&client, &server).await;
        drop((client, server));
        passing.abort();
    });
}
