//! Peers that violate the protocol, byte by byte. Each is disconnected with a reason, and the server
//! serves its other clients.

mod common;

use std::alloc::Layout;
use std::sync::Arc;
use std::time::Duration;

use common::held::{Counter, HeldClient, HeldServer, SharedHolding, assert_answers, held_pair};
use common::{client, connect, listen, rdma, tcp, transport, within};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, Rdma};
use rdma_rpc::{Error, Receiver, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Number of the method `Held.echo`: FNV-1a of its name.
fn method(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// A frame of any kind and content.
fn frame(kind: u8, codec: u8, argument: u16, id: (u32, u32), rest: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind, codec];
    frame.extend(argument.to_be_bytes());
    frame.extend(u32::try_from(rest.len()).unwrap().to_be_bytes());
    frame.extend(id.0.to_be_bytes());
    frame.extend(id.1.to_be_bytes());
    frame.extend(rest);
    frame
}

fn message(frames: &[Vec<u8>]) -> Vec<u8> {
    let count = u16::try_from(frames.len()).unwrap().to_be_bytes();
    [vec![2, 0], count.to_vec(), frames.concat()].concat()
}

fn request(name: &str, id: (u32, u32), body: &[u8]) -> Vec<u8> {
    let numbers = [method(name).to_be_bytes(), 0_u32.to_be_bytes()].concat();
    frame(1, 1, 0, id, &[&numbers, body].concat())
}

/// Messages that end a connection, with a part of the reason that the server gives.
fn violations() -> Vec<(Vec<u8>, &'static str)> {
    let wait = || request("Held.wait", (3, 9), b"\x05hello");
    vec![
        (b"x".to_vec(), "cut off"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "version 71"),
        (vec![0xff; 3000], "version 255"),
        (message(&[]), "wrong field"),
        (vec![1, 1, 0, 0, 0, 0, 0, 0], "version 1"),
        (message(&[frame(77, 0, 0, (0, 0), b"")]), "unknown kind 77"),
        // A frame that is longer than its message, and bytes behind the last frame.
        (
            message(&[frame(7, 0, 0, (0, 0), b"")])[..15].to_vec(),
            "cut off",
        ),
        (
            [message(&[frame(7, 0, 0, (0, 0), b"")]), vec![0]].concat(),
            "wrong field",
        ),
        // Answers to a server.
        (message(&[frame(2, 1, 0, (0, 0), b"")]), "other end"),
        (message(&[frame(3, 0, 1, (0, 0), b"")]), "other end"),
        // Call numbers that were not given, or are in use.
        (
            message(&[request("Held.echo", (256, 0), b"\x01x")]),
            "was not given",
        ),
        (
            message(&[frame(7, 0, 0, (0xffff_fffe, 0), b"")]),
            "was not given",
        ),
        (message(&[wait(), wait()]), "call number twice"),
        // Items and windows of a call that has no streams.
        (
            message(&[wait(), frame(4, 1, 0, (3, 9), &[0, 0, 0, 0, 1])]),
            "takes none",
        ),
        (
            message(&[wait(), frame(6, 0, 0, (3, 9), &[0xff; 8])]),
            "takes none",
        ),
        // Several frames in a message that is longer than a batch.
        (
            message(&[request("Held.echo", (0, 0), &[b'x'; 5000]), wait()]),
            "wrong field",
        ),
        // Metadata that is cut off.
        (
            message(&[frame(
                1,
                1,
                3,
                (0, 0),
                &[0, 0, 0, 1, 0, 0, 0, 0, 9, b'a', b'b'],
            )]),
            "wrong field",
        ),
        // Settings that were sent already.
        (
            message(&[
                frame(8, 0, 0, (0, 0), &[1; 16]),
                frame(8, 0, 0, (0, 0), &[1; 16]),
            ]),
            "twice",
        ),
    ]
}

/// Sends bytes as a message.
async fn say(rdma: &Rdma, bytes: &[u8]) {
    let layout = Layout::from_size_align(bytes.len(), 1).unwrap();
    let mut region = rdma.alloc_local_mr(layout).unwrap();
    region.as_mut_slice().copy_from_slice(bytes);
    // The server may end before it confirms the arrival.
    drop(rdma.send(&region).await);
}

/// Returns the reason in the goodbye that a message has, if it has one.
fn goodbye(message: &[u8]) -> Option<String> {
    let frame = message.get(4..)?;
    (frame.first() == Some(&9)).then(|| String::from_utf8_lossy(&frame[16..]).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_violation_over_rdma_ends_its_connection_and_no_other() {
    let (server, client, _) = held_pair(rdma()).await;
    let address = server.address().to_string();
    let address = address.trim_start_matches("rdma://");
    for (bytes, reason) in violations() {
        let rdma = within("connecting", transport().connect(address))
            .await
            .unwrap();
        within("the settings", rdma.receive()).await.unwrap();
        within("saying it", say(&rdma, &bytes)).await;
        let farewell = async {
            while let Ok(region) = rdma.receive().await {
                if let Some(reason) = goodbye(region.as_slice()) {
                    return reason;
                }
            }
            panic!("a goodbye after {bytes:x?}");
        };
        let given = within("the goodbye", farewell).await;
        assert!(given.contains(reason), "{given:?} instead of {reason:?}");
        within("the end of the connection", rdma.ended()).await;
        assert_answers(&client).await;
    }
}

/// Connects to a server by TCP and takes its settings.
async fn tcp_peer(address: &str) -> TcpStream {
    let connecting = TcpStream::connect(address.trim_start_matches("tcp://"));
    let mut stream = within("connecting", connecting).await.unwrap();
    let mut settings = [0; 4 + 4 + 16 + 16];
    within("the settings", stream.read_exact(&mut settings))
        .await
        .unwrap();
    assert_eq!(settings[4], 2);
    stream
}

async fn send(stream: &mut TcpStream, message: &[u8]) {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    // The server may end the connection before it has read everything.
    drop(stream.write_all(&[&len, message].concat()).await);
}

/// Waits until the server has closed the connection.
async fn closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    drop(within("the end of the connection", stream.read_to_end(&mut rest)).await);
    rest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_violation_over_tcp_ends_its_connection_and_no_other() {
    let (server, client, _) = held_pair(tcp()).await;
    let address = server.address().to_string();
    for (bytes, reason) in violations() {
        let mut stream = tcp_peer(&address).await;
        send(&mut stream, &bytes).await;
        let rest = closed(&mut stream).await;
        let given = String::from_utf8_lossy(&rest);
        assert!(given.contains(reason), "{given:?} instead of {reason:?}");
        assert_answers(&client).await;
    }
    // A length above the limit, of which nothing follows.
    let mut stream = tcp_peer(&address).await;
    stream.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
    let rest = closed(&mut stream).await;
    assert!(String::from_utf8_lossy(&rest).contains("longer than the limit"));
    assert_answers(&client).await;
}

#[test]
fn anything_over_tcp_is_survived() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, client, _) = runtime.block_on(held_pair(tcp()));
    let address = server.address().to_string();
    let kinds = (1_u8..10, 0_u8..4, 0_u16..5, 0_u32..300, 0_u32..3);
    let frames = (kinds, prop::collection::vec(any::<u8>(), 0..40)).prop_map(
        |((kind, codec, argument, index, generation), rest)| {
            frame(kind, codec, argument, (index, generation), &rest)
        },
    );
    let messages = prop::collection::vec(prop::collection::vec(frames, 1..6), 1..4);
    let mut runner = TestRunner::new(Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let tested = runner.run(&messages, |messages| {
        runtime.block_on(async {
            let mut stream = tcp_peer(&address).await;
            for frames in messages {
                send(&mut stream, &message(&frames)).await;
            }
            drop(stream);
            assert_answers(&client).await;
        });
        Ok(())
    });
    tested.unwrap();
}

/// Checks that a peer which makes calls, and takes no answers, is not read from without limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_no_answers_is_not_read_from() {
    let (server, client, _) = held_pair(tcp()).await;
    let mut stream = tcp_peer(&server.address().to_string()).await;
    let text = [&[0xe8, 0x07][..], &[b'x'; 1000]].concat();
    let mut sent = 0;
    let flood = async {
        for generation in 0.. {
            let bytes = message(&[request("Held.echo", (0, generation), &text)]);
            let len = u32::try_from(bytes.len()).unwrap().to_be_bytes();
            stream
                .write_all(&[&len, &bytes[..]].concat())
                .await
                .unwrap();
            sent += bytes.len();
        }
    };
    // Not a timed assertion: the longer this takes, the more a server without a limit would read.
    tokio::time::timeout(std::time::Duration::from_secs(3), flood)
        .await
        .expect_err("the server stops reading");
    assert!(sent < 64 << 20, "the server has read {sent} bytes");
    assert_answers(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_garbage_fails_every_call() {
    let mut listener = within("listening", transport().bind("127.0.0.1:0"))
        .await
        .unwrap();
    let address = listener.local_address().unwrap();
    let settings = message(&[frame(
        8,
        0,
        0,
        (0, 0),
        &[0, 1, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0],
    )]);
    let garbage: Vec<Vec<u8>> = vec![
        b"what?".to_vec(),
        message(&[frame(2, 1, 0, (9999, 0), b"")]),
        message(&[request("Held.echo", (0, 0), b"")]),
        message(&[frame(3, 0, 99, (0, 0), b"")]),
    ];
    let count = garbage.len();
    let server = tokio::spawn(async move {
        for garbage in garbage {
            let rdma = listener.accept().await.unwrap();
            say(&rdma, &settings).await;
            // The client's settings, and its request.
            drop(rdma.receive().await.unwrap());
            drop(rdma.receive().await.unwrap());
            say(&rdma, &garbage).await;
            rdma.ended().await;
        }
    });
    for _ in 0..count {
        let client = within("connecting", client().connect(address))
            .await
            .unwrap();
        let client = HeldClient::new(client);
        let outcome = within("the end of the call", client.echo("?".to_owned())).await;
        let error = outcome.unwrap_err().rpc();
        assert!(matches!(error, Some(Error::Protocol { .. })), "{error:?}");
        let failure = client.client().failure();
        assert!(matches!(failure, Some(Error::Protocol { .. })));
    }
    within("the end of the server", server).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_and_invented_answers_are_nobodys() {
    let service = HeldServer::new(SharedHolding::default());
    let server = listen(Server::new(service), rdma()).await;
    let client = HeldClient::new(connect(&server).await);
    assert_answers(&client).await;
    // A peer cancels calls that it never made: nothing happens.
    let mut stream = {
        let service = HeldServer::new(SharedHolding::default());
        let server = listen(Server::new(service), tcp()).await;
        let stream = tcp_peer(&server.address().to_string()).await;
        (server, stream)
    };
    let cancels: Vec<_> = (0..100)
        .map(|index| frame(7, 0, 0, (index, 5), b""))
        .collect();
    send(&mut stream.1, &message(&cancels)).await;
    // A call that was cancelled before its request arrived does not run; the next one does.
    let requests = [5, 6].map(|generation| request("Held.echo", (7, generation), b"\x01x"));
    send(&mut stream.1, &message(&requests)).await;
    let mut answer = [0; 4 + 4 + 16 + 2];
    within("an answer", stream.1.read_exact(&mut answer))
        .await
        .unwrap();
    assert_eq!(answer[8], 2, "a response: {answer:x?}");
    assert_eq!(answer[20..24], 6_u32.to_be_bytes());
}

#[rdma_rpc::service]
trait Fed {
    async fn feed(&self, numbers: Receiver<u64>) -> Result<u64, ()>;
    #[rpc(oneway)]
    async fn linger(&self);
}

/// Counters of handlers that have begun and that were dropped.
#[derive(Debug, Default)]
struct Lives {
    fed: Counter,
    lingering: Counter,
    dropped: Counter,
}

struct Life(Arc<Lives>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.dropped.add();
    }
}

struct Feeding(Arc<Lives>);

impl Fed for Feeding {
    async fn feed(&self, mut numbers: Receiver<u64>) -> Result<u64, ()> {
        let _life = Life(Arc::clone(&self.0));
        self.0.fed.add();
        let mut count = 0;
        while numbers.next().await.is_some() {
            count += 1;
        }
        Ok(count)
    }

    async fn linger(&self) {
        let _life = Life(Arc::clone(&self.0));
        self.0.lingering.add();
        std::future::pending::<()>().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_way_calls_end_with_their_connection() {
    let lives = Arc::new(Lives::default());
    let service = FedServer::new(Feeding(Arc::clone(&lives)));
    let server = Server::new(service).grace(Duration::from_millis(100));
    let server = listen(server, tcp()).await;
    let address = server.address().to_string();
    let one_way = (u32::MAX, 0);
    for round in 1..=3 {
        let mut stream = tcp_peer(&address).await;
        let frames = ["Fed.feed", "Fed.linger"].map(|name| request(name, one_way, b""));
        send(&mut stream, &message(&frames)).await;
        let lingering = &lives.lingering;
        lingering.reached("the one-way call", round).await;
        // A method that has a response cannot be called one-way.
        assert_eq!(lives.fed.count(), 0);
        drop(stream);
        let dropped = &lives.dropped;
        dropped.reached("the end of the handler", round).await;
    }
    // The end of the server ends them too.
    let mut stream = tcp_peer(&address).await;
    send(
        &mut stream,
        &message(&[request("Fed.linger", one_way, b"")]),
    )
    .await;
    lives.lingering.reached("the one-way call", 4).await;
    within("the end of the server", server.shutdown()).await;
    lives.dropped.reached("the end of the handler", 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_overtakes_its_request_ends_the_stream() {
    let lives = Arc::new(Lives::default());
    let service = FedServer::new(Feeding(Arc::clone(&lives)));
    let server = listen(Server::new(service), tcp()).await;
    let mut stream = tcp_peer(&server.address().to_string()).await;
    let end = frame(5, 0, 0, (2, 7), &[0; 4]);
    send(
        &mut stream,
        &message(&[end, request("Fed.feed", (2, 7), b"")]),
    )
    .await;
    lives.dropped.reached("the end of the handler", 1).await;
}
