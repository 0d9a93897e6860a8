//! Common code of the tests in this directory. The environment variable `RDMA_DEVICE` selects the
//! RDMA device; the default is softroce.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "every test program uses a part of it"
)]

pub(crate) mod chance;
pub(crate) mod frames;
pub(crate) mod held;
#[path = "../../../rdma-async/tests/common/namespace.rs"]
pub(crate) mod namespace;
pub(crate) mod program;
pub(crate) mod raw;
#[path = "../../../rdma-async/tests/common/second_host.rs"]
pub(crate) mod second_host;

use std::fmt::Display;
use std::time::Duration;

use rdma_async::RdmaBuilder;
use rdma_rpc::{
    Address, Client, ClientBuilder, Context, Payload, Receiver, Sender, Server, ServerHandle,
};

/// Time limit of each step, sufficient for an emulated device on a loaded machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Waits for a future. Panics after [`LIMIT`].
pub(crate) async fn within<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(LIMIT, future)
        .await
        .unwrap_or_else(|_| panic!("{what} took longer than {LIMIT:?}"))
}

/// Returns the RDMA settings of all connections: the defaults, with the device under test.
pub(crate) fn transport() -> RdmaBuilder {
    let transport = RdmaBuilder::default();
    match std::env::var_os("RDMA_DEVICE") {
        Some(_) => transport,
        None => transport.device("softroce0"),
    }
}

/// Address at which a server of a test listens.
pub(crate) fn rdma() -> Address {
    "rdma://127.0.0.1:0".parse().unwrap()
}

pub(crate) fn tcp() -> Address {
    "tcp://127.0.0.1:0".parse().unwrap()
}

pub(crate) fn memory() -> Address {
    Address::memory()
}

/// Returns another address with the same transport.
pub(crate) fn another(address: &Address) -> Address {
    match address.to_string().as_str() {
        "memory" => Address::memory(),
        text => text.parse().unwrap(),
    }
}

/// Defines a test for each transport from each function. The variant for RDMA and TCP is for tests
/// with raw peers, which cannot use memory.
macro_rules! over_every_transport {
    (@rdma_and_tcp $($name:ident;)*) => {
        over_every_transport!(@module rdma $($name)*);
        over_every_transport!(@module tcp $($name)*);
    };
    ($($(#[$attribute:meta])* $name:ident;)*) => {
        over_every_transport!(@module rdma $($(#[$attribute])* $name)*);
        over_every_transport!(@module tcp $($(#[$attribute])* $name)*);
        over_every_transport!(@module memory $($(#[$attribute])* $name)*);
    };
    (@module $transport:ident $($(#[$attribute:meta])* $name:ident)*) => {
        mod $transport {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                $(#[$attribute])*
                async fn $name() {
                    super::$name(crate::common::$transport()).await;
                }
            )*
        }
    };
}
pub(crate) use over_every_transport;

/// Returns a client builder for the device under test, with the deadline [`LIMIT`].
pub(crate) fn client() -> ClientBuilder {
    Client::builder().transport(transport()).deadline(LIMIT)
}

/// Starts a server at an address of this machine.
pub(crate) async fn listen(server: Server, address: Address) -> ServerHandle {
    within("listening", server.transport(transport()).listen(address))
        .await
        .expect("the device can be used")
}

/// Connects a client.
pub(crate) async fn connect(server: &ServerHandle) -> Client {
    within("connecting", client().connect(server.address()))
        .await
        .expect("a server listens")
}

/// Error type of the test service.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Refusal {
    Empty,
    NotFound { key: String },
}

impl Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Test service with a method of every kind.
#[rdma_rpc::service]
pub(crate) trait Everything {
    async fn echo(&self, text: String) -> Result<String, Refusal>;
    async fn add(&self, cx: &Context, left: u64, right: u64) -> Result<u64, Refusal>;
    async fn nothing(&self) -> Result<(), Refusal>;
    async fn find(&self, key: String) -> Result<u32, Refusal>;
    #[rpc(raw)]
    async fn reverse(&self, bytes: Payload) -> Result<Vec<u8>, Refusal>;
    async fn text(&self, len: u64) -> Result<String, Refusal>;
    /// Returns the sum of the items.
    async fn sum(&self, start: u64, numbers: Receiver<u64>) -> Result<u64, Refusal>;
    /// Sends the numbers below `count`, each as a text of `len` bytes or more.
    async fn count(
        &self,
        cx: &Context,
        count: u64,
        len: u64,
        numbers: Sender<(u64, String)>,
    ) -> Result<u64, Refusal>;
    async fn double(&self, numbers: Receiver<u64>, doubled: Sender<u64>) -> Result<u64, Refusal>;
    #[rpc(oneway)]
    async fn note(&self, text: String);
}

/// Service that computes its results.
#[derive(Debug, Default)]
pub(crate) struct Computing {
    pub(crate) notes: Option<tokio::sync::mpsc::UnboundedSender<String>>,
}

impl Everything for Computing {
    async fn echo(&self, text: String) -> Result<String, Refusal> {
        match text.as_str() {
            "" => Err(Refusal::Empty),
            _ => Ok(text),
        }
    }

    async fn add(&self, cx: &Context, left: u64, right: u64) -> Result<u64, Refusal> {
        assert!(!cx.is_cancelled());
        Ok(left + right)
    }

    async fn nothing(&self) -> Result<(), Refusal> {
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn find(&self, key: String) -> Result<u32, Refusal> {
        Err(Refusal::NotFound { key })
    }

    async fn reverse(&self, bytes: Payload) -> Result<Vec<u8>, Refusal> {
        Ok(bytes.iter().rev().copied().collect())
    }

    async fn text(&self, len: u64) -> Result<String, Refusal> {
        Ok("x".repeat(usize::try_from(len).unwrap()))
    }

    async fn sum(&self, start: u64, mut numbers: Receiver<u64>) -> Result<u64, Refusal> {
        let mut sum = start;
        while let Some(number) = numbers.next().await {
            match number {
                Ok(number) => sum += number,
                Err(_) => return Err(Refusal::Empty),
            }
        }
        Ok(sum)
    }

    async fn count(
        &self,
        _: &Context,
        count: u64,
        len: u64,
        mut numbers: Sender<(u64, String)>,
    ) -> Result<u64, Refusal> {
        for number in 0..count {
            // Every tenth item is long.
            let len = if number % 10 == 7 { len } else { 3 };
            let text = "n".repeat(usize::try_from(len).unwrap());
            if numbers.send((number, text)).await.is_err() {
                return Err(Refusal::Empty);
            }
        }
        match count {
            13 => Err(Refusal::NotFound {
                key: "13".to_owned(),
            }),
            _ => Ok(count),
        }
    }

    async fn double(
        &self,
        mut numbers: Receiver<u64>,
        mut doubled: Sender<u64>,
    ) -> Result<u64, Refusal> {
        let mut count = 0;
        while let Some(Ok(number)) = numbers.next().await {
            if doubled.send(2 * number).await.is_err() {
                return Err(Refusal::Empty);
            }
            count += 1;
        }
        Ok(count)
    }

    async fn note(&self, text: String) {
        if let Some(notes) = &self.notes {
            drop(notes.send(text));
        }
    }
}

/// Starts a server of [`Computing`], and connects its only client.
pub(crate) async fn pair(address: Address) -> (ServerHandle, EverythingClient) {
    let server = Server::new(EverythingServer::new(Computing::default()));
    let server = listen(server, address).await;
    let client = connect(&server).await;
    (server, EverythingClient::new(client))
}

/// Checks that a connection works.
pub(crate) async fn assert_echoes(client: &EverythingClient) {
    let echoed = within("an echo", client.echo("are you there?".to_owned()))
        .await
        .expect("the connection is usable");
    assert_eq!(echoed, "are you there?");
}
