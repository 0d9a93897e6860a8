//! [`PreparedRdma`] and [`Exchange`]: connections whose endpoints the program exchanges itself, for
//! example by MPI or a key-value store.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::time::timeout;

use crate::builder::RdmaBuilder;
use crate::connection::{Attached, ControlTask, Link};
use crate::connector::{Connector, Listener};
use crate::error::{Error, Result};
use crate::handshake::{HELLO_LEN, Hello, LocalEnd, READY};
use crate::rdma::Rdma;

/// One end of a connection that is not yet connected, and whose endpoints the program exchanges
/// itself. Created by [`RdmaBuilder::prepare`].
///
/// The connection uses no TCP connection. An end that closes the connection sends a message to the
/// peer. If the peer's program or host fails, the next request is not acknowledged, which ends the
/// connection. After half of [`RdmaBuilder::keep_alive`] without operations, this end sends a test
/// request.
///
/// ```
/// use rdma_async::RdmaDevice;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let device = RdmaDevice::open_default()?;
/// let (left, right) = (device.builder().prepare()?, device.builder().prepare()?);
/// // The program passes the bytes of each end to the other end.
/// let (to_right, to_left) = (left.hello(), right.hello());
/// let (left, right) = (left.connect(&to_left)?, right.connect(&to_right)?);
/// // Both ends are connected, so either may send.
/// let message = left.alloc_local_mr(std::alloc::Layout::new::<[u8; 8]>())?;
/// left.send(&message).await?;
/// right.receive().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the value cancels the connection"]
pub struct PreparedRdma {
    local: LocalEnd,
}

impl RdmaBuilder {
    /// Creates one end of a connection whose endpoints the program exchanges itself. The peer
    /// creates the other end by the same function. [`Self::toward`] selects the GID by the address
    /// of the peer's host.
    ///
    /// Must be called on the runtime that will drive the connection.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used, and [`Error::InvalidArgument`] if an
    /// [authenticator](Self::authenticator) is set: the exchange of the program must authenticate
    /// the peer.
    pub fn prepare(self) -> Result<PreparedRdma> {
        let template = self.template()?;
        if template.settings.authenticator.is_some() {
            let reason = "a program that exchanges endpoints must authenticate the peer itself";
            return Err(Error::invalid("authenticator", reason));
        }
        let choice = template.settings.address;
        let local = LocalEnd::prepare(template, choice)?;
        Ok(PreparedRdma { local })
    }

    /// Creates a [`Connector`] and [`Listener`] whose connections need no TCP connection: the
    /// function `exchange` of the program passes bytes to the peer and returns the peer's bytes,
    /// see [`Exchange`].
    pub fn exchange<F, Fut>(self, exchange: F) -> Exchange<F>
    where
        F: Fn(Vec<u8>) -> Fut + Send + Sync,
        Fut: Future<Output = io::Result<Vec<u8>>> + Send,
    {
        Exchange {
            builder: self,
            exchange,
        }
    }
}

impl PreparedRdma {
    /// Returns the bytes that the peer needs to connect to this end: the endpoint of the queue pair
    /// and the limits of this end.
    pub fn hello(&self) -> Vec<u8> {
        self.local.hello().encode().to_vec()
    }

    /// Connects this end to the peer. `peer` are the bytes that [`Self::hello`] has returned at the
    /// peer. Sends nothing.
    ///
    /// **Neither end may send before both ends are connected.** The program must ensure this order,
    /// for example by a barrier; [`Exchange`] ensures it. A message to an end that is not connected
    /// is lost, and the connection ends after the last retransmission.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `peer` is not a valid hello, [`Error::Handshake`] if the
    /// device cannot reach the endpoint.
    pub fn connect(self, peer: &[u8]) -> Result<Rdma> {
        let invalid = |reason: String| Error::invalid("hello of the peer", reason);
        let bytes: &[u8; HELLO_LEN] = peer.try_into().map_err(|_| {
            let len = peer.len();
            invalid(format!("{len} bytes instead of {HELLO_LEN}"))
        })?;
        let remote = Hello::decode(bytes).map_err(invalid)?;
        let address = |hello: &Hello| SocketAddr::new(hello.endpoint.gid.to_ip(), 0);
        let (own, theirs) = (address(&self.local.hello()), address(&remote));
        let (queue_pair, room) = self
            .local
            .connect(&remote.endpoint)
            .map_err(|error| crate::handshake::connect_error(theirs, error))?;
        let connection = room.into_connection(queue_pair, remote.limits, theirs.ip());
        let link = Link::in_band(&connection);
        let task = ControlTask::spawn(Attached::new(&connection), link);
        Ok(Rdma::new(connection, task, own, theirs))
    }
}

/// A [`Connector`] and [`Listener`] that exchanges endpoints by a function of the program. Created
/// by [`RdmaBuilder::exchange`].
///
/// The function is asynchronous: it passes bytes to the peer, and returns the bytes that the peer
/// passed. Each end calls the function twice for each connection: first with its hello, and then
/// with one byte that confirms that the end is connected.
///
/// ```
/// use rdma_async::{Connector, Listener, RdmaDevice};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// use tokio::sync::Mutex;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let device = RdmaDevice::open_default()?;
/// // The exchange of this program uses a pipe. Both ends pass equal numbers of bytes.
/// let (left, right) = tokio::io::duplex(1024);
/// let (left, right) = (Mutex::new(left), Mutex::new(right));
/// async fn pass(pipe: &Mutex<tokio::io::DuplexStream>, own: Vec<u8>) -> std::io::Result<Vec<u8>> {
///     let mut pipe = pipe.lock().await;
///     pipe.write_all(&own).await?;
///     let mut theirs = vec![0; own.len()];
///     pipe.read_exact(&mut theirs).await?;
///     Ok(theirs)
/// }
/// let connector = device.builder().exchange(|own| pass(&left, own));
/// let mut listener = device.builder().exchange(|own| pass(&right, own));
/// let (client, server) = tokio::try_join!(connector.connect(), listener.accept())?;
/// # drop((client, server));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Exchange<F> {
    builder: RdmaBuilder,
    exchange: F,
}

impl<F> fmt::Debug for Exchange<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("builder", &self.builder)
            .finish_non_exhaustive()
    }
}

impl<F, Fut> Exchange<F>
where
    F: Fn(Vec<u8>) -> Fut + Send + Sync,
    Fut: Future<Output = io::Result<Vec<u8>>> + Send,
{
    /// Connects within the time limit of connecting.
    async fn establish(&self) -> Result<Rdma> {
        let limit = self.builder.connect_limit();
        let what = "connecting";
        timeout(limit, self.establish_unbounded())
            .await
            .unwrap_or(Err(Error::Timeout { what, limit }))
    }

    /// Connects without a time limit: exchanges the hellos of both ends, connects, and exchanges
    /// the confirmations.
    async fn establish_unbounded(&self) -> Result<Rdma> {
        let failed = |source| Error::tcp("exchanging", "hellos with the peer", source);
        let prepared = self.builder.clone().prepare()?;
        let theirs = (self.exchange)(prepared.hello()).await.map_err(failed)?;
        let rdma = prepared.connect(&theirs)?;
        match (self.exchange)(vec![READY]).await.map_err(failed)?[..] {
            [READY] => Ok(rdma),
            _ => Err(crate::handshake::refused(
                rdma.peer_address(),
                "the peer did not confirm that it is connected",
            )),
        }
    }
}

impl<F, Fut> Connector for Exchange<F>
where
    F: Fn(Vec<u8>) -> Fut + Send + Sync,
    Fut: Future<Output = io::Result<Vec<u8>>> + Send,
{
    async fn connect(&self) -> Result<Rdma> {
        self.establish().await
    }
}

impl<F, Fut> Listener for Exchange<F>
where
    F: Fn(Vec<u8>) -> Fut + Send + Sync,
    Fut: Future<Output = io::Result<Vec<u8>>> + Send,
{
    async fn accept(&mut self) -> Result<Rdma> {
        self.establish().await
    }
}
