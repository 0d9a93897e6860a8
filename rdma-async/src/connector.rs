//! [`Connector`] and [`Listener`]: traits for all methods of establishing connections.

use std::future::Future;

use tokio::net::ToSocketAddrs;

use crate::builder::RdmaBuilder;
use crate::error::Result;
use crate::listener::RdmaListener;
use crate::rdma::Rdma;

/// A way to connect to one peer. Each call of [`connect`](Self::connect) creates a new connection.
///
/// | type | means of the handshake | the peer uses |
/// |---|---|---|
/// | [`TcpConnector`] | TCP | [`RdmaListener`] |
/// | [`CmConnector`](crate::CmConnector) | the connection manager (rdma_cm) of the system | [`CmListener`](crate::CmListener) |
/// | [`Exchange`](crate::Exchange) | a function of the program | [`Exchange`](crate::Exchange) |
///
/// ```
/// use rdma_async::{Connector, Listener, Rdma, RdmaDevice};
///
/// /// Connects, and sends a first message.
/// async fn join(connector: &impl Connector) -> rdma_async::Result<Rdma> {
///     let rdma = connector.connect().await?;
///     let message = rdma.alloc_local_mr(std::alloc::Layout::new::<[u8; 8]>())?;
///     rdma.send(&message).await?;
///     Ok(rdma)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let device = RdmaDevice::open_default()?;
/// let mut listener = device.builder().bind("127.0.0.1:0").await?;
/// let connector = device.builder().connector(listener.local_address()?);
/// let (client, server) = tokio::try_join!(join(&connector), Listener::accept(&mut listener))?;
/// server.receive().await?;
/// # drop(client);
/// # Ok(())
/// # }
/// ```
pub trait Connector: Send + Sync {
    /// Connects to the peer.
    ///
    /// # Errors
    ///
    /// The error that prevented the connection, for example [`Error::Tcp`](crate::Error::Tcp) or
    /// [`Error::Handshake`](crate::Error::Handshake).
    fn connect(&self) -> impl Future<Output = Result<Rdma>> + Send;
}

/// An endpoint that accepts connections from peers, over TCP or by another means. The peers connect
/// by a [`Connector`].
pub trait Listener: Send {
    /// Waits until the next peer has connected, and returns its connection. Can be called again
    /// after an error of one peer.
    ///
    /// # Errors
    ///
    /// [`Error::Handshake`](crate::Error::Handshake) if the handshake of a peer failed. Otherwise
    /// the error of the device or of the operating system.
    fn accept(&mut self) -> impl Future<Output = Result<Rdma>> + Send;
}

impl Listener for RdmaListener {
    async fn accept(&mut self) -> Result<Rdma> {
        RdmaListener::accept(self).await
    }
}

/// Connector to the peer that listens at a TCP address, created by [`RdmaBuilder::connector`].
#[derive(Debug, Clone)]
pub struct TcpConnector<A> {
    builder: RdmaBuilder,
    address: A,
}

impl RdmaBuilder {
    /// Creates a connector to the peer that listens at a TCP address. A host name is resolved for
    /// each connection. The connections share one device if the builder was created by
    /// [`RdmaDevice::builder`](crate::RdmaDevice::builder).
    pub fn connector<A: ToSocketAddrs + Clone + Send + Sync>(self, address: A) -> TcpConnector<A> {
        TcpConnector {
            builder: self,
            address,
        }
    }
}

impl<A: ToSocketAddrs + Clone + Send + Sync> Connector for TcpConnector<A> {
    async fn connect(&self) -> Result<Rdma> {
        let address = self.address.clone();
        self.builder.clone().connect(address).await
    }
}
