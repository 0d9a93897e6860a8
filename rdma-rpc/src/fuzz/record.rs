//! Seeds: the messages of a client and a server that make calls of every kind.

use tokio::task::JoinHandle;

use super::calls::{BULKS, KINDS, Lives, call};
use super::peer::RawPeer;
use super::script::{write_call, write_message, write_settle};
use crate::address::Address;
use crate::client::Client;
use crate::server::Server;

/// Inputs of the targets.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Inputs of [`frames`](super::frames()).
    pub frames: Vec<Vec<u8>>,
    /// Inputs of [`server`](super::server()).
    pub server: Vec<Vec<u8>>,
    /// Inputs of [`client`](super::client()).
    pub client: Vec<Vec<u8>>,
}

/// Records the messages of calls of every kind.
pub fn record() -> Recorded {
    super::run(async {
        let mut recorded = Recorded::default();
        for kind in (0..2 * KINDS).chain([BULKS]) {
            record_call(kind, &mut recorded).await;
        }
        recorded
    })
}

/// Records a call. Its messages pass through this function on their way.
async fn record_call(kind: u8, recorded: &mut Recorded) {
    let server = Server::new(Lives::default())
        .listen(Address::memory())
        .await;
    let server = server.expect("nobody else listens");
    let address = Address::memory();
    let mut listener = RawPeer::listen(&address).await;
    let calling: JoinHandle<_> = tokio::spawn(async move {
        let client = Client::connect(address).await?;
        let outcome = call(client.clone(), kind).await;
        // The last frames of the client leave.
        super::settle().await;
        outcome
    });
    let mut to_client = RawPeer::accept(&mut listener).await;
    let mut to_server = RawPeer::connect(server.address()).await;
    let (mut client, mut of_server) = (Vec::new(), Vec::new());
    write_call(&mut client, kind);
    while !calling.is_finished() {
        // Time passes for the handlers that sleep.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        while let Some(message) = to_client.received() {
            recorded.frames.push(message.clone());
            write_message(&mut of_server, &message);
            write_settle(&mut of_server);
            to_server.send(message);
        }
        super::settle().await;
        while let Some(message) = to_server.received() {
            recorded.frames.push(message.clone());
            write_settle(&mut client);
            write_message(&mut client, &message);
            to_client.send(message);
        }
    }
    let outcome = calling.await.expect("a call does not panic");
    outcome.expect("a call succeeds");
    recorded.server.push(of_server);
    recorded.client.push(client);
}
