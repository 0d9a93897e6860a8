//! The rejection: the message by which an end refuses its peer.
//!
//! ```text
//! byte 0..8    8..10    10..
//!      magic   length   reason in UTF-8
//! ```

use std::net::{Shutdown, SocketAddr};

use rustix::net::SendFlags;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{io_error, refused};
use crate::error::Error;

/// First bytes of a rejection, the message by which an end refuses its peer. The bytes differ from
/// the first bytes of all other handshake messages.
pub(super) const MAGIC: [u8; 8] = *b"RDMAdeny";
/// Maximum length, in bytes, of the reason in a rejection. A longer reason is cut. Bounds the
/// memory that the reason of a peer can use.
const MAX_REASON_LEN: usize = 200;

/// Sends the peer a rejection, the message that refuses the handshake for `reason`. Ignores errors,
/// because the caller closes the TCP connection in any case.
pub(super) async fn send(stream: &mut TcpStream, reason: &str) {
    drop(stream.write_all(&encode(reason)).await);
    drop(stream.shutdown().await);
}

/// Sends the peer a rejection for `reason`, like [`send`], but without waiting. Sends nothing, or
/// only a part of the rejection, if the socket does not accept all bytes now.
pub(super) fn send_now(stream: &TcpStream, reason: &str) {
    // Like tokio's writes, without a signal if the peer has reset the connection.
    let _ = rustix::net::send(stream, &encode(reason), SendFlags::NOSIGNAL);
    drop(SockRef::from(stream).shutdown(Shutdown::Write));
}

/// Returns a rejection with this reason as bytes: magic number, length and reason.
fn encode(reason: &str) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.len().min(MAX_REASON_LEN)];
    let len = u16::try_from(reason.len()).expect("the limit has 16 bits");
    [&MAGIC[..], &len.to_be_bytes(), reason].concat()
}

/// Reads the peer's rejection of the handshake, after the caller has read the magic number of the
/// rejection. Returns an error with the peer's reason.
pub(super) async fn read(stream: &mut TcpStream, peer: SocketAddr) -> Error {
    let reason = async {
        let len = usize::from(stream.read_u16().await?);
        let mut reason = vec![0; len.min(MAX_REASON_LEN)];
        stream.read_exact(&mut reason).await?;
        Ok(reason)
    };
    match reason.await {
        // The text comes from the peer, so control characters are escaped before the text can reach
        // a terminal.
        Ok(reason) => {
            let text = String::from_utf8_lossy(&reason);
            refused(
                peer,
                format!("it refused the connection: {}", text.escape_debug()),
            )
        }
        Err(error) => io_error(peer, &error),
    }
}
