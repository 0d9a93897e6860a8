//! [`Transport`]: RDMA or TCP, with the types that servers and clients of HTTP and gRPC need.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::Uri;
use axum::serve::Listener;
use futures_util::Stream;
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rdma_async::{Incoming, RdmaBuilder, RdmaConnector, RdmaListener, RdmaStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tower::Service;

use crate::in_time;

/// Address at which the servers of the tests listen. Port 0, so that the system chooses a free
/// port.
const LOOPBACK: &str = "127.0.0.1:0";

/// Transport over which a test runs: [`Rdma`], or [`Tcp`] for comparison.
pub trait Transport: Send + Sync + 'static {
    /// Type of a connection, a stream of bytes.
    type Stream: AsyncRead
        + AsyncWrite
        + Connected<ConnectInfo = TcpConnectInfo>
        + Connection
        + Unpin
        + Send
        + 'static;

    /// Type of a listener, which can be passed to `axum::serve`.
    type Listener: Listener<Io = Self::Stream, Addr = SocketAddr>;

    /// Type of a stream of accepted connections, which can be passed to tonic's
    /// `serve_with_incoming`.
    type Incoming: Stream<Item = io::Result<Self::Stream>> + Send + Unpin + 'static;

    /// Type of a connector, by which the clients of hyper and tonic open connections.
    type Connector: Service<
            Uri,
            Response = TokioIo<Self::Stream>,
            Error: std::error::Error + Send + Sync + 'static,
            Future: Send + Unpin,
        > + Clone
        + Send
        + Sync
        + 'static;

    /// Name of the transport.
    const NAME: &str;

    /// Listens at a free port.
    fn listen() -> impl Future<Output = Self::Listener> + Send;

    /// Returns the connections of a listener as a stream.
    fn incoming(listener: Self::Listener) -> Self::Incoming;

    /// Creates a connector for a client of hyper or tonic.
    fn connector() -> Self::Connector;

    /// Connects to a server.
    fn connect(address: SocketAddr) -> impl Future<Output = Self::Stream> + Send;

    /// Returns the TCP address of this end of a connection.
    fn local_address(stream: &Self::Stream) -> SocketAddr {
        let address = stream.connect_info().local_addr;
        address.expect("a connection has an address")
    }
}

/// The transport RDMA: tests use streams of rdma-async, on the device that the environment variable
/// `RDMA_DEVICE` names, or else on softroce.
#[derive(Debug)]
pub struct Rdma;

/// Returns the builder of the RDMA connections: the default settings with long timeouts.
pub fn builder() -> RdmaBuilder {
    let limit = Duration::from_secs(60);
    let builder = RdmaBuilder::default();
    let builder = builder.connect_timeout(limit).response_timeout(limit);
    match std::env::var_os("RDMA_DEVICE") {
        Some(_) => builder,
        None => builder.device("softroce0"),
    }
}

impl Transport for Rdma {
    type Stream = RdmaStream;
    type Listener = RdmaListener;
    type Incoming = Incoming;
    type Connector = RdmaConnector;

    const NAME: &str = "rdma";

    async fn listen() -> RdmaListener {
        builder().bind(LOOPBACK).await.expect("a listener")
    }

    fn incoming(listener: RdmaListener) -> Incoming {
        listener.incoming()
    }

    fn connector() -> RdmaConnector {
        RdmaConnector::new(builder())
    }

    async fn connect(address: SocketAddr) -> RdmaStream {
        let connected = builder().connect(address).await;
        connected.expect("a connection").into_stream()
    }
}

/// The transport TCP: tests use tokio's TCP connections, to prove that the test itself is correct.
#[derive(Debug)]
pub struct Tcp;

impl Transport for Tcp {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Incoming = TcpListenerStream;
    type Connector = HttpConnector;

    const NAME: &str = "tcp";

    async fn listen() -> TcpListener {
        TcpListener::bind(LOOPBACK).await.expect("a listener")
    }

    fn incoming(listener: TcpListener) -> TcpListenerStream {
        TcpListenerStream::new(listener)
    }

    fn connector() -> HttpConnector {
        HttpConnector::new()
    }

    async fn connect(address: SocketAddr) -> TcpStream {
        TcpStream::connect(address).await.expect("a connection")
    }
}

/// Creates a connection, and returns the connecting end and the accepting end.
pub async fn pair<T: Transport>() -> (T::Stream, T::Stream) {
    let mut listener = T::listen().await;
    let address = listener.local_addr().expect("its address");
    let both = async { tokio::join!(T::connect(address), listener.accept()) };
    let (client, (server, _)) = in_time("connecting", both).await;
    (client, server)
}
