//! [`MemoryLink`]: a connection within this process over channels, for tests of services.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::core::Core;
use crate::error::Error;
use crate::outbox::{Batch, MAX_BATCH_LEN};
use crate::payload::{Buffer, Message};

/// Capacity of a channel in messages. Limited like the queue of a real transport, so that the
/// sender waits while the channel is full.
const CHANNEL_DEPTH: usize = 64;

/// Maximum number of clients that wait to be accepted, like the backlog of a listening socket.
/// Connecting fails for a further client.
const BACKLOG: usize = 128;

/// Free buffers of one direction of a connection: the receiver adds a buffer after handling its
/// message, and the sender takes the buffer for a later message.
type Spare = Arc<ArrayQueue<Vec<u8>>>;

/// The two channels of one end of a connection: the sender of its messages to the peer, and the
/// receiver of the peer's messages.
#[cfg(any(test, fuzzing))]
pub(crate) type Channels = (mpsc::Sender<Vec<u8>>, mpsc::Receiver<Vec<u8>>);

/// One end of a connection between a client and a server in this process: a channel of messages for
/// each direction.
#[derive(Debug)]
pub(crate) struct MemoryLink {
    sender: mpsc::Sender<Vec<u8>>,
    /// Buffers that the peer has received and that this end may use again.
    sent: Spare,
    /// Channel of received messages; `None` once the receiving task has taken the channel.
    receiver: Mutex<Option<mpsc::Receiver<Vec<u8>>>>,
    /// Buffers that this end has received and that the peer may use again.
    received: Spare,
}

impl MemoryLink {
    /// Creates an in-memory connection between a client and a server in this process, and returns
    /// its two ends.
    fn pair() -> (Self, Self) {
        let [(a_sender, a_receiver), (b_sender, b_receiver)] =
            [(); 2].map(|()| mpsc::channel(CHANNEL_DEPTH));
        let [a_spare, b_spare] = [(); 2].map(|()| Arc::new(ArrayQueue::new(CHANNEL_DEPTH)));
        let end = |sender, sent: &Spare, receiver, received: &Spare| Self {
            sender,
            sent: Arc::clone(sent),
            receiver: Mutex::new(Some(receiver)),
            received: Arc::clone(received),
        };
        (
            end(a_sender, &a_spare, b_receiver, &b_spare),
            end(b_sender, &b_spare, a_receiver, &a_spare),
        )
    }

    /// Returns the channels through which this end sends and receives messages, for a test that
    /// handles the bytes itself. Returns `None` if the connection's receiving task has already
    /// taken the receiving channel.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn into_channels(self) -> Option<Channels> {
        Some((self.sender, self.receiver.into_inner()?))
    }

    /// Returns a buffer of `len` bytes, which can contain bytes of an earlier message. If `len` is
    /// [`MAX_BATCH_LEN`] and the peer has returned a buffer, reuses this buffer. Otherwise
    /// allocates a new buffer.
    pub(super) fn allocate(&self, len: usize) -> Vec<u8> {
        let mut buffer = match self.sent.pop() {
            Some(spare) if len == MAX_BATCH_LEN => spare,
            _ => Vec::new(),
        };
        buffer.resize(len, 0);
        buffer
    }

    /// Passes the message in `batch` to the peer without waiting. Returns `false` if too many
    /// messages wait for the peer to receive them, and `true` otherwise. If the peer has closed the
    /// connection, drops the message and returns `true`: the receiving task reports the end of the
    /// connection.
    pub(super) fn try_send(&self, batch: &mut Batch) -> bool {
        match self.sender.try_reserve() {
            Ok(permit) => permit.send(message(batch)),
            Err(TrySendError::Full(())) => return false,
            Err(TrySendError::Closed(())) => {}
        }
        true
    }

    /// Sends the message of `batch` to the peer, and waits while the channel is full.
    pub(super) async fn send(&self, batch: &mut Batch) {
        if let Ok(permit) = self.sender.reserve().await {
            permit.send(message(batch));
        }
    }

    /// Receives messages, and passes them to the connection `core`, until the connection ends.
    /// Returns the reason for the end.
    pub(super) async fn receive(&self, core: &Arc<Core>) -> Error {
        let Some(mut receiver) = self.receiver.lock().take() else {
            return closed_by_peer();
        };
        loop {
            core.wait_for_room().await;
            let Some(message) = receiver.recv().await else {
                return closed_by_peer();
            };
            if message.len() <= MAX_BATCH_LEN {
                core.handle(Message::Borrowed(&message));
                // A buffer beyond the capacity of the queue is freed.
                drop(self.received.push(message));
            } else {
                core.handle(Message::Owned(Buffer::Heap(message)));
            }
        }
    }
}

/// Takes the bytes of the message out of `batch`, without copying them.
fn message(batch: &mut Batch) -> Vec<u8> {
    let len = batch.len();
    match batch.buffer() {
        Buffer::Heap(bytes) => {
            let mut message = std::mem::take(bytes);
            message.truncate(len);
            message
        }
        Buffer::Region(_) => Vec::new(),
    }
}

/// Returns the error of a connection that the peer has closed.
fn closed_by_peer() -> Error {
    Error::disconnected("closed by the peer")
}

/// In-memory address, at which one server of this process listens and clients of the same process
/// connect. Clones are the same address.
#[derive(Debug, Clone)]
pub(crate) struct MemoryPort {
    clients: mpsc::Sender<MemoryLink>,
    /// Queue of clients; `None` once a server has taken the queue in order to listen.
    listener: Arc<Mutex<Option<mpsc::Receiver<MemoryLink>>>>,
}

impl MemoryPort {
    pub(crate) fn new() -> Self {
        let (clients, listener) = mpsc::channel(BACKLOG);
        Self {
            clients,
            listener: Arc::new(Mutex::new(Some(listener))),
        }
    }

    /// Connects to the server that listens at this address. Fails if there is no server, or if its
    /// backlog is full.
    pub(super) fn connect(&self) -> Result<MemoryLink, Error> {
        let (client, server) = MemoryLink::pair();
        let is_listening = self.listener.lock().is_none();
        if !is_listening || self.clients.try_send(server).is_err() {
            let reason = "no server accepts clients at this address";
            return Err(Error::disconnected(reason));
        }
        Ok(client)
    }

    /// Creates the listener of this in-memory address. Fails if a listener was created for this
    /// address before, even if the server has ended.
    pub(super) fn listen(&self) -> Result<MemoryListener, Error> {
        let clients = self.listener.lock().take();
        let clients = clients.ok_or_else(|| Error::Address {
            text: "memory".to_owned(),
            reason: "a server has already listened at this address",
        })?;
        Ok(MemoryListener {
            port: self.clone(),
            clients,
        })
    }
}

/// Listener of a server at an in-memory address, which accepts connections of clients in this
/// process.
#[derive(Debug)]
pub(crate) struct MemoryListener {
    port: MemoryPort,
    clients: mpsc::Receiver<MemoryLink>,
}

impl MemoryListener {
    pub(super) fn port(&self) -> &MemoryPort {
        &self.port
    }

    pub(super) async fn accept(&mut self) -> Result<MemoryLink, Error> {
        self.clients.recv().await.ok_or_else(closed_by_peer)
    }
}
