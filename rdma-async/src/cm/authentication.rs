//! Authentication by messages of a new connection, before the application gets the connection.
//!
//! The accepting end sends its nonce. The connecting end replies with its own nonce, followed by
//! its token. If the token is valid, the accepting end sends its own token. If that token is valid,
//! the connecting end sends an empty message, after which the accepting end may use the connection.
//!
//! The tokens depend on both nonces, and on the [private data](PrivateData), the IP addresses and
//! the queue pairs of both ends. An attacker therefore cannot relay tokens between two connections
//! of its own.
//!
//! Each end accepts requests for memory, and long messages, once the token of the peer is valid and
//! before this end sends its last message of the authentication. The peer may send such requests
//! and messages as soon as that last message has arrived.

use std::alloc::Layout;
use std::mem;
use std::net::{IpAddr, SocketAddr};

use super::private::PrivateData;
use crate::authentication::{Authenticator, End, MAX_TOKEN_LEN, NONCE_LEN, Transcript, nonce};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::handshake::refused;
use crate::memory::{LocalMrReadAccess, LocalMrWriteAccess};
use crate::rdma::Rdma;

/// Data that identify one end of a connection and that both ends know. Each end computes its
/// authentication token (the proof that it may connect) from the identities of both ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    pub(super) private: PrivateData,
    /// Address of the end, or `None` if the connection manager does not report it.
    pub(super) address: Option<SocketAddr>,
}

/// Authenticates both ends of the new connection `rdma` by messages. Returns the connection if both
/// ends have proved that they may connect. If the settings have no authenticator, returns the
/// connection immediately. `end` is the role of this end. `own` and `theirs` identify this end and
/// the peer.
pub(super) async fn run(rdma: Rdma, end: End, own: Identity, theirs: Identity) -> Result<Rdma> {
    let Some(authenticator) = rdma.connection().authenticator() else {
        return Ok(rdma);
    };
    let peer = rdma.peer_address();
    let failed = |error: Error| refused(peer, format!("authentication failed: {error}"));
    let unknown = || refused(peer, "authentication needs the addresses of both ends");
    let pair = rdma.queue_pair();
    let own = own.encode(pair.number()).ok_or_else(unknown)?;
    let destination = pair.attributes()?.destination();
    let theirs = theirs.encode(destination).ok_or_else(unknown)?;
    let identities = match end {
        End::Connecting => [own, theirs],
        End::Accepting => [theirs, own],
    };
    let exchange = TokenExchange {
        rdma: &rdma,
        authenticator: &*authenticator,
        identities: &identities.concat(),
    };
    let guard = EndUnlessAuthenticated(rdma.connection());
    match end {
        End::Connecting => exchange.connect().await.map_err(failed)?,
        End::Accepting => exchange.accept().await.map_err(failed)?,
    }
    mem::forget(guard);
    Ok(rdma)
}

/// Guard that ends a connection when the guard is dropped, unless the authentication has succeeded.
/// Without the guard, a dropped connection would be kept until its last messages are acknowledged.
/// An unauthenticated peer could thus make this end keep any number of connections.
struct EndUnlessAuthenticated<'c>(&'c Connection);

impl Drop for EndUnlessAuthenticated<'_> {
    fn drop(&mut self) {
        let reason = "the ends have not authenticated each other";
        self.0.fail(Error::disconnected(reason));
    }
}

impl Identity {
    /// Encodes this identity and the number of the end's queue pair as bytes, from which both ends
    /// compute tokens. The bytes contain the private data and the IP address of the end. Returns
    /// `None` if the address is unknown. A token is valid only for these queue pairs and addresses,
    /// so an attacker cannot use it on another connection.
    fn encode(&self, queue_pair: u32) -> Option<Vec<u8>> {
        let address = match self.address?.ip().to_canonical() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let mut bytes = self.private.encode();
        bytes.extend(address.octets());
        bytes.extend(queue_pair.to_be_bytes());
        Some(bytes)
    }
}

/// The authentication of both ends of a new connection, by messages with nonces (random bytes) and
/// tokens (proofs that an end may connect).
struct TokenExchange<'a> {
    rdma: &'a Rdma,
    authenticator: &'a dyn Authenticator,
    identities: &'a [u8],
}

impl TokenExchange<'_> {
    /// Authenticates both ends from the side of the connecting end: exchanges nonces (random bytes)
    /// and tokens (proofs that an end may connect) with the accepting end. Fails if the token of
    /// the peer is not valid.
    async fn connect(&self) -> Result<()> {
        let theirs = self.receive(NONCE_LEN).await?;
        let own = nonce()?;
        let proof = self.transcript(End::Connecting, &theirs, &own);
        let token = self.authenticator.token(&proof);
        self.send(&[&own[..], &token].concat()).await?;
        let proof = self.transcript(End::Accepting, &theirs, &own);
        let token = self.receive(MAX_TOKEN_LEN).await?;
        self.check(&proof, &token)?;
        self.rdma.connection().release_memory();
        self.send(&[]).await
    }

    /// Authenticates both ends from the side of the accepting end: exchanges nonces (random bytes)
    /// and tokens (proofs that an end may connect) with the connecting end. Fails if the token of
    /// the peer is not valid, or if the peer does not confirm this end's token.
    async fn accept(&self) -> Result<()> {
        let own = nonce()?;
        self.send(&own).await?;
        let reply = self.receive(NONCE_LEN + MAX_TOKEN_LEN).await?;
        let Some((theirs, token)) = reply.split_at_checked(NONCE_LEN) else {
            return Err(Error::disconnected("the peer sent an invalid proof"));
        };
        self.check(&self.transcript(End::Connecting, &own, theirs), token)?;
        self.rdma.connection().release_memory();
        let proof = self.transcript(End::Accepting, &own, theirs);
        self.send(&self.authenticator.token(&proof)).await?;
        self.receive(0).await.map(drop)
    }

    /// Returns the data from which `prover`, one end of the connection, computes its token (the
    /// proof that it may connect). The data are the role of that end, and the nonces (random bytes)
    /// and identities of both ends. `accepting` and `connecting` are the nonces of the two ends.
    fn transcript(&self, prover: End, accepting: &[u8], connecting: &[u8]) -> Transcript {
        let parts = [accepting, connecting, self.identities];
        Transcript::new(prover, self.rdma.peer_address(), parts)
    }

    /// Checks `token`, the peer's proof that it may connect. The peer must have computed the token
    /// from `transcript`, the data of this handshake. Returns an error with the reason if the token
    /// is not valid.
    fn check(&self, transcript: &Transcript, token: &[u8]) -> Result<()> {
        let checked = self.authenticator.check(transcript, token);
        checked.map_err(Error::disconnected)
    }

    /// Sends `bytes` to the peer as one message of the authentication exchange.
    async fn send(&self, bytes: &[u8]) -> Result<()> {
        // A message cannot be empty, so each message begins with a byte that is ignored.
        let layout = Layout::array::<u8>(bytes.len() + 1).expect("a short message");
        let mut message = self.rdma.alloc_local_mr(layout)?;
        message.as_mut_slice()[1..].copy_from_slice(bytes);
        self.rdma.send(&message).await
    }

    /// Waits for the peer's next message of the authentication exchange, and returns its bytes.
    /// Fails if the message has more than `limit` bytes.
    async fn receive(&self, limit: usize) -> Result<Vec<u8>> {
        let message = self.rdma.receive().await?;
        match message.as_slice() {
            [_, bytes @ ..] if bytes.len() <= limit => Ok(bytes.to_vec()),
            _ => Err(Error::disconnected("the peer sent an invalid message")),
        }
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use super::*;
    use crate::connection::Depths;
    use crate::handshake::EndLimits;
    use crate::testing::pair;

    /// Authenticator for tests that uses the [`Transcript`] (the data of the handshake) itself as
    /// the token. Two ends accept each other only if their transcripts are equal.
    #[derive(Debug)]
    struct TranscriptAsToken;

    impl Authenticator for TranscriptAsToken {
        fn token(&self, transcript: &Transcript) -> Vec<u8> {
            transcript.as_bytes().to_vec()
        }

        fn check(&self, transcript: &Transcript, token: &[u8]) -> Result<(), String> {
            match token == transcript.as_bytes() {
                true => Ok(()),
                false => Err("it has another transcript".to_owned()),
            }
        }
    }

    fn id(address: &str) -> Identity {
        let depths = Depths {
            data: 64,
            control: 32,
        };
        let limits = EndLimits {
            depths,
            payload: 4096,
        };
        Identity {
            private: PrivateData {
                limits,
                authenticates: true,
            },
            address: Some(address.parse().unwrap()),
        }
    }

    /// Connects two ends over TCP and makes them withhold memory from each other, as the ends of a
    /// connection do before the authentication by messages.
    async fn unauthenticated_pair() -> (Rdma, Rdma) {
        let (client, server) = pair(|builder| builder.authenticator(TranscriptAsToken)).await;
        client.connection().withhold_memory();
        server.connection().withhold_memory();
        (client, server)
    }

    #[test]
    fn the_identity_depends_on_the_address_and_the_queue_pair() {
        let of = |address, queue_pair| id(address).encode(queue_pair).unwrap();
        let right = of("10.0.0.1:7174", 17);
        // The port is not part of the bytes, because each end knows a different port.
        assert_eq!(right, of("[::ffff:10.0.0.1]:9", 17));
        assert_ne!(right, of("10.0.0.2:7174", 17));
        assert_ne!(right, of("10.0.0.1:7174", 18));
        let unknown = Identity {
            address: None,
            ..id("10.0.0.1:7174")
        };
        assert_eq!(unknown.encode(17), None);
    }

    #[tokio::test]
    async fn each_end_accepts_all_messages_once_the_other_end_is_authenticated() {
        let (client, server) = unauthenticated_pair().await;
        let (one, other) = (id("10.0.0.1:1"), id("10.0.0.2:2"));
        let use_it = async |rdma: Result<Rdma>| {
            let rdma = rdma.unwrap();
            let layout = Layout::new::<[u8; 1 << 20]>();
            rdma.request_remote_mr(layout).await.unwrap();
            let message = rdma.alloc_local_mr(layout).unwrap();
            let (sent, received) = tokio::join!(rdma.send(&message), rdma.receive());
            sent.unwrap();
            assert_eq!(received.unwrap().as_slice().len(), 1 << 20);
            rdma
        };
        let connecting = async { use_it(run(client, End::Connecting, one, other).await).await };
        let accepting = async { use_it(run(server, End::Accepting, other, one).await).await };
        tokio::join!(connecting, accepting);
    }

    #[tokio::test]
    async fn tokens_of_another_connection_are_refused_and_end_the_connection() {
        let (client, server) = unauthenticated_pair().await;
        let ends = [&client, &server].map(|end| end.connection_arc().clone());
        let (one, other, attacker) = (id("10.0.0.1:1"), id("10.0.0.2:2"), id("10.0.0.3:3"));
        let (connected, accepted) = tokio::join!(
            run(client, End::Connecting, one, attacker),
            run(server, End::Accepting, other, one),
        );
        let reason = accepted.unwrap_err().to_string();
        assert!(reason.contains("another transcript"), "{reason}");
        assert!(connected.is_err(), "{connected:?}");
        let failure = ends[1].failure().expect("it has ended").to_string();
        assert!(failure.contains("not authenticated"), "{failure}");
        assert!(ends[0].failure().is_some());
    }
}
