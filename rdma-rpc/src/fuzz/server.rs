//! A server with a peer that sends anything.

use std::time::Duration;

use tokio::time::sleep;

use super::calls::{BULK_LIMIT, BULKS, Lives, call};
use super::frames::read;
use super::peer::RawPeer;
use super::script::{Script, Step};
use crate::address::Address;
use crate::client::Client;
use crate::server::Server;

/// Number of calls of a connection that run at once, and of its one-way calls.
const CALLS: u16 = 8;

/// Feeds a server the messages of a peer. The peer has no more handlers than it may, receives only
/// valid messages, and leaves nothing behind; another client is served.
pub fn server(bytes: &[u8]) {
    super::run(serve(bytes));
}

async fn serve(bytes: &[u8]) {
    let lives = Lives::default();
    let server = Server::new(lives.clone())
        .concurrency(CALLS)
        .message_limit(0)
        .bulk_limit(BULK_LIMIT)
        .grace(Duration::from_secs(1))
        .listen(Address::memory())
        .await
        .expect("nobody else listens");
    let honest = Client::connect(server.address()).await;
    let honest = honest.expect("the server accepts clients");
    let mut peer = RawPeer::connect(server.address()).await;
    for step in Script::new(bytes).steps() {
        match step {
            Step::Message(message) => drop(peer.send(message)),
            Step::Pause(time) => sleep(time).await,
            Step::Receive => receive(&mut peer),
            Step::Settle => super::settle().await,
            Step::Call(kind) => {
                let kind = if kind >= BULKS { kind } else { kind % 2 };
                let called = call(honest.clone(), kind).await;
                called.expect("it is served");
            }
            Step::Act(_) => drop(tokio::spawn(call(honest.clone(), 2))),
        }
    }
    super::settle().await;
    // Calls and one-way calls of the peer, and calls of the other client.
    assert!(lives.count() <= 3 * usize::from(CALLS), "{}", lives.count());
    receive(&mut peer);
    call(honest.clone(), 0).await.expect("it is served");
    drop(peer);
    // Longer than the calls of the other client take.
    sleep(Duration::from_secs(20)).await;
    assert_eq!(lives.count(), 0, "handlers of a peer that is gone");
    call(honest, 0).await.expect("it is served");
    server.shutdown().await;
}

/// Receives all messages that have arrived, which must be valid.
fn receive(peer: &mut RawPeer) {
    while let Some(message) = peer.received() {
        assert!(
            message.len() <= 8 << 10,
            "a message of {} bytes",
            message.len()
        );
        read(&message).expect("a server sends valid messages");
    }
}
