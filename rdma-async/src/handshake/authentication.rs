//! Authentication during the handshake, after the hello of the connecting end.
//!
//! The accepting end sends a challenge with a nonce. The connecting end answers with a nonce of its
//! own and its token. If the token is right, the accepting end sends its hello, followed by its own
//! token. Both tokens depend on both nonces, so that a recorded handshake is worthless, and on the
//! hellos.
//!
//! ```text
//! challenge: magic (8), nonce of the accepting end (32)
//! proof:     nonce of the connecting end (32), length (2), token
//! answer:    hello, and, after a challenge, length (2), token
//! ```

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::hello::HELLO_LEN;
use super::{denial, hello, interrupted, read_magic, read_rest, refused};
use crate::authentication::{Authenticator, End, MAX_TOKEN_LEN, NONCE_LEN, Transcript, nonce};
use crate::error::Result;

/// First bytes of a challenge.
const MAGIC: [u8; 8] = *b"RDMAauth";

type Nonce = [u8; NONCE_LEN];

/// The accepting end's knowledge of a peer that has proved itself.
#[derive(Debug)]
pub(super) struct Proved {
    hello: [u8; HELLO_LEN],
    accepting: Nonce,
    connecting: Nonce,
}

/// Sends a challenge to a peer with this hello, and checks the proof. Sends a denial if it is
/// wrong.
pub(super) async fn challenge(
    stream: &mut TcpStream,
    peer: SocketAddr,
    hello: &[u8; HELLO_LEN],
    authenticator: &dyn Authenticator,
) -> Result<Proved> {
    let failed = |source| interrupted(peer, &source);
    let accepting = nonce()?;
    let message = [&MAGIC[..], &accepting].concat();
    stream.write_all(&message).await.map_err(failed)?;
    let mut connecting = [0; NONCE_LEN];
    stream.read_exact(&mut connecting).await.map_err(failed)?;
    let token = read_token(stream, peer).await?;
    let transcript = Transcript::new(End::Connecting, peer, [&accepting, &connecting, hello]);
    if let Err(reason) = authenticator.check(&transcript, &token) {
        // The peer is not told more: the reason can be of use to an attacker.
        denial::send(stream, "authentication failed").await;
        return Err(refused(peer, format!("authentication failed: {reason}")));
    }
    Ok(Proved {
        hello: *hello,
        accepting,
        connecting,
    })
}

/// Returns the answer of the accepting end: the hello `own` and, after a challenge, the token.
pub(super) fn answer(
    peer: SocketAddr,
    own: &[u8; HELLO_LEN],
    proved: Option<(&dyn Authenticator, Proved)>,
) -> Vec<u8> {
    let mut bytes = own.to_vec();
    if let Some((authenticator, proved)) = proved {
        let parts: [&[u8]; 4] = [&proved.accepting, &proved.connecting, &proved.hello, own];
        let transcript = Transcript::new(End::Accepting, peer, parts);
        bytes.extend(encode(&authenticator.token(&transcript)));
    }
    bytes
}

/// Reads the answer to the hello `own` of the connecting end, and returns the hello of the peer.
/// Answers a challenge, and checks the token of the peer.
pub(super) async fn read_answer(
    stream: &mut TcpStream,
    peer: SocketAddr,
    own: &[u8; HELLO_LEN],
    authenticator: Option<&dyn Authenticator>,
) -> Result<[u8; HELLO_LEN]> {
    match (read_magic(stream, peer).await?, authenticator) {
        (hello::MAGIC, None) => read_rest(stream, peer, hello::MAGIC).await,
        (hello::MAGIC, Some(_)) => Err(refused(peer, "it does not authenticate itself")),
        (MAGIC, None) => Err(refused(
            peer,
            "it requires authentication (RdmaBuilder::authenticator)",
        )),
        (MAGIC, Some(authenticator)) => prove(stream, peer, own, authenticator).await,
        (denial::MAGIC, _) => Err(denial::read(stream, peer).await),
        _ => Err(refused(peer, "it does not speak this protocol")),
    }
}

/// Answers a challenge, whose magic was read, and returns the hello of the peer if its token is
/// right.
async fn prove(
    stream: &mut TcpStream,
    peer: SocketAddr,
    own: &[u8; HELLO_LEN],
    authenticator: &dyn Authenticator,
) -> Result<[u8; HELLO_LEN]> {
    let failed = |source| interrupted(peer, &source);
    let mut accepting = [0; NONCE_LEN];
    stream.read_exact(&mut accepting).await.map_err(failed)?;
    let connecting = nonce()?;
    let transcript = Transcript::new(End::Connecting, peer, [&accepting, &connecting, own]);
    let token = encode(&authenticator.token(&transcript));
    let proof = [&connecting[..], &token].concat();
    stream.write_all(&proof).await.map_err(failed)?;
    let theirs = match read_magic(stream, peer).await? {
        magic @ hello::MAGIC => read_rest(stream, peer, magic).await?,
        denial::MAGIC => return Err(denial::read(stream, peer).await),
        _ => return Err(refused(peer, "it does not speak this protocol")),
    };
    let token = read_token(stream, peer).await?;
    let parts: [&[u8]; 4] = [&accepting, &connecting, own, &theirs];
    let transcript = Transcript::new(End::Accepting, peer, parts);
    match authenticator.check(&transcript, &token) {
        Ok(()) => Ok(theirs),
        Err(reason) => Err(refused(peer, format!("authentication failed: {reason}"))),
    }
}

/// Returns the length of a token and the token. A token above the limit is cut, and thus wrong.
fn encode(token: &[u8]) -> Vec<u8> {
    let token = &token[..token.len().min(MAX_TOKEN_LEN)];
    let len = u16::try_from(token.len()).expect("the limit has 16 bits");
    [&len.to_be_bytes()[..], token].concat()
}

async fn read_token(stream: &mut TcpStream, peer: SocketAddr) -> Result<Vec<u8>> {
    let failed = |source| interrupted(peer, &source);
    let len = usize::from(stream.read_u16().await.map_err(failed)?);
    if len > MAX_TOKEN_LEN {
        let reason = format!("its token of {len} bytes is above the limit of {MAX_TOKEN_LEN}");
        return Err(refused(peer, reason));
    }
    let mut token = vec![0; len];
    stream.read_exact(&mut token).await.map_err(failed)?;
    Ok(token)
}
