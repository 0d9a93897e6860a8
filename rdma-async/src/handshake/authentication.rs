//! Authentication of both ends in the handshake over TCP, after the hello of the connecting end.
//!
//! The accepting end sends a challenge with a nonce. The connecting end replies with its own nonce
//! and its token. If the token is valid, the accepting end sends its hello, followed by its own
//! token. Both tokens depend on both nonces, which prevents a replay of a recorded handshake, and
//! on the hellos.
//!
//! ```text
//! challenge: magic (8), nonce of the accepting end (32)
//! proof:     nonce of the connecting end (32), length (2), token
//! reply:     hello, and, after a challenge, length (2), token
//! ```

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::hello::HELLO_LEN;
use super::{hello, io_error, read_magic, read_rest, refused, rejection};
use crate::authentication::{Authenticator, End, MAX_TOKEN_LEN, NONCE_LEN, Transcript, nonce};
use crate::error::Result;

/// First bytes of a challenge (magic number). These bytes distinguish the challenge from the other
/// handshake messages, the hello and the rejection.
const MAGIC: [u8; 8] = *b"RDMAauth";

type Nonce = [u8; NONCE_LEN];

/// Data of the handshake with an authenticated peer: its hello (first message), and the nonces
/// (random bytes) of both ends. The accepting end computes its own token, the proof that it may
/// connect, from these data.
#[derive(Debug)]
pub(super) struct AuthenticatedPeer {
    hello: [u8; HELLO_LEN],
    accepting: Nonce,
    connecting: Nonce,
}

/// Makes the connecting peer prove that it may connect: sends a challenge with a nonce (random
/// bytes), and checks the token with which the peer replies. Sends a rejection if the token is not
/// valid. `hello` is the first message of the peer.
pub(super) async fn challenge(
    stream: &mut TcpStream,
    peer: SocketAddr,
    hello: &[u8; HELLO_LEN],
    authenticator: &dyn Authenticator,
) -> Result<AuthenticatedPeer> {
    let failed = |source| io_error(peer, &source);
    let accepting = nonce()?;
    let message = [&MAGIC[..], &accepting].concat();
    stream.write_all(&message).await.map_err(failed)?;
    let mut connecting = [0; NONCE_LEN];
    stream.read_exact(&mut connecting).await.map_err(failed)?;
    let token = read_token(stream, peer).await?;
    let transcript = Transcript::new(End::Connecting, peer, [&accepting, &connecting, hello]);
    if let Err(reason) = authenticator.check(&transcript, &token) {
        // The peer does not get the reason, which could be of use to an attacker.
        rejection::send(stream, "authentication failed").await;
        return Err(refused(peer, format!("authentication failed: {reason}")));
    }
    Ok(AuthenticatedPeer {
        hello: *hello,
        accepting,
        connecting,
    })
}

/// Returns the reply of the accepting end to the peer's hello (first message). The reply is the
/// hello `own` of this end, followed by the token (proof that this end may connect). Without
/// authentication, `proved` is `None` and the reply has no token.
pub(super) fn reply(
    peer: SocketAddr,
    own: &[u8; HELLO_LEN],
    proved: Option<(&dyn Authenticator, AuthenticatedPeer)>,
) -> Vec<u8> {
    let mut bytes = own.to_vec();
    if let Some((authenticator, proved)) = proved {
        let parts: [&[u8]; 4] = [&proved.accepting, &proved.connecting, &proved.hello, own];
        let transcript = Transcript::new(End::Accepting, peer, parts);
        bytes.extend(encode(&authenticator.token(&transcript)));
    }
    bytes
}

/// Reads the peer's reply to `own`, the hello (first message) that the connecting end has sent. If
/// the reply is a challenge, proves this end's right to connect, and checks the token of the peer.
/// Returns the hello of the peer.
pub(super) async fn read_reply(
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
        (rejection::MAGIC, _) => Err(rejection::read(stream, peer).await),
        _ => Err(refused(peer, "it does not use this protocol")),
    }
}

/// Replies to the challenge of the accepting end with a nonce (random bytes) and a token, the proof
/// that this end may connect. Then reads the hello (first message) and the token of the accepting
/// end, and returns the hello if the token is valid. The caller has already read the magic number
/// of the challenge.
async fn prove(
    stream: &mut TcpStream,
    peer: SocketAddr,
    own: &[u8; HELLO_LEN],
    authenticator: &dyn Authenticator,
) -> Result<[u8; HELLO_LEN]> {
    let failed = |source| io_error(peer, &source);
    let mut accepting = [0; NONCE_LEN];
    stream.read_exact(&mut accepting).await.map_err(failed)?;
    let connecting = nonce()?;
    let transcript = Transcript::new(End::Connecting, peer, [&accepting, &connecting, own]);
    let token = encode(&authenticator.token(&transcript));
    let proof = [&connecting[..], &token].concat();
    stream.write_all(&proof).await.map_err(failed)?;
    let theirs = match read_magic(stream, peer).await? {
        magic @ hello::MAGIC => read_rest(stream, peer, magic).await?,
        rejection::MAGIC => return Err(rejection::read(stream, peer).await),
        _ => return Err(refused(peer, "it does not use this protocol")),
    };
    let token = read_token(stream, peer).await?;
    let parts: [&[u8]; 4] = [&accepting, &connecting, own, &theirs];
    let transcript = Transcript::new(End::Accepting, peer, parts);
    match authenticator.check(&transcript, &token) {
        Ok(()) => Ok(theirs),
        Err(reason) => Err(refused(peer, format!("authentication failed: {reason}"))),
    }
}

/// Returns the encoding of a token (the proof that an end may connect) in a message: its length,
/// followed by its bytes. A token above the maximum length is cut, and the peer then refuses the
/// cut token as not valid.
fn encode(token: &[u8]) -> Vec<u8> {
    let token = &token[..token.len().min(MAX_TOKEN_LEN)];
    let len = u16::try_from(token.len()).expect("the limit has 16 bits");
    [&len.to_be_bytes()[..], token].concat()
}

/// Reads the token of `peer`, the proof that it may connect, from the TCP connection of the
/// handshake: first its length, then its bytes. Fails if the token exceeds the maximum length.
async fn read_token(stream: &mut TcpStream, peer: SocketAddr) -> Result<Vec<u8>> {
    let failed = |source| io_error(peer, &source);
    let len = usize::from(stream.read_u16().await.map_err(failed)?);
    if len > MAX_TOKEN_LEN {
        let reason = format!("its token of {len} bytes is above the limit of {MAX_TOKEN_LEN}");
        return Err(refused(peer, reason));
    }
    let mut token = vec![0; len];
    stream.read_exact(&mut token).await.map_err(failed)?;
    Ok(token)
}
