//! Fuzz target: a server whose peer sends arbitrary bytes.

use std::time::Duration;

use tokio::time::sleep;

use super::calls::{BULK_CALL, BULK_LIMIT, HandlerCount, call};
use super::frames::read;
use super::peer::RawPeer;
use super::script::{Script, Step};
use crate::address::Address;
use crate::client::Client;
use crate::server::Server;

/// Maximum number of running calls of a connection in the fuzz target, and maximum number of
/// running one-way calls. Low, so that short inputs reach the limit.
const CALLS: u16 = 8;

/// Runs a server against a peer that sends the messages in `bytes`. Panics in these cases:
/// * The server runs more handlers than its limit allows.
/// * The server sends an invalid message.
/// * A handler is still running after the end of the connection.
/// * The server does not serve another client.
pub fn server(bytes: &[u8]) {
    super::run(serve(bytes));
}

/// Starts a server, and executes the steps that are encoded in `bytes`, such as sending a message
/// to the server. Panics if the server violates an invariant that is described at [`server`].
async fn serve(bytes: &[u8]) {
    let handlers = HandlerCount::default();
    let server = Server::new(handlers.clone())
        .concurrency(CALLS)
        .message_limit(0)
        .bulk_limit(BULK_LIMIT)
        .grace(Duration::from_secs(1))
        .listen(Address::memory())
        .await
        .expect("the address is new");
    let other = Client::connect(server.address()).await;
    let other = other.expect("the server accepts clients");
    let mut peer = RawPeer::connect(server.address()).await;
    for step in Script::new(bytes).steps() {
        match step {
            Step::Message(message) => drop(peer.send(message)),
            Step::Pause(time) => sleep(time).await,
            Step::Receive => receive(&mut peer),
            Step::RunTasks => super::run_ready_tasks().await,
            Step::Call(kind) => {
                let kind = if kind >= BULK_CALL { kind } else { kind % 2 };
                let called = call(other.clone(), kind).await;
                called.expect("it succeeds");
            }
            Step::Act(_) => drop(tokio::spawn(call(other.clone(), 2))),
        }
    }
    super::run_ready_tasks().await;
    // Calls and one-way calls of the peer, and calls of the other client.
    assert!(
        handlers.count() <= 3 * usize::from(CALLS),
        "{}",
        handlers.count()
    );
    receive(&mut peer);
    call(other.clone(), 0).await.expect("it succeeds");
    drop(peer);
    // Longer than the duration of the other client's calls.
    sleep(Duration::from_secs(20)).await;
    assert_eq!(handlers.count(), 0, "handlers of a disconnected peer");
    call(other, 0).await.expect("it succeeds");
    server.shutdown().await;
}

/// Receives all messages that the server has sent to `peer`, the test's end of a connection. Panics
/// if a message is too long or is not in the wire format.
fn receive(peer: &mut RawPeer) {
    while let Some(message) = peer.try_receive() {
        assert!(
            message.len() <= 8 << 10,
            "a message of {} bytes",
            message.len()
        );
        read(&message).expect("a server sends valid messages");
    }
}
