//! The denial: the message with which an end refuses its peer.
//!
//! ```text
//! byte 0..8    8..10    10..
//!      magic   length   reason in UTF-8
//! ```

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{interrupted, refused};
use crate::error::Error;

pub(super) const MAGIC: [u8; 8] = *b"RDMAdeny";
/// Maximum number of bytes of a reason.
const REASON: usize = 200;

/// Sends a denial. Errors are ignored, because the connection ends in any case.
pub(super) async fn send(stream: &mut TcpStream, reason: &str) {
    let reason = &reason.as_bytes()[..reason.len().min(REASON)];
    let len = u16::try_from(reason.len()).expect("the limit has 16 bits");
    let message = [&MAGIC[..], &len.to_be_bytes(), reason].concat();
    drop(stream.write_all(&message).await);
    drop(stream.shutdown().await);
}

/// Reads a denial behind its magic, and returns it as an error.
pub(super) async fn read(stream: &mut TcpStream, peer: SocketAddr) -> Error {
    let reason = async {
        let len = usize::from(stream.read_u16().await?);
        let mut reason = vec![0; len.min(REASON)];
        stream.read_exact(&mut reason).await?;
        Ok(reason)
    };
    match reason.await {
        // The text comes from the peer: control characters must not reach a terminal.
        Ok(reason) => {
            let text = String::from_utf8_lossy(&reason);
            refused(
                peer,
                format!("it refuses this end: {}", text.escape_debug()),
            )
        }
        Err(error) => interrupted(peer, &error),
    }
}
