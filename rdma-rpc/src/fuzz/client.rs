//! Fuzz target: a client whose server sends arbitrary bytes.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::calls::{BULK_LIMIT, call};
use super::frames::read;
use super::peer::RawPeer;
use super::script::{Script, Step};
use crate::address::Address;
use crate::client::{Client, ClientBuilder};
use crate::error::Error;
use crate::outbox::MAX_BATCH_LEN;
use crate::wire::{Header, MESSAGE_HEADER_LEN, Settings, write_message_header};

/// Tests a client whose server sends arbitrary messages. `bytes` describes the messages and the
/// calls of the client. Panics if the client sends an invalid message or a call never ends.
pub fn client(bytes: &[u8]) {
    super::run(connect(bytes));
}

/// Connects a client to a fuzzed server, executes the steps in `bytes`, and checks that all calls
/// end.
async fn connect(bytes: &[u8]) {
    let address = Address::memory();
    let mut listener = RawPeer::listen(&address).await;
    let connecting = tokio::spawn(builder().connect(address));
    let mut peer = RawPeer::accept(&mut listener).await;
    peer.send(settings());
    let connected = connecting.await.expect("connecting does not panic");
    let client = connected.expect("the settings have arrived");
    let mut calls: Vec<JoinHandle<Result<(), Error>>> = Vec::new();
    for step in Script::new(bytes).steps() {
        match step {
            Step::Message(message) => drop(peer.send(message)),
            Step::Pause(time) => sleep(time).await,
            Step::Receive => receive(&mut peer),
            Step::RunTasks => super::run_ready_tasks().await,
            Step::Call(kind) => calls.push(tokio::spawn(call(client.clone(), kind))),
            Step::Act(number) if !calls.is_empty() => {
                let number = usize::from(number) % calls.len();
                calls.swap_remove(number).abort();
            }
            Step::Act(_) => {}
        }
    }
    super::run_ready_tasks().await;
    receive(&mut peer);
    drop(peer);
    for call in calls {
        let ended = timeout(Duration::from_secs(60), call).await;
        let outcome = ended.expect("a call of an ended connection ends");
        drop(outcome.expect("a call does not panic"));
    }
    let ended = timeout(Duration::from_secs(60), client.ended()).await;
    ended.expect("the connection ends");
    let outcome = call(client, 0).await;
    assert!(outcome.is_err(), "a call after the end");
}

/// Returns the builder of the fuzzed client. The limits of the client are low, so that the short
/// inputs of the fuzzer reach them.
fn builder() -> ClientBuilder {
    Client::builder().concurrency(4).bulk_limit(BULK_LIMIT)
}

/// Returns a valid message with the settings of a server. The test sends this message first, in the
/// role of the server.
fn settings() -> Vec<u8> {
    let header = Header::Settings(Settings {
        message_limit: 1 << 20,
        slots: 3,
        window_items: 0,
        window_bytes: 0,
    });
    let mut message = vec![0; MESSAGE_HEADER_LEN + header.len()];
    write_message_header(&mut message, 1);
    header.write(&mut message[MESSAGE_HEADER_LEN..], 0);
    message
}

/// Receives all messages that the client has sent to `peer`, and checks that every message is
/// valid.
fn receive(peer: &mut RawPeer) {
    while let Some(message) = peer.try_receive() {
        let frames = read(&message).expect("a client sends valid messages");
        assert!(frames.len() == 1 || message.len() <= MAX_BATCH_LEN);
    }
}
