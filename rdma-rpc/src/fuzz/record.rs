//! The recording of seed inputs: the messages between a client and a server during calls of every
//! kind.

use tokio::task::JoinHandle;

use super::calls::{BULK_CALL, CALL_KINDS, HandlerCount, call};
use super::peer::RawPeer;
use super::script::{write_call, write_message, write_run_tasks};
use crate::address::Address;
use crate::client::Client;
use crate::server::Server;

/// Valid messages of clients and servers that were recorded during calls. The fuzzer uses them as
/// its first inputs, and changes them to get further inputs.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Inputs of [`frames`](super::frames()).
    pub frames: Vec<Vec<u8>>,
    /// Inputs of [`server`](super::server()).
    pub server: Vec<Vec<u8>>,
    /// Inputs of [`client`](super::client()).
    pub client: Vec<Vec<u8>>,
}

/// Makes calls of every method of the fuzz targets' service. Returns the messages of these calls as
/// first inputs for the fuzzer.
pub fn record() -> Recorded {
    super::run(async {
        let mut recorded = Recorded::default();
        for kind in (0..2 * CALL_KINDS).chain([BULK_CALL]) {
            record_call(kind, &mut recorded).await;
        }
        recorded
    })
}

/// Makes the call that `kind` selects (see [`call`]) to a real server. Forwards each message
/// between the client and the server, and adds it to `recorded` as an input for the fuzzer.
async fn record_call(kind: u8, recorded: &mut Recorded) {
    let server = Server::new(HandlerCount::default())
        .listen(Address::memory())
        .await;
    let server = server.expect("the address is new");
    let address = Address::memory();
    let mut listener = RawPeer::listen(&address).await;
    let calling: JoinHandle<_> = tokio::spawn(async move {
        let client = Client::connect(address).await?;
        let outcome = call(client.clone(), kind).await;
        // The last frames of the client must be sent.
        super::run_ready_tasks().await;
        outcome
    });
    let mut to_client = RawPeer::accept(&mut listener).await;
    let mut to_server = RawPeer::connect(server.address()).await;
    let (mut client, mut of_server) = (Vec::new(), Vec::new());
    write_call(&mut client, kind);
    while !calling.is_finished() {
        // Advances the paused clock for handlers that sleep.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        while let Some(message) = to_client.try_receive() {
            recorded.frames.push(message.clone());
            write_message(&mut of_server, &message);
            write_run_tasks(&mut of_server);
            to_server.send(message);
        }
        super::run_ready_tasks().await;
        while let Some(message) = to_server.try_receive() {
            recorded.frames.push(message.clone());
            write_run_tasks(&mut client);
            write_message(&mut client, &message);
            to_client.send(message);
        }
    }
    let outcome = calling.await.expect("a call does not panic");
    outcome.expect("a call succeeds");
    recorded.server.push(of_server);
    recorded.client.push(client);
}
