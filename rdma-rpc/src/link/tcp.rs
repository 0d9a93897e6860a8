//! TCP: each message follows its length, four bytes in network byte order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::core::Core;
use crate::error::Error;
use crate::outbox::Batch;
use crate::payload::{Buffer, Message};
use crate::wire::Violation;

/// Length of the length of a message in bytes.
pub(super) const PREFIX: usize = 4;

/// Length in bytes of the buffer into which the socket is read.
const READ: usize = 64 << 10;

/// Time after which an idle connection notices that the peer's host is gone, about.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A TCP connection.
#[derive(Debug)]
pub(crate) struct TcpLink {
    stream: TcpStream,
}

impl TcpLink {
    pub(super) fn new(stream: TcpStream) -> Result<Self, Error> {
        configure(&stream)?;
        Ok(Self { stream })
    }

    /// Writes as much of a batch as the socket accepts. Bytes for a peer that is gone are dropped:
    /// the task that receives reports the end, after the messages that have arrived before.
    pub(super) fn try_send(&self, batch: &mut Batch) -> bool {
        while !batch.rest().is_empty() {
            match self.stream.try_write(batch.rest()) {
                Ok(written) => batch.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "the peer is gone");
                    return true;
                }
            }
        }
        true
    }

    pub(super) async fn send(&self, batch: &mut Batch) {
        while !self.try_send(batch) {
            if let Err(error) = self.stream.writable().await {
                tracing::debug!(%error, "the peer is gone");
                return;
            }
        }
    }

    /// Receives messages until the connection ends.
    pub(super) async fn receive(&self, core: &Arc<Core>) -> Error {
        read_messages(self, core).await
    }
}

/// Sets the options of a socket.
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

/// Bytes of a peer, in which each message follows its length.
pub(super) trait Source {
    /// Reads some bytes; 0 at the end of the stream.
    fn read(&mut self, room: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;
}

/// Passes the messages of a source to the connection. Returns the reason for the end.
pub(super) async fn read_messages(source: impl Source + Send, core: &Arc<Core>) -> Error {
    match (Messages { source }).read_all(core).await {
        Ok(()) => Error::disconnected("the peer closed it"),
        Err(error) => error,
    }
}

struct Messages<S> {
    source: S,
}

impl<S: Source + Send> Messages<S> {
    async fn read_all(&mut self, core: &Arc<Core>) -> Result<(), Error> {
        let mut buffer = vec![0; READ];
        // The bytes `start..end` are received and not yet handled.
        let (mut start, mut end) = (0, 0);
        loop {
            while let Some(len) = length(&buffer[start..end]) {
                if len > core.message_limit() {
                    return Err(Violation::TooLong.into());
                }
                core.room().await;
                let message = start + PREFIX..start + PREFIX + len;
                if message.end <= end {
                    core.handle(Message::Borrowed(&buffer[message.clone()]));
                    start = message.end;
                } else if PREFIX + len > READ {
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

    /// Reads the rest of a message of `len` bytes. Memory grows with the bytes that have arrived,
    /// not with the length that the peer told. Returns `None` if the peer closes the connection.
    async fn read_long(&mut self, begun: &[u8], len: usize) -> Result<Option<Vec<u8>>, Error> {
        let (mut whole, mut at) = (begun.to_vec(), begun.len());
        while at < len {
            if at == whole.len() {
                whole.resize(len.min(at + at.max(READ)), 0);
            }
            match self.read(&mut whole[at..]).await? {
                0 => return Ok(None),
                read => at += read,
            }
        }
        Ok(Some(whole))
    }

    async fn read(&mut self, room: &mut [u8]) -> Result<usize, Error> {
        // A peer that keeps the socket full must not keep other tasks from running.
        tokio::task::coop::consume_budget().await;
        let read = self.source.read(room).await;
        read.map_err(|cause| Error::tcp("receiving from the peer", cause))
    }
}

impl Source for &TcpLink {
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

/// Returns the length of the message that begins at the start of `bytes`, once it has arrived.
fn length(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.first_chunk::<PREFIX>()?;
    usize::try_from(u32::from_be_bytes(*bytes)).ok()
}
