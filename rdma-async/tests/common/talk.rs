//! Invalid bytes that faulty peers send in place of a handshake.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::hostile::{HELLO_LEN, hello, prepared};

/// Bytes that a faulty peer sends, and whether it then closes the connection.
pub(crate) struct Talk {
    pub(crate) what: &'static str,
    pub(crate) says: Vec<u8>,
    pub(crate) leaves: bool,
}

/// Returns the byte sequences that a faulty peer might send, as client or server.
pub(crate) fn talks() -> Vec<Talk> {
    let (_domain, own) = prepared();
    let right = hello(&own.endpoint());
    let mut talks = Vec::new();
    let mut talk = |what, says: &[u8], leaves| {
        talks.push(Talk {
            what,
            says: says.to_vec(),
            leaves,
        });
    };
    talk("nothing", &[], true);
    talk("five bytes", &right[..5], true);
    talk("half a hello", &right[..HELLO_LEN / 2], true);
    talk("a hello and nothing more", &right, true);
    talk("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", false);
    talk(
        "TLS",
        &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0, 0],
        false,
    );
    talk("random bytes", &super::bytes(100, 0x5a), false);
    talk("a mebibyte", &vec![0xaa; 1 << 20], false);
    let spoiled = |at: usize, with: &[u8]| {
        let mut bytes = right;
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    talk("another version", &spoiled(8, &[0, 99]), false);
    talk("no receives", &spoiled(10, &[0, 0]), false);
    talk("no control receives", &spoiled(12, &[0, 1]), false);
    talk(
        "a queue pair number above 24 bits",
        &spoiled(18, &[0xff; 4]),
        false,
    );
    talk(
        "a packet sequence above 24 bits",
        &spoiled(22, &[0xff; 4]),
        false,
    );
    talk("no such MTU", &spoiled(18 + 26, &[77]), false);
    let ready = |bytes: [u8; HELLO_LEN], ready: u8| [&bytes[..], &[ready]].concat();
    talk("another word than ready", &ready(right, 0x15), false);
    // A GID without a route; not every device detects this.
    talk(
        "a GID of nowhere",
        &ready(spoiled(26, &[0; 16]), 0x15),
        false,
    );
    talk(
        "a GID of everywhere",
        &ready(spoiled(26, &[0xff; 16]), 0x15),
        false,
    );
    talks
}

/// Sends the bytes, shuts down the sending side if `leaves` is set, and waits until the other end
/// closes the connection.
pub(crate) async fn say(stream: &mut TcpStream, talk: &Talk) {
    // The other end may close the connection before all bytes are sent.
    drop(stream.write_all(&talk.says).await);
    if talk.leaves {
        drop(stream.shutdown().await);
    }
    let mut heard = Vec::new();
    drop(stream.read_to_end(&mut heard).await);
}
