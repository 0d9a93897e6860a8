//! Authentication: the two ends of a new connection prove to each other that they may connect.

use std::fmt;
use std::net::SocketAddr;

use crate::error::{Error, Result};

/// Maximum length of an authentication token, in bytes. An end sends the token to prove that it may
/// connect. The maximum limits the memory that a peer can occupy before it is authenticated.
pub(crate) const MAX_TOKEN_LEN: usize = 1024;
/// Length of a nonce (random bytes of one handshake), in bytes: enough random bits that no two
/// nonces are equal.
pub(crate) const NONCE_LEN: usize = 32;

/// Returns a new nonce: random bytes for one handshake. Each end computes its token (the proof that
/// it may connect) from the nonces, so tokens differ between handshakes.
pub(crate) fn nonce() -> Result<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce)
        .map_err(|source| Error::tcp("generating", "a nonce", source.into()))?;
    Ok(nonce)
}

/// An authentication method for new connections: each end sends a token that proves to the peer
/// that this end may connect. Set by
/// [`RdmaBuilder::authenticator`](crate::RdmaBuilder::authenticator).
///
/// The connecting end is authenticated first. An [`RdmaListener`](crate::RdmaListener) checks the
/// token before it creates a queue pair or any other resource of the device. A
/// [`CmListener`](crate::CmListener), whose tokens are messages of the new connection, checks the
/// token before it grants memory. With a [`PreparedRdma`](crate::PreparedRdma), each end checks the
/// token of the peer before it connects its queue pair. `SharedSecret` (feature `shared-secret`) is
/// an implementation for ends that share a secret.
///
/// ```
/// use rdma_async::{Authenticator, End, Transcript};
///
/// /// Lets only peers of this host connect, without a proof.
/// #[derive(Debug)]
/// struct ThisHost;
///
/// impl Authenticator for ThisHost {
///     fn token(&self, _transcript: &Transcript) -> Vec<u8> {
///         Vec::new()
///     }
///
///     fn check(&self, transcript: &Transcript, _token: &[u8]) -> Result<(), String> {
///         match transcript.peer().ip().is_loopback() {
///             true => Ok(()),
///             false => Err("the peer is on another host".to_owned()),
///         }
///     }
/// }
/// ```
pub trait Authenticator: fmt::Debug + Send + Sync + 'static {
    /// Returns the token that this end sends to the peer, as bytes. The token proves to the peer
    /// that this end may connect, and has at most 1024 bytes. `transcript` is the data of the
    /// handshake, with this end as the [prover](Transcript::prover).
    fn token(&self, transcript: &Transcript) -> Vec<u8>;

    /// Checks `token`, with which the peer proves that it may connect. `transcript` contains the
    /// data from which the peer has computed the token. Runs on a thread of the runtime, so it must
    /// not block.
    ///
    /// # Errors
    ///
    /// The reason for refusing the token. This end reports the reason, but the peer does not
    /// receive it.
    fn check(&self, transcript: &Transcript, token: &[u8]) -> Result<(), String>;
}

/// Role of an end of a connection in the handshake: connecting or accepting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The end that connects. With a [`PreparedRdma`](crate::PreparedRdma), the end with the lesser
    /// nonce.
    Connecting,
    /// The end that listens. With a [`PreparedRdma`](crate::PreparedRdma), the end with the greater
    /// nonce.
    Accepting,
}

/// Data of one handshake from which an end computes its token, the proof that it may connect. The
/// data are the nonces (random bytes) of both ends, and the messages that the ends have exchanged.
/// The token is valid only for one end in one handshake.
#[derive(Debug, Clone)]
pub struct Transcript {
    prover: End,
    peer: SocketAddr,
    bytes: Vec<u8>,
}

impl Transcript {
    /// Creates the transcript of a handshake from its `messages`. `prover` is the role of the end
    /// that computes a token from the transcript, and `peer` is the address of the peer. Requires
    /// that each message has a fixed length, because the transcript does not contain the lengths.
    pub(crate) fn new<const N: usize>(prover: End, peer: SocketAddr, messages: [&[u8]; N]) -> Self {
        let label: &[u8] = match prover {
            End::Connecting => b"rdma-async 1: connecting end",
            End::Accepting => b"rdma-async 1: accepting end ",
        };
        Self {
            prover,
            peer,
            bytes: [label, &messages.concat()].concat(),
        }
    }

    /// Returns the role (connecting or accepting) of the end that computes its token from this
    /// transcript. That end sends the token to prove that it may connect. The other end checks the
    /// token.
    pub fn prover(&self) -> End {
        self.prover
    }

    /// Returns the address of the peer: the source address of an accepted connection, or the
    /// address to which this end connects. With a [`PreparedRdma`](crate::PreparedRdma), returns
    /// the address that the peer has sent in the handshake, with port 0.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the bytes from which an end computes its token, the proof that it may connect. The
    /// bytes contain the role of that end, the nonces (random bytes) of both ends, and the messages
    /// that the ends have exchanged. With the connection manager, they also contain the IP
    /// addresses and the queue pairs of both ends. The bytes are equal at both ends.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}
