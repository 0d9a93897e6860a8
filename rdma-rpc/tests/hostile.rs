//! Tests with peers that violate the protocol. Each peer is disconnected with a reason, and the
//! server continues to serve other clients. The library's own tests do the same over memory.

mod common;

use std::alloc::Layout;
use std::sync::Arc;
use std::time::Duration;

use common::frames::{frame, message, request, settings, violations};
use common::held::{Counter, HeldClient, HeldServer, SharedHolding, assert_answers};
use common::raw::Raw;
use common::{client, connect, listen, over_every_transport, rdma, transport, within};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rdma_async::{LocalMrWriteAccess, Rdma};
use rdma_rpc::{Address, CallError, Error, Receiver, Sender, Server, ServerHandle};

over_every_transport! {
    @rdma_and_tcp
    a_violation_ends_only_the_connection_of_its_sender;
    a_message_above_the_limit_is_not_received;
    the_server_stops_reading_from_a_peer_that_receives_no_answers;
    the_number_of_unreceived_answers_is_limited;
    items_beyond_the_bytes_of_the_window_end_the_connection;
    late_and_invented_frames_are_ignored;
    one_way_calls_end_with_their_connection;
    an_end_that_overtakes_its_request_ends_the_stream;
    a_long_response_that_arrives_after_the_end_of_a_shutdown_is_delivered;
}

#[rdma_rpc::service]
trait Fed {
    async fn feed(&self, numbers: Receiver<u64>) -> Result<u64, ()>;
    /// Receives no items.
    async fn starve(&self, numbers: Receiver<Vec<u8>>) -> Result<u64, ()>;
    async fn pour(&self, numbers: Sender<u64>) -> Result<u64, ()>;
    /// Returns a text of a mebibyte.
    async fn long(&self) -> Result<String, ()>;
    #[rpc(oneway)]
    async fn linger(&self);
}

/// Numbers of handlers that have begun and that were dropped.
#[derive(Debug, Default)]
struct Lives {
    fed: Counter,
    long: Counter,
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

    async fn starve(&self, _numbers: Receiver<Vec<u8>>) -> Result<u64, ()> {
        let _life = Life(Arc::clone(&self.0));
        self.0.fed.add();
        std::future::pending().await
    }

    async fn pour(&self, mut numbers: Sender<u64>) -> Result<u64, ()> {
        let _life = Life(Arc::clone(&self.0));
        while numbers.send(7).await.is_ok() {}
        Ok(0)
    }

    async fn long(&self) -> Result<String, ()> {
        self.0.long.add();
        Ok("x".repeat(MEBIBYTE))
    }

    async fn linger(&self) {
        let _life = Life(Arc::clone(&self.0));
        self.0.lingering.add();
        std::future::pending::<()>().await;
    }
}

const MEBIBYTE: usize = 1 << 20;

/// Starts a server with both services, and connects a correct client.
async fn serve(
    address: Address,
    settings: impl FnOnce(Server) -> Server,
) -> (ServerHandle, HeldClient, Arc<Lives>) {
    let lives = Arc::new(Lives::default());
    let server = Server::new(HeldServer::new(SharedHolding::default()))
        .service(FedServer::new(Feeding(Arc::clone(&lives))));
    let server = listen(settings(server), address).await;
    let client = HeldClient::new(connect(&server).await);
    (server, client, lives)
}

async fn a_violation_ends_only_the_connection_of_its_sender(address: Address) {
    let (server, client, _) = serve(address, |server| server).await;
    for (bytes, reason) in violations() {
        let mut raw = Raw::connect(&server).await;
        within("saying it", raw.say(&bytes)).await;
        let given = raw.farewell().await;
        let is_right = given.as_ref().is_some_and(|given| given.contains(reason));
        assert!(is_right, "{given:?} instead of {reason:?} after {bytes:x?}");
        assert_answers(&client).await;
    }
}

async fn a_message_above_the_limit_is_not_received(address: Address) {
    let (server, client, _) = serve(address, |server| server.message_limit(0)).await;
    let mut raw = Raw::connect(&server).await;
    let bytes = message(&[request("Held.echo", (0, 0), &[b'x'; 9000])]);
    let is_received = within("saying it", raw.say(&bytes)).await;
    if let Raw::Tcp(_) = raw {
        let reason = raw.farewell().await.unwrap();
        assert!(reason.contains("longer than the limit"), "{reason}");
        // The length alone is enough; no bytes need to follow.
        raw = Raw::connect(&server).await;
        if let Raw::Tcp(stream) = &mut raw {
            let sending = tokio::io::AsyncWriteExt::write_all(stream, &[0xff; 4]);
            within("a length", sending).await.unwrap();
        }
        let reason = raw.farewell().await.unwrap();
        assert!(reason.contains("longer than the limit"), "{reason}");
    } else {
        // The message was not read from the sender's memory, so the connection remains usable.
        assert!(!is_received);
        let wrong = message(&[frame(77, 0, 0, (0, 0), b"")]);
        within("saying it", raw.say(&wrong)).await;
        let reason = raw.farewell().await.unwrap();
        assert!(reason.contains("unknown kind 77"), "{reason}");
    }
    assert_answers(&client).await;
}

#[test]
fn arbitrary_bytes_do_not_stop_the_server() {
    for (address, cases) in [(common::tcp(), 200), (rdma(), 50)] {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (server, client, _) = runtime.block_on(serve(address, |server| server));
        let kinds = (0_u8..11, 0_u8..4, 0_u16..5, 0_u32..300, 0_u32..3);
        let bytes = || prop::collection::vec(any::<u8>(), 1..60);
        let frames =
            (kinds, bytes()).prop_map(|((kind, codec, argument, index, generation), rest)| {
                frame(kind, codec, argument, (index, generation), &rest)
            });
        let of_frames = prop::collection::vec(frames, 1..6).prop_map(|frames| message(&frames));
        let messages = prop::collection::vec(prop_oneof![3 => of_frames, 1 => bytes()], 1..4);
        let mut runner = TestRunner::new(Config {
            cases,
            failure_persistence: None,
            ..Config::default()
        });
        let tested = runner.run(&messages, |messages| {
            runtime.block_on(async {
                let mut raw = Raw::connect(&server).await;
                for message in messages {
                    within("saying it", raw.say(&message)).await;
                }
                drop(raw);
                assert_answers(&client).await;
            });
            Ok(())
        });
        tested.unwrap();
    }
}

/// Checks that the server stops reading from a peer that makes calls and receives no answers.
async fn the_server_stops_reading_from_a_peer_that_receives_no_answers(address: Address) {
    let (server, client, _) = serve(address, |server| server).await;
    let mut raw = Raw::connect(&server).await;
    let text = [&[0xe8, 0x07][..], &[b'x'; 1000]].concat();
    let mut sent = 0;
    let flood = async {
        for generation in 0.. {
            let bytes = message(&[request("Held.echo", (0, generation), &text)]);
            raw.say(&bytes).await;
            sent += bytes.len();
        }
    };
    // Not a timed assertion: on a slower machine, a server without a limit would read even more.
    tokio::time::timeout(Duration::from_secs(3), flood)
        .await
        .expect_err("the server stops reading");
    assert!(sent < 64 << 20, "the server has read {sent} bytes");
    assert_answers(&client).await;
}

/// Checks that the number of answers in memory is limited when a peer receives them more slowly
/// than it makes calls.
async fn the_number_of_unreceived_answers_is_limited(address: Address) {
    /// Number of calls in one message.
    const TOGETHER: u32 = 20;
    /// Maximum number of answers that the server creates before it stops handling messages, and
    /// that the sockets can buffer.
    const WAITING: usize = 16 + 16;
    let (server, client, lives) = serve(address, |server| server).await;
    let mut raw = Raw::connect(&server).await;
    within("the settings", raw.say(&message(&[settings()]))).await;
    for round in 0..12 {
        let requests: Vec<_> = (0..TOGETHER)
            .map(|index| request("Fed.long", (index, round), b""))
            .collect();
        within("the calls", raw.say(&message(&requests))).await;
    }
    for taken in 1..=100 {
        let answer = within("an answer", async {
            loop {
                let message = raw.hear().await.expect("the connection does not end");
                if message.len() > MEBIBYTE {
                    return message;
                }
            }
        });
        assert_eq!(answer.await[4], 2);
        let made = lives.long.count();
        let most = taken + WAITING + TOGETHER as usize;
        assert!(made <= most, "{made} answers were made, and {taken} taken");
    }
    assert_answers(&client).await;
}

async fn items_beyond_the_bytes_of_the_window_end_the_connection(address: Address) {
    const ITEM: usize = 200 << 10;
    let limited = |server: Server| server.message_limit(ITEM + 100);
    let (server, client, lives) = serve(address, limited).await;
    let mut raw = Raw::connect(&server).await;
    let call = message(&[request("Fed.starve", (0, 0), b"")]);
    within("the call", raw.say(&call)).await;
    lives.fed.reached("the call's arrival", 1).await;
    // The window has 256 KiB, and the last item may exceed it. A third item violates the protocol.
    for sequence in 0_u32..3 {
        let body = [&sequence.to_be_bytes()[..], &[1; ITEM]].concat();
        let item = message(&[frame(4, 1, 0, (0, 0), &body)]);
        within("an item", raw.say(&item)).await;
    }
    let reason = raw.farewell().await.unwrap();
    assert!(reason.contains("beyond the window"), "{reason}");
    lives.dropped.reached("the end of the handler", 1).await;
    assert_answers(&client).await;
}

/// Sends bytes as a message.
async fn say(rdma: &Rdma, bytes: &[u8]) {
    let layout = Layout::from_size_align(bytes.len(), 1).unwrap();
    let mut region = rdma.alloc_local_mr(layout).unwrap();
    region.as_mut_slice().copy_from_slice(bytes);
    // The client may close the connection before it confirms the arrival.
    drop(rdma.send(&region).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_message_of_the_server_fails_every_call() {
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
            // Receives the client's settings and its request.
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

async fn late_and_invented_frames_are_ignored(address: Address) {
    let (server, client, _) = serve(address, |server| server).await;
    let mut raw = Raw::connect(&server).await;
    // Cancellations, items and windows of calls that were never made are ignored.
    let numbers = [(7, &b""[..]), (4, &[0; 4]), (6, &[0xff; 8])];
    for (kind, rest) in numbers {
        let codec = u8::from(kind == 4);
        let frames: Vec<_> = (0..100)
            .map(|index| frame(kind, codec, 0, (index, 5), rest))
            .collect();
        within("frames", raw.say(&message(&frames))).await;
    }
    // A call that was cancelled before its request arrived is not executed; the next call is.
    let requests = [5, 6].map(|generation| request("Held.echo", (7, generation), b"\x01x"));
    within("calls", raw.say(&message(&requests))).await;
    let answer = within("an answer", raw.hear()).await.unwrap();
    assert_eq!(answer[4], 2, "a response: {answer:x?}");
    assert_eq!(answer[16..20], 6_u32.to_be_bytes());
    assert_answers(&client).await;
}

async fn one_way_calls_end_with_their_connection(address: Address) {
    let short = |server: Server| server.grace(Duration::from_millis(100));
    let (server, client, lives) = serve(address, short).await;
    let one_way = (u32::MAX, 0);
    for round in 1..=3 {
        let mut raw = Raw::connect(&server).await;
        let frames = ["Fed.feed", "Fed.linger"].map(|name| request(name, one_way, b""));
        within("the calls", raw.say(&message(&frames))).await;
        let lingering = &lives.lingering;
        lingering.reached("the one-way call", round).await;
        // A method with a response cannot be called one-way.
        assert_eq!(lives.fed.count(), 0);
        drop(raw);
        let dropped = &lives.dropped;
        dropped.reached("the end of the handler", round).await;
    }
    // The end of the server also ends one-way calls.
    let mut raw = Raw::connect(&server).await;
    let call = message(&[request("Fed.linger", one_way, b"")]);
    within("the call", raw.say(&call)).await;
    lives.lingering.reached("the one-way call", 4).await;
    drop(client);
    within("the end of the server", server.shutdown()).await;
    lives.dropped.reached("the end of the handler", 4).await;
}

async fn an_end_that_overtakes_its_request_ends_the_stream(address: Address) {
    let (server, _client, lives) = serve(address, |server| server).await;
    let mut raw = Raw::connect(&server).await;
    let end = frame(5, 0, 0, (2, 7), &[0; 4]);
    let both = message(&[end, request("Fed.feed", (2, 7), b"")]);
    within("the call", raw.say(&both)).await;
    lives.dropped.reached("the end of the handler", 1).await;
}

async fn a_long_response_that_arrives_after_the_end_of_a_shutdown_is_delivered(address: Address) {
    let (mut raw, client) = Raw::accept(address).await;
    let client = HeldClient::new(client);
    let serving = async {
        let first = within("the first request", raw.hear()).await.unwrap();
        let second = within("the second request", raw.hear()).await.unwrap();
        // Announces one long response, which arrives after this frame.
        let goodbye = frame(9, 0, 2, (0, 0), &1_u64.to_be_bytes());
        assert!(raw.say(&message(&[goodbye])).await);
        let word = |at: usize| u32::from_be_bytes(*first[at..].first_chunk().unwrap());
        // The length of the text, 10,000, in the format of Postcard.
        let text = [&[0x90, 0x4e][..], &[b'x'; 10_000]].concat();
        let response = frame(2, 1, 0, (word(12), word(16)), &text);
        assert!(raw.say(&message(&[response])).await);
        second
    };
    let first = async {
        let answer = client.echo(String::new()).await;
        assert_eq!(answer.unwrap(), "x".repeat(10_000));
    };
    let second = async {
        let error = client.wait(String::new()).await.unwrap_err();
        assert!(
            matches!(error, CallError::Rpc(Error::ShuttingDown)),
            "{error:?}"
        );
    };
    within("the calls", async {
        tokio::join!(biased; serving, first, second)
    })
    .await;
}
