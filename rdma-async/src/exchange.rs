//! [`PreparedRdma`] and [`Exchange`]: connections whose endpoints the program exchanges itself, for
//! example by MPI or a key-value store.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::timeout;

use crate::authentication::{Authenticator, End, MAX_TOKEN_LEN, NONCE_LEN, Transcript, nonce};
use crate::builder::RdmaBuilder;
use crate::connection::{Attached, ControlTask, Link};
use crate::connector::{Connector, Listener};
use crate::error::{Error, Result};
use crate::handshake::{HELLO_LEN, Hello, LocalEnd, READY};
use crate::rdma::Rdma;

/// One end of a connection that is not yet connected. The program itself exchanges the endpoints
/// (the addresses of the two queue pairs) between the ends. Created by [`RdmaBuilder::prepare`].
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
    own_proof: Option<OwnProof>,
}

/// The authenticator and the nonce (random bytes) of this end. The end computes its token from
/// both, and proves by the token that it may connect.
#[derive(Debug)]
struct OwnProof {
    authenticator: Arc<dyn Authenticator>,
    nonce: [u8; NONCE_LEN],
}

/// First bytes of the data from which this module computes authentication tokens (proofs that an
/// end may connect). Other ways of connecting use other data, so their tokens are not valid here.
const TRANSCRIPT_LABEL: &[u8] = b"exchanged";

impl RdmaBuilder {
    /// Creates one end of a connection for which the program itself passes data between the two
    /// ends. The peer creates the other end by the same function. Each end passes its
    /// [hello](PreparedRdma::hello), the bytes that the other end needs to connect. With an
    /// [authenticator](Self::authenticator), each end also passes its [proof](PreparedRdma::proof).
    /// [`Self::toward`] or [`Self::gid_index`] can select the GID.
    ///
    /// The program must call this function on the runtime that will drive the connection.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot be used.
    pub fn prepare(self) -> Result<PreparedRdma> {
        let template = self.template()?;
        let authenticator = template.settings.authenticator.clone();
        let own_proof = match authenticator {
            Some(authenticator) => Some(OwnProof {
                authenticator,
                nonce: nonce()?,
            }),
            None => None,
        };
        let choice = template.settings.address;
        let local = LocalEnd::prepare(template, choice)?;
        Ok(PreparedRdma { local, own_proof })
    }

    /// Creates a [`Connector`] and [`Listener`] whose connections need no TCP connection.
    /// `exchange` is a function of the program that passes bytes to the peer and returns the peer's
    /// bytes. [`Exchange`] describes the calls of this function.
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
    /// and the limits of this end. With an [authenticator](RdmaBuilder::authenticator), the bytes
    /// also contain the nonce (random bytes) of this end.
    pub fn hello(&self) -> Vec<u8> {
        let hello = self.local.hello().encode();
        match &self.own_proof {
            Some(own) => [&hello[..], &own.nonce].concat(),
            None => hello.to_vec(),
        }
    }

    /// Returns the token that proves to the peer that this end may connect. `peer` is the hello of
    /// the peer: the bytes that [`Self::hello`] returns at the other end. The program passes the
    /// token to the peer, which needs it for [`Self::connect_authenticated`]. The token is valid
    /// only for the hellos of these two ends.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `peer` is not a valid hello of an end with an authenticator.
    /// [`Error::InvalidArgument`] if this end has no [authenticator](RdmaBuilder::authenticator).
    pub fn proof(&self, peer: &[u8]) -> Result<Vec<u8>> {
        let remote = self.decode(peer)?;
        let own = self.own_proof()?;
        let (this_end, _) = own.roles(peer);
        let transcript = self.transcript(this_end, peer, &remote);
        Ok(own.authenticator.token(&transcript))
    }

    /// Connects this end to the peer. `peer` is the hello of the peer: the bytes that
    /// [`Self::hello`] returns at the other end. Sends nothing.
    ///
    /// **Neither end may send before both ends are connected.** The program must ensure this order,
    /// for example by a barrier; [`Exchange`] ensures it. A message to an end that is not connected
    /// is lost, and the connection ends after the last retransmission.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `peer` is not a valid hello. [`Error::InvalidArgument`] also
    /// if this end has an [authenticator](RdmaBuilder::authenticator): such an end needs
    /// [`Self::connect_authenticated`]. [`Error::Handshake`] if the device cannot reach the
    /// endpoint.
    pub fn connect(self, peer: &[u8]) -> Result<Rdma> {
        if self.own_proof.is_some() {
            let reason = "the proof of the peer is needed: call `connect_authenticated`";
            return Err(Error::invalid("authenticator", reason));
        }
        let remote = self.decode(peer)?;
        self.connect_to(&remote)
    }

    /// Connects this end to the peer like [`Self::connect`], if the proof of the peer is valid.
    /// `peer` is the hello of the peer, and `proof` is the token that [`Self::proof`] returns at
    /// the other end.
    ///
    /// ```
    /// use rdma_async::{RdmaDevice, SharedSecret};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// let device = RdmaDevice::open_default()?;
    /// let secret = SharedSecret::new(b"the secret of this cluster")?;
    /// let prepare = || device.builder().authenticator(secret.clone()).prepare();
    /// let (left, right) = (prepare()?, prepare()?);
    /// // The program passes the hello, and then the proof, of each end to the other end.
    /// let (to_right, to_left) = (left.hello(), right.hello());
    /// let (of_left, of_right) = (left.proof(&to_left)?, right.proof(&to_right)?);
    /// let left = left.connect_authenticated(&to_left, &of_right)?;
    /// let right = right.connect_authenticated(&to_right, &of_left)?;
    /// # drop((left, right));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Self::proof`]. [`Error::Handshake`] if the authenticator refuses the proof
    /// or the device cannot reach the endpoint.
    pub fn connect_authenticated(self, peer: &[u8], proof: &[u8]) -> Result<Rdma> {
        let remote = self.decode(peer)?;
        let own = self.own_proof()?;
        let (_, peer_end) = own.roles(peer);
        let transcript = self.transcript(peer_end, peer, &remote);
        let checked = match proof.len() {
            0..=MAX_TOKEN_LEN => own.authenticator.check(&transcript, proof),
            len => Err(format!("a token of {len} bytes")),
        };
        if let Err(reason) = checked {
            let reason = format!("authentication failed: {reason}");
            return Err(crate::handshake::refused(transcript.peer(), reason));
        }
        self.connect_to(&remote)
    }

    /// Decodes `peer`, the hello (first message) of the peer. Fails if the hello is not valid, or
    /// if its nonce (random bytes) equals the nonce of this end. The hello must contain a nonce if
    /// this end has an authenticator, and no nonce otherwise.
    fn decode(&self, peer: &[u8]) -> Result<Hello> {
        const WITH_NONCE: usize = HELLO_LEN + NONCE_LEN;
        let invalid = |reason: String| Error::invalid("hello of the peer", reason);
        match (peer.len(), &self.own_proof) {
            (HELLO_LEN, None) => {}
            (WITH_NONCE, Some(own)) if peer[HELLO_LEN..] != own.nonce => {}
            (WITH_NONCE, Some(_)) => {
                return Err(invalid("the nonce of this end was sent back".to_owned()));
            }
            (HELLO_LEN, Some(_)) => {
                return Err(invalid("it does not authenticate itself".to_owned()));
            }
            (WITH_NONCE, None) => {
                let reason = "it requires authentication (RdmaBuilder::authenticator)";
                return Err(invalid(reason.to_owned()));
            }
            (len, _) => {
                let expected = self.hello().len();
                return Err(invalid(format!("{len} bytes instead of {expected}")));
            }
        }
        let bytes = peer[..HELLO_LEN].try_into().expect("the length of a hello");
        Hello::decode(bytes).map_err(invalid)
    }

    fn own_proof(&self) -> Result<&OwnProof> {
        self.own_proof
            .as_ref()
            .ok_or_else(|| Error::invalid("authenticator", "this end has no authenticator"))
    }

    /// Returns the data from which `prover`, one of the two ends, computes its token (the proof
    /// that it may connect). The data are the handshake messages of both ends, with their nonces
    /// (random bytes). `peer` contains the bytes of the peer's message, and `remote` its decoded
    /// fields.
    fn transcript(&self, prover: End, peer: &[u8], remote: &Hello) -> Transcript {
        let own = self.hello();
        // The nonces decide which end counts as the connecting end, so both ends sort equally.
        let [first, second] = match own[HELLO_LEN..] < peer[HELLO_LEN..] {
            true => [&own[..], peer],
            false => [peer, &own[..]],
        };
        Transcript::new(prover, address(remote), [TRANSCRIPT_LABEL, first, second])
    }

    fn connect_to(self, remote: &Hello) -> Result<Rdma> {
        let (own, theirs) = (address(&self.local.hello()), address(remote));
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

impl OwnProof {
    /// Returns the roles of this end and of the peer in the authentication. The end with the lesser
    /// nonce (random bytes) counts as the connecting end, because neither end listens. `peer` is
    /// the handshake message of the peer, which ends with its nonce.
    fn roles(&self, peer: &[u8]) -> (End, End) {
        match self.nonce[..] < peer[HELLO_LEN..] {
            true => (End::Connecting, End::Accepting),
            false => (End::Accepting, End::Connecting),
        }
    }
}

/// Returns the address of the end that has sent `hello` (its first handshake message): the IP
/// address in its GID. The port is 0, because a hello contains no port.
fn address(hello: &Hello) -> SocketAddr {
    SocketAddr::new(hello.endpoint.gid.to_ip(), 0)
}

/// Way to establish connections without TCP: a function of the program passes the handshake
/// messages between the two ends. This type is both a [`Connector`] and a [`Listener`]. Created by
/// [`RdmaBuilder::exchange`].
///
/// The function is asynchronous: it passes bytes to the peer, and returns the bytes that the peer
/// passed. Each end calls the function twice for each connection: first with its hello (its address
/// and parameters), and then with one byte that confirms that the end is connected. With an
/// [authenticator](RdmaBuilder::authenticator), each end passes its token between the two calls.
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
    /// Connects to the peer. Exchanges the handshake messages by calling the function that the
    /// program has set by [`RdmaBuilder::exchange`]. Fails if the handshake takes longer than the
    /// time limit of connecting.
    async fn establish(&self) -> Result<Rdma> {
        let limit = self.builder.connect_limit();
        let what = "connecting";
        timeout(limit, self.establish_unbounded())
            .await
            .unwrap_or(Err(Error::Timeout { what, limit }))
    }

    /// Connects without a time limit. Exchanges the hellos (first messages) of both ends, connects
    /// the queue pair, and exchanges the confirmations.
    async fn establish_unbounded(&self) -> Result<Rdma> {
        let failed = |source| Error::tcp("exchanging", "hellos with the peer", source);
        let prepared = self.builder.clone().prepare()?;
        let theirs = (self.exchange)(prepared.hello()).await.map_err(failed)?;
        let rdma = match prepared.own_proof {
            Some(_) => {
                let own = prepared.proof(&theirs)?;
                let proof = (self.exchange)(own).await.map_err(failed)?;
                prepared.connect_authenticated(&theirs, &proof)?
            }
            None => prepared.connect(&theirs)?,
        };
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
