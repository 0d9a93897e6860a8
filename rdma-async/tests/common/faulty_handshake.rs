//! Invalid handshakes of faulty peers.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::hostile::{HELLO_LEN, hello, prepared};

/// An invalid handshake.
pub(crate) struct FaultyHandshake {
    pub(crate) name: &'static str,
    /// Bytes that the faulty peer sends.
    pub(crate) bytes: Vec<u8>,
    /// Set if the faulty peer then shuts down its direction of the TCP connection.
    pub(crate) shuts_down: bool,
}

/// Returns all invalid handshakes, each for a client or a server.
pub(crate) fn faulty_handshakes() -> Vec<FaultyHandshake> {
    let (_domain, own) = prepared();
    let valid = hello(&own.endpoint());
    let mut all = Vec::new();
    let mut add = |name, bytes: &[u8], shuts_down| {
        all.push(FaultyHandshake {
            name,
            bytes: bytes.to_vec(),
            shuts_down,
        });
    };
    add("nothing", &[], true);
    add("five bytes", &valid[..5], true);
    add("half a hello", &valid[..HELLO_LEN / 2], true);
    add("a hello and nothing more", &valid, true);
    add("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", false);
    add(
        "TLS",
        &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0, 0, 0],
        false,
    );
    add("random bytes", &super::bytes(100, 0x5a), false);
    add("a mebibyte", &vec![0xaa; 1 << 20], false);
    let modified = |at: usize, with: &[u8]| {
        let mut bytes = valid;
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    add("another version", &modified(8, &[0, 99]), false);
    add("no receives", &modified(10, &[0, 0]), false);
    add("no control receives", &modified(12, &[0, 1]), false);
    add(
        "a queue pair number above 24 bits",
        &modified(18, &[0xff; 4]),
        false,
    );
    add(
        "a packet sequence above 24 bits",
        &modified(22, &[0xff; 4]),
        false,
    );
    add("an invalid MTU", &modified(18 + 26, &[77]), false);
    let ready = |bytes: [u8; HELLO_LEN], ready: u8| [&bytes[..], &[ready]].concat();
    add("a wrong byte instead of ready", &ready(valid, 0x15), false);
    // Two GIDs without a route. Not every device detects them.
    add(
        "an unspecified GID",
        &ready(modified(26, &[0; 16]), 0x15),
        false,
    );
    add(
        "a multicast GID",
        &ready(modified(26, &[0xff; 16]), 0x15),
        false,
    );
    all
}

/// Sends a faulty handshake, and waits until the other end closes the TCP connection.
pub(crate) async fn send_faulty(stream: &mut TcpStream, faulty: &FaultyHandshake) {
    // The other end may close the connection before all bytes are sent.
    drop(stream.write_all(&faulty.bytes).await);
    if faulty.shuts_down {
        drop(stream.shutdown().await);
    }
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
}
