//! Common parts of the tests of this directory. The device is the one that `RDMA_DEVICE` selects,
//! otherwise softroce.

#![allow(dead_code, reason = "every test program uses a part of it")]

use std::time::Duration;

use rdma_async::RdmaBuilder;
use rdma_rpc::{ApplicationError, Client, ClientBuilder, Router, Server, ServerHandle};

/// Time limit of each step. The device may be emulated, on a machine with other work.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Waits for a future. Panics after [`LIMIT`].
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(LIMIT, future)
        .await
        .unwrap_or_else(|_| panic!("{what} took longer than {LIMIT:?}"))
}

/// Returns the settings of all connections: the defaults, on the device under test.
pub(crate) fn transport() -> RdmaBuilder {
    let transport = RdmaBuilder::default();
    match std::env::var_os("RDMA_DEVICE") {
        Some(_) => transport,
        None => transport.device("softroce0"),
    }
}

/// Returns a client builder for the device under test.
pub(crate) fn client() -> ClientBuilder {
    Client::builder().transport(transport())
}

/// Starts a server of a router at a free port of this machine.
pub(crate) async fn serve(router: Router) -> ServerHandle {
    listen(Server::new(router)).await
}

/// Starts a server at a free port of this machine.
pub(crate) async fn listen(server: Server) -> ServerHandle {
    within(
        "listening",
        server.transport(transport()).listen("127.0.0.1:0"),
    )
    .await
    .expect("the device can be used")
}

/// Connects a client whose calls have [`LIMIT`] as deadline.
pub(crate) async fn connect(server: &ServerHandle) -> Client {
    let connecting = client().deadline(LIMIT).connect(server.local_address());
    within("connecting", connecting)
        .await
        .expect("a server listens")
}

/// Starts a server of a router, and connects its only client.
pub(crate) async fn pair(router: Router) -> (ServerHandle, Client) {
    let server = serve(router).await;
    let client = connect(&server).await;
    (server, client)
}

/// Handler that returns its argument.
pub(crate) async fn echo(text: String) -> Result<String, ApplicationError> {
    Ok(text)
}

/// Checks that a connection works.
pub(crate) async fn assert_echoes(client: &Client) {
    let echoed: String = within("an echo", client.call("test/echo", "are you there?"))
        .await
        .expect("the connection is usable");
    assert_eq!(echoed, "are you there?");
}
