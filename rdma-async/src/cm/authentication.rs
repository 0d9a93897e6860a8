//! Authentication by messages of a new connection, before the application gets the connection.
//!
//! The accepting end sends its nonce. The connecting end answers with its own nonce, followed by
//! its token. If the token is right, the accepting end sends its token. If that is right as well,
//! the connecting end sends an empty message, after which the accepting end may use the connection.
//!
//! The tokens depend on both nonces, and on the [terms](Private), the IP addresses and the queue
//! pairs of both ends, so that an attacker cannot pass them on between two connections of its own.
//!
//! Each end accepts requests for memory and long messages from the moment at which the other end
//! may send them: before the message by which the other end learns that the authentication has
//! succeeded.

use std::alloc::Layout;
use std::mem;
use std::net::{IpAddr, SocketAddr};

use super::private::Private;
use crate::authentication::{Authenticator, End, MAX_TOKEN_LEN, NONCE_LEN, Transcript, nonce};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::handshake::refused;
use crate::memory::{LocalMrReadAccess, LocalMrWriteAccess};
use crate::rdma::Rdma;

/// Data of an end of a connection, which both ends know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    pub(super) private: Private,
    /// `None` if the connection manager does not know the address.
    pub(super) address: Option<SocketAddr>,
}

/// Authenticates the two ends of a connection to each other, if they do so at all. `end` is the
/// role of this end.
pub(super) async fn perform(rdma: Rdma, end: End, own: Side, theirs: Side) -> Result<Rdma> {
    let Some(authenticator) = rdma.connection().authenticator() else {
        return Ok(rdma);
    };
    let peer = rdma.peer_address();
    let failed = |error: Error| refused(peer, format!("authentication failed: {error}"));
    let unknown = || refused(peer, "authentication needs the addresses of both ends");
    let pair = rdma.queue_pair();
    let own = own.description(pair.number()).ok_or_else(unknown)?;
    let destination = pair.attributes()?.destination();
    let theirs = theirs.description(destination).ok_or_else(unknown)?;
    let terms = match end {
        End::Connecting => [own, theirs],
        End::Accepting => [theirs, own],
    };
    let exchange = Exchange {
        rdma: &rdma,
        authenticator: &*authenticator,
        terms: &terms.concat(),
    };
    let unproved = EndUnlessProved(rdma.connection());
    match end {
        End::Connecting => exchange.connect().await.map_err(failed)?,
        End::Accepting => exchange.accept().await.map_err(failed)?,
    }
    mem::forget(unproved);
    Ok(rdma)
}

/// Guard that ends a connection unless the authentication succeeds. A connection that is only
/// dropped is kept for its last messages, so a peer that cannot prove itself could make this end
/// keep any number of them.
struct EndUnlessProved<'c>(&'c Connection);

impl Drop for EndUnlessProved<'_> {
    fn drop(&mut self) {
        let reason = "the ends have not authenticated each other";
        self.0.fail(Error::disconnected(reason));
    }
}

impl Side {
    /// Returns the private data, the IP address and the queue pair of this end, which both ends see
    /// alike. An attacker between two connections has other ones, so a token that it passes on is
    /// wrong there.
    fn description(&self, queue_pair: u32) -> Option<Vec<u8>> {
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

struct Exchange<'a> {
    rdma: &'a Rdma,
    authenticator: &'a dyn Authenticator,
    terms: &'a [u8],
}

impl Exchange<'_> {
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

    async fn accept(&self) -> Result<()> {
        let own = nonce()?;
        self.send(&own).await?;
        let answer = self.receive(NONCE_LEN + MAX_TOKEN_LEN).await?;
        let Some((theirs, token)) = answer.split_at_checked(NONCE_LEN) else {
            return Err(Error::disconnected("the peer sent no proof"));
        };
        self.check(&self.transcript(End::Connecting, &own, theirs), token)?;
        self.rdma.connection().release_memory();
        let proof = self.transcript(End::Accepting, &own, theirs);
        self.send(&self.authenticator.token(&proof)).await?;
        self.receive(0).await.map(drop)
    }

    fn transcript(&self, prover: End, accepting: &[u8], connecting: &[u8]) -> Transcript {
        let parts = [accepting, connecting, self.terms];
        Transcript::new(prover, self.rdma.peer_address(), parts)
    }

    fn check(&self, transcript: &Transcript, token: &[u8]) -> Result<()> {
        let checked = self.authenticator.check(transcript, token);
        checked.map_err(Error::disconnected)
    }

    async fn send(&self, bytes: &[u8]) -> Result<()> {
        // A message has at least one byte, and the first is no part of it.
        let layout = Layout::array::<u8>(bytes.len() + 1).expect("a short message");
        let mut message = self.rdma.alloc_local_mr(layout)?;
        message.as_mut_slice()[1..].copy_from_slice(bytes);
        self.rdma.send(&message).await
    }

    async fn receive(&self, limit: usize) -> Result<Vec<u8>> {
        let message = self.rdma.receive().await?;
        match message.as_slice() {
            [_, bytes @ ..] if bytes.len() <= limit => Ok(bytes.to_vec()),
            _ => Err(Error::disconnected("the peer sent no message of this kind")),
        }
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use super::*;
    use crate::RdmaBuilder;
    use crate::connection::Depths;
    use crate::handshake::Terms;

    /// Authenticator whose tokens are the transcripts themselves.
    #[derive(Debug)]
    struct Transcripts;

    impl Authenticator for Transcripts {
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

    fn side(address: &str) -> Side {
        let depths = Depths {
            data: 64,
            control: 32,
        };
        let terms = Terms {
            depths,
            payload: 4096,
        };
        Side {
            private: Private {
                terms,
                authenticates: true,
            },
            address: Some(address.parse().unwrap()),
        }
    }

    /// Returns a connection whose ends have not authenticated each other by messages.
    async fn pair() -> (Rdma, Rdma) {
        let builder = || {
            let builder = RdmaBuilder::default().device("softroce0");
            builder.authenticator(Transcripts)
        };
        let mut listener = builder().bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let (client, server) = tokio::join!(builder().connect(address), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        client.connection().withhold_memory();
        server.connection().withhold_memory();
        (client, server)
    }

    #[test]
    fn a_description_depends_on_the_address_and_the_queue_pair() {
        let of = |address, queue_pair| side(address).description(queue_pair).unwrap();
        let right = of("10.0.0.1:7174", 17);
        // The ends see different ports.
        assert_eq!(right, of("[::ffff:10.0.0.1]:9", 17));
        assert_ne!(right, of("10.0.0.2:7174", 17));
        assert_ne!(right, of("10.0.0.1:7174", 18));
        let unknown = Side {
            address: None,
            ..side("10.0.0.1:7174")
        };
        assert_eq!(unknown.description(17), None);
    }

    #[tokio::test]
    async fn each_end_accepts_everything_as_soon_as_the_other_has_authenticated() {
        let (client, server) = pair().await;
        let (one, other) = (side("10.0.0.1:1"), side("10.0.0.2:2"));
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
        let connecting = async { use_it(perform(client, End::Connecting, one, other).await).await };
        let accepting = async { use_it(perform(server, End::Accepting, other, one).await).await };
        tokio::join!(connecting, accepting);
    }

    #[tokio::test]
    async fn tokens_of_another_connection_are_refused_and_end_the_connection_at_once() {
        let (client, server) = pair().await;
        let ends = [&client, &server].map(|end| end.connection_arc().clone());
        let (one, other, attacker) = (side("10.0.0.1:1"), side("10.0.0.2:2"), side("10.0.0.3:3"));
        let (connected, accepted) = tokio::join!(
            perform(client, End::Connecting, one, attacker),
            perform(server, End::Accepting, other, one),
        );
        let reason = accepted.unwrap_err().to_string();
        assert!(reason.contains("another transcript"), "{reason}");
        assert!(connected.is_err(), "{connected:?}");
        let failure = ends[1].failure().expect("it has ended").to_string();
        assert!(failure.contains("not authenticated"), "{failure}");
        assert!(ends[0].failure().is_some());
    }
}
