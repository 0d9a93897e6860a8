//! [`TcpLink`]: the TCP transport. Each message is preceded by its length, four bytes in network
//! byte order.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::core::Core;
use crate::error::Error;
use crate::outbox::Batch;
use crate::payload::{Buffer, Message};
use crate::wire::Violation;

/// Length in bytes of the prefix that precedes each message on a TCP connection. The prefix
/// contains the length of the message.
pub(super) const PREFIX_LEN: usize = 4;

/// Length of the receive buffer in bytes: several batches, so that a busy connection needs few
/// system calls. A message that fits is handled within the buffer. A longer message needs its own
/// buffer.
const READ_BUFFER_LEN: usize = 64 << 10;

/// Approximate time after which an idle connection fails if the peer's host does not respond to
/// keepalive probes. Equal to the timeout for connecting.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// One end of a TCP connection without TLS, which sends batches (messages with one or more frames)
/// and receives messages.
#[derive(Debug)]
pub(crate) struct TcpLink {
    stream: TcpStream,
}

impl TcpLink {
    pub(super) fn new(stream: TcpStream) -> Result<Self, Error> {
        configure(&stream)?;
        Ok(Self { stream })
    }

    /// Writes as much of `batch` to the socket as possible without waiting. Returns `false` if
    /// unsent bytes remain, and `true` otherwise. If the peer has closed the connection, drops the
    /// bytes and returns `true`: the receiving task reports the end, after handling all messages
    /// that arrived earlier.
    pub(super) fn try_send(&self, batch: &mut Batch) -> bool {
        while !batch.rest().is_empty() {
            match self.stream.try_write(batch.rest()) {
                Ok(written) => batch.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "writing to the peer failed");
                    return true;
                }
            }
        }
        true
    }

    /// Writes the bytes of `batch` that were not written yet, and waits while the socket accepts no
    /// bytes. Errors are only logged, because the receiving task reports the end of the connection.
    pub(super) async fn send(&self, batch: &mut Batch) {
        while !self.try_send(batch) {
            if let Err(error) = self.stream.writable().await {
                tracing::debug!(%error, "writing to the peer failed");
                return;
            }
        }
    }

    /// Closes the sending direction of the connection. The peer then reads the end of the stream
    /// after the last message.
    pub(super) fn end_sending(&self) {
        if let Err(error) = SockRef::from(&self.stream).shutdown(Shutdown::Write) {
            tracing::debug!(%error, "closing the sending direction failed");
        }
    }

    /// Receives messages, and passes them to the connection `core`, until the connection ends.
    /// Returns the reason for the end.
    pub(super) async fn receive(&self, core: &Arc<Core>) -> Error {
        read_messages(self, core).await
    }
}

/// Sets `TCP_NODELAY`, so that batches are sent immediately, and keepalive probes, which detect a
/// host that does not respond.
pub(super) fn configure(stream: &TcpStream) -> Result<(), Error> {
    let configured = stream.set_nodelay(true).and_then(|()| {
        let probes = TcpKeepalive::new()
            .with_time(KEEP_ALIVE / 2)
            .with_interval(KEEP_ALIVE / 8)
            .with_retries(4);
        SockRef::from(&stream).set_tcp_keepalive(&probes)
    });
    configured.map_err(|cause| Error::tcp("configuring the connection", cause))
}

/// Byte stream from a peer, over TCP or TLS, in which each message is preceded by its length.
pub(super) trait MessageSource {
    /// Reads bytes into `room` and returns their number, or 0 at the end of the stream.
    fn read(&mut self, room: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;
}

/// Reads the messages in the byte stream `source` and passes them to the connection `core`, until
/// the connection ends. Returns the reason for the end.
pub(super) async fn read_messages(source: impl MessageSource + Send, core: &Arc<Core>) -> Error {
    match (MessageReader { source }).read_all(core).await {
        Ok(()) => Error::disconnected("closed by the peer"),
        Err(error) => error,
    }
}

/// Reader that splits a byte stream from the peer into messages, and passes the messages to a
/// connection.
struct MessageReader<S> {
    source: S,
}

impl<S: MessageSource + Send> MessageReader<S> {
    /// Reads the peer's messages from the byte stream and passes them to the connection `core`.
    /// Returns `Ok` when the peer has closed the stream or the connection has ended. Fails if
    /// reading fails or a message is too long.
    async fn read_all(&mut self, core: &Arc<Core>) -> Result<(), Error> {
        let mut buffer = vec![0; READ_BUFFER_LEN];
        // The bytes `start..end` were received and are not handled yet.
        let (mut start, mut end) = (0, 0);
        loop {
            while let Some(len) = length(&buffer[start..end]) {
                if len > core.message_limit() {
                    return Err(Violation::TooLong.into());
                }
                core.wait_for_room().await;
                let message = start + PREFIX_LEN..start + PREFIX_LEN + len;
                if message.end <= end {
                    core.handle(Message::Borrowed(&buffer[message.clone()]));
                    start = message.end;
                } else if PREFIX_LEN + len > READ_BUFFER_LEN {
                    let begun = &buffer[message.start..end];
                    let Some(whole) = self.read_long(begun, len).await? else {
                        return Ok(());
                    };
                    core.handle(Message::Owned(Buffer::Heap(whole)));
                    (start, end) = (0, 0);
                } else {
                    break;
                }
                if core.end().is_some() {
                    return Ok(());
                }
            }
            if start > 0 {
                buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
            }
            match self.read(&mut buffer[end..]).await? {
                0 => return Ok(()),
                read => end += read,
            }
        }
    }

    /// Reads the rest of a message of `len` bytes. `begun` are the bytes of the message that have
    /// already arrived. The buffer grows with the bytes that arrive, because a malicious peer can
    /// announce any length. Returns `None` if the peer closes the connection.
    async fn read_long(&mut self, begun: &[u8], len: usize) -> Result<Option<Vec<u8>>, Error> {
        let (mut whole, mut at) = (begun.to_vec(), begun.len());
        while at < len {
            if at == whole.len() {
                whole.resize(len.min(at + at.max(READ_BUFFER_LEN)), 0);
            }
            match self.read(&mut whole[at..]).await? {
                0 => return Ok(None),
                read => at += read,
            }
        }
        Ok(Some(whole))
    }

    /// Reads bytes into `room` and returns their number, or 0 at the end of the stream.
    async fn read(&mut self, room: &mut [u8]) -> Result<usize, Error> {
        // A peer that fills the socket continuously must not prevent other tasks from running.
        tokio::task::coop::consume_budget().await;
        let read = self.source.read(room).await;
        read.map_err(|cause| Error::tcp("receiving from the peer", cause))
    }
}

impl MessageSource for &TcpLink {
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            self.stream.readable().await?;
            match self.stream.try_read(room) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                outcome => return outcome,
            }
        }
    }
}

/// Reads the length prefix at the start of `bytes`, and returns the length of the message in bytes.
/// Returns `None` if the prefix has not arrived completely.
fn length(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.first_chunk::<PREFIX_LEN>()?;
    usize::try_from(u32::from_be_bytes(*bytes)).ok()
}
