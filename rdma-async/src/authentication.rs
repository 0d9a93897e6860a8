//! Authentication: the two ends of a new connection prove to each other that they may connect.

use std::fmt;
use std::net::SocketAddr;

use crate::error::{Error, Result};

/// Maximum number of bytes of a token.
pub(crate) const MAX_TOKEN: usize = 1024;
/// Number of bytes of a nonce.
pub(crate) const NONCE_LEN: usize = 32;

/// Returns a random nonce, which is never used again.
pub(crate) fn nonce() -> Result<[u8; NONCE_LEN]> {
    let mut nonce = [0; NONCE_LEN];
    getrandom::fill(&mut nonce)
        .map_err(|source| Error::tcp("drawing", "a nonce", source.into()))?;
    Ok(nonce)
}

/// A method by which the two ends of a new connection prove to each other that they may connect,
/// set by [`RdmaBuilder::authenticator`](crate::RdmaBuilder::authenticator).
///
/// The connecting end proves itself first: before an [`RdmaListener`](crate::RdmaListener) creates
/// a queue pair or any other resource of the device, and before a
/// [`CmListener`](crate::CmListener), whose tokens are messages of the new connection, grants
/// memory. `SharedSecret`, of the feature `shared-secret`, is an implementation for ends that share
/// a secret.
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
///             false => Err("it is of another host".to_owned()),
///         }
///     }
/// }
/// ```
pub trait Authenticator: fmt::Debug + Send + Sync + 'static {
    /// Returns the token, at most 1024 bytes, that proves this end to the peer. This end is the
    /// [prover](Transcript::prover) of the transcript.
    fn token(&self, transcript: &Transcript) -> Vec<u8>;

    /// Checks the token of the peer, which is the [prover](Transcript::prover) of the transcript.
    /// Runs on a thread of the runtime, so it must not block.
    ///
    /// # Errors
    ///
    /// The reason for the refusal, which this end reports and the peer does not get.
    fn check(&self, transcript: &Transcript, token: &[u8]) -> Result<(), String>;
}

/// Role of an end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// The end that connects.
    Connecting,
    /// The end that listens.
    Accepting,
}

/// The part of a handshake that a token proves, different for each handshake and for each end.
#[derive(Debug, Clone)]
pub struct Transcript {
    prover: End,
    peer: SocketAddr,
    bytes: Vec<u8>,
}

impl Transcript {
    /// Creates the transcript of messages whose lengths are fixed.
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

    /// Returns the end that proves itself by the token.
    pub fn prover(&self) -> End {
        self.prover
    }

    /// Returns the address of the peer, from which its connection comes or to which this end
    /// connects.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the bytes that the token must depend on: the role of the prover, the nonces of both
    /// ends, the messages that the ends have exchanged, and, with the connection manager, the IP
    /// addresses and the queue pairs of both ends. Both ends have the same bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}
