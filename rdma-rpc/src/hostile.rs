//! Tests with peers that violate the protocol or that stop responding. The connections are in
//! memory, and the clock is paused: time advances only while every task waits.

#[path = "../tests/common/frames.rs"]
mod frames;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use self::frames::{frame, message, method, request, settings, violations};
use crate::address::Address;
use crate::client::Client;
use crate::codec::{Postcard, ServiceCodec};
use crate::error::{CallError, Error};
use crate::fuzz::RawPeer;
use crate::limits;
use crate::method::MethodInfo;
use crate::server::{Call, Methods, Server, ServerHandle, Service};

/// Test service with methods of every kind, which the messages in [`violations`] call.
#[derive(Clone, Default)]
struct TestService {
    /// Number of long responses that were created.
    long: Arc<AtomicUsize>,
}

/// Length in bytes of the response of the test method `Fed.long`. Long enough that each response is
/// sent as a separate message.
const LONG_RESPONSE_LEN: usize = 1 << 20;

fn info(name: &'static str, has_input: bool, has_output: bool) -> &'static MethodInfo {
    Box::leak(Box::new(MethodInfo {
        id: method(name),
        name,
        has_input,
        has_output,
        is_one_way: false,
        is_once: false,
    }))
}

impl Service for TestService {
    fn register(self, methods: &mut Methods) {
        type Codecs = ServiceCodec<Postcard>;
        type Outcome<T> = Result<T, String>;
        let echo = info("Held.echo", false, false);
        methods.add::<Codecs, _, _, _, _, _>(echo, |call: Call<String>| async move {
            Outcome::Ok(call.request)
        });
        let wait = info("Held.wait", false, false);
        methods.add::<Codecs, _, _, _, _, _>(wait, |_: Call<String>| {
            std::future::pending::<Outcome<String>>()
        });
        let feed = info("Fed.feed", true, false);
        methods.add::<Codecs, _, _, _, _, _>(feed, |call: Call<()>| async move {
            let mut numbers = call.receiver::<Postcard, u64>();
            while numbers.next().await.is_some() {}
            Outcome::Ok(())
        });
        let pour = info("Fed.pour", false, true);
        methods.add::<Codecs, _, _, _, _, _>(pour, |call: Call<()>| async move {
            let mut numbers = call.sender::<Postcard, u64>();
            while numbers.send(7).await.is_ok() {}
            Outcome::Ok(())
        });
        let long = info("Fed.long", false, false);
        methods.add::<Codecs, _, _, _, _, _>(long, move |_: Call<()>| {
            self.long.fetch_add(1, Ordering::Relaxed);
            async { Outcome::Ok("x".repeat(LONG_RESPONSE_LEN)) }
        });
    }
}

async fn serve() -> (ServerHandle, TestService) {
    let service = TestService::default();
    let server = Server::new(service.clone());
    (server.listen(Address::memory()).await.unwrap(), service)
}

/// Connects to `server` as a peer that can send arbitrary bytes, and receives the server's
/// settings. Returns the peer.
async fn connect(server: &ServerHandle) -> RawPeer {
    let mut peer = RawPeer::connect(server.address()).await;
    let greeting = peer.receive().await.unwrap();
    assert_eq!(greeting[4], 8);
    peer
}

async fn echo(client: &Client, text: &str) -> Result<String, CallError<String>> {
    let echo = info("Held.echo", false, false);
    client
        .unary::<ServiceCodec<Postcard>, _, _, _>(echo, text.to_owned())
        .await
}

#[tokio::test(start_paused = true)]
async fn a_violation_ends_only_the_connection_of_its_sender() {
    let (server, _) = serve().await;
    let client = Client::connect(server.address()).await.unwrap();
    let too_long = message(&[request("Held.echo", (0, 0), &vec![0; limits::MESSAGE_LEN])]);
    let too_long = (too_long, "longer than the limit");
    for (bytes, reason) in violations().into_iter().chain([too_long]) {
        let mut peer = connect(&server).await;
        assert!(peer.send(bytes));
        let mut last = Vec::new();
        while let Some(message) = peer.receive().await {
            last = message;
        }
        let given = String::from_utf8_lossy(&last);
        assert!(given.contains(reason), "{given:?} instead of {reason:?}");
        echo(&client, "are you there?").await.unwrap();
    }
}

/// Time within which an end must send its settings after connecting. Equal to
/// [`limits::CONNECT_TIMEOUT`].
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_settings_is_disconnected() {
    let (server, _) = serve().await;
    let begun = Instant::now();
    let mut peer = connect(&server).await;
    // A call does not replace the settings.
    assert!(peer.send(message(&[request("Held.wait", (0, 0), b"\x00")])));
    assert_eq!(peer.receive().await, None);
    let waited = begun.elapsed();
    assert!((TIMEOUT..2 * TIMEOUT).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_sent_its_settings_may_be_idle() {
    let (server, _) = serve().await;
    let mut peer = connect(&server).await;
    assert!(peer.send(message(&[settings()])));
    let day = Duration::from_secs(86_400);
    assert!(timeout(day, peer.receive()).await.is_err());
}

/// Time after which a server or client disconnects a peer that receives no message. Equal to the
/// constant in `outbox/flusher.rs`.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn a_client_that_receives_no_message_is_disconnected() {
    let (server, _) = serve().await;
    let peer = connect(&server).await;
    assert!(peer.send(message(&[settings()])));
    // The answers exceed the capacity of the transport.
    for generation in 0..200 {
        let bytes = message(&[request("Held.echo", (0, generation), b"\x01x")]);
        while !peer.send(bytes.clone()) {
            sleep(Duration::from_millis(1)).await;
        }
        // The pause makes each answer a separate message.
        sleep(Duration::from_millis(1)).await;
    }
    sleep(SEND_TIMEOUT - Duration::from_secs(1)).await;
    assert!(!peer.is_disconnected());
    sleep(Duration::from_secs(2)).await;
    assert!(peer.is_disconnected());
}

#[tokio::test(start_paused = true)]
async fn connecting_to_a_server_that_sends_no_settings_fails() {
    let address = Address::memory();
    let mut listener = RawPeer::listen(&address).await;
    let begun = Instant::now();
    let (_peer, connected) = tokio::join!(RawPeer::accept(&mut listener), Client::connect(address));
    let error = connected.unwrap_err();
    assert!(matches!(error, Error::Disconnected { .. }), "{error:?}");
    let waited = begun.elapsed();
    assert!((TIMEOUT..2 * TIMEOUT).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn calls_to_a_server_that_receives_no_message_fail() {
    let address = Address::memory();
    let mut listener = RawPeer::listen(&address).await;
    let connecting = tokio::spawn(Client::connect(address));
    let peer = RawPeer::accept(&mut listener).await;
    let slots = [[1; 4], [0, 0, 0, 200], [0; 4], [0; 4]].concat();
    assert!(peer.send(message(&[frame(8, 0, 0, (0, 0), &slots)])));
    let client = connecting.await.unwrap().unwrap();
    let client = client.with_deadline(Duration::from_secs(600));
    // Each request is a separate message, and together they exceed the capacity of the transport.
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { echo(&client, &"x".repeat(5000)).await })
        })
        .collect();
    let begun = Instant::now();
    for call in calls {
        let error = call.await.unwrap().unwrap_err().rpc();
        assert!(
            matches!(error, Some(Error::Disconnected { .. })),
            "{error:?}"
        );
    }
    let waited = begun.elapsed();
    assert_eq!(waited, SEND_TIMEOUT);
    assert!(client.failure().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_passes_with_the_clock_of_the_runtime() {
    let (server, _) = serve().await;
    let client = Client::connect(server.address()).await.unwrap();
    let day = Duration::from_secs(86_400);
    let wait = info("Held.wait", false, false);
    let begun = Instant::now();
    let client = client.with_deadline(day);
    let called = client.unary::<ServiceCodec<Postcard>, _, String, String>(wait, String::new());
    let error = called.await.unwrap_err().rpc();
    assert!(
        matches!(error, Some(Error::DeadlineExceeded { .. })),
        "{error:?}"
    );
    assert!((day..2 * day).contains(&begun.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_unreceived_answers_is_limited() {
    /// Number of calls that the test's peer starts with each message.
    const CALLS_PER_MESSAGE: u32 = 20;
    /// Maximum number of responses of 1 MiB that the server creates while the peer does not receive
    /// messages. The in-memory transport then stores 64 responses, and the server's send queue 16.
    /// The send queue is then full, and the server handles no further message until the peer
    /// receives messages.
    const MAX_UNRECEIVED: usize = 16 + 64;
    let (server, service) = serve().await;
    let mut peer = connect(&server).await;
    assert!(peer.send(message(&[settings()])));
    for round in 0..20 {
        let requests: Vec<_> = (0..CALLS_PER_MESSAGE)
            .map(|index| request("Fed.long", (index, round), b""))
            .collect();
        assert!(peer.send(message(&requests)));
    }
    for taken in 1..=100 {
        let answer = peer.receive().await.unwrap();
        assert!(answer.len() > LONG_RESPONSE_LEN);
        sleep(Duration::from_millis(1)).await;
        let made = service.long.load(Ordering::Relaxed);
        let most = taken + MAX_UNRECEIVED + CALLS_PER_MESSAGE as usize;
        assert!(made <= most, "{made} answers were made, and {taken} taken");
    }
}
