//! Authentication by messages of a new connection, before the application gets the connection.
//!
//! The accepting end sends its nonce. The connecting end answers with its own nonce, followed by its token.
//! If the token is right, the accepting end sends its token. If that is right as well, the connecting end sends
//! an empty message, after which the accepting end may use the connection.
//!
//! Each end accepts requests for memory and long messages from the moment at which the other end may send
//! them: before the message by which the other end learns that the authentication has succeeded.

use std::alloc::Layout;

use super::private::Private;
use crate::authentication::{Authenticator, End, MAX_TOKEN, NONCE_LEN, Transcript, nonce};
use crate::error::{Error, Result};
use crate::handshake::refused;
use crate::memory::{LocalMrReadAccess, LocalMrWriteAccess};
use crate::rdma::Rdma;

/// Authenticates the two ends of a connection to each other, if they do so at all. `exchange` is the private
/// data of this end and of the peer.
pub(super) async fn perform(
    rdma: Rdma,
    end: End,
    (own, theirs): (Private, Private),
) -> Result<Rdma> {
    let Some(authenticator) = rdma.connection().authenticator() else {
        return Ok(rdma);
    };
    let peer = rdma.peer_address();
    let failed = |error: Error| refused(peer, format!("authentication failed: {error}"));
    let (connecting, accepting) = match end {
        End::Connecting => (own, theirs),
        End::Accepting => (theirs, own),
    };
    let terms = [connecting.encode(), accepting.encode()].concat();
    let exchange = Exchange {
        rdma: &rdma,
        authenticator: &*authenticator,
        terms: &terms,
    };
    match end {
        End::Connecting => exchange.connect().await.map_err(failed)?,
        End::Accepting => exchange.accept().await.map_err(failed)?,
    }
    Ok(rdma)
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
