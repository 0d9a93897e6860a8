//! Authentication by messages of a new connection, before the application gets the connection.
//!
//! The accepting end sends its nonce. The connecting end answers with its own nonce, followed by its token.
//! If the token is right, the accepting end sends its token. If that is right as well, the connecting end sends
//! an empty message, after which the accepting end may use the connection.
//!
//! The tokens depend on both nonces, and on the [terms](Private), the IP addresses and the queue pairs of both
//! ends, so that an attacker cannot pass them on between two connections of its own.
//!
//! Each end accepts requests for memory and long messages from the moment at which the other end may send
//! them: before the message by which the other end learns that the authentication has succeeded.

use std::alloc::Layout;
use std::net::{IpAddr, SocketAddr};

use super::private::Private;
use crate::authentication::{Authenticator, End, MAX_TOKEN, NONCE_LEN, Transcript, nonce};
use crate::error::{Error, Result};
use crate::handshake::refused;
use crate::memory::{LocalMrReadAccess, LocalMrWriteAccess};
use crate::rdma::Rdma;

/// One end of a connection, as an end sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    pub(super) private: Private,
    /// `None` if the connection manager does not know the address.
    pub(super) address: Option<SocketAddr>,
}

/// Authenticates the two ends of a connection to each other, if they do so at all. `end` is the role of this
/// end.
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
    match end {
        End::Connecting => exchange.connect().await.map_err(failed)?,
        End::Accepting => exchange.accept().await.map_err(failed)?,
    }
    Ok(rdma)
}

impl Side {
    /// Returns the private data, the IP address and the queue pair of this end, which both ends see alike.
    /// An attacker between two connections has other ones, so a token that it passes on is wrong there.
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
        let token = self.receive(MAX_TOKEN).await?;
        self.check(&proof, &token)?;
        self.rdma.connection().release_memory();
        self.send(&[]).await
    }

    async fn accept(&self) -> Result<()> {
        let own = nonce()?;
        self.send(&own).await?;
        let answer = self.receive(NONCE_LEN + MAX_TOKEN).await?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Depths;
    use crate::handshake::Terms;

    #[test]
    fn a_description_depends_on_the_address_and_the_queue_pair() {
        let depths = Depths {
            data: 64,
            control: 32,
        };
        let private = Private {
            terms: Terms {
                depths,
                payload: 4096,
            },
            authenticates: true,
        };
        let of = |address: &str, queue_pair| {
            let address = Some(address.parse().unwrap());
            Side { private, address }.description(queue_pair).unwrap()
        };
        let right = of("10.0.0.1:7174", 17);
        // The ports of the connection manager are those of no end.
        assert_eq!(right, of("[::ffff:10.0.0.1]:9", 17));
        assert_ne!(right, of("10.0.0.2:7174", 17));
        assert_ne!(right, of("10.0.0.1:7174", 18));
        let address = None;
        assert_eq!(Side { private, address }.description(17), None);
    }
}
