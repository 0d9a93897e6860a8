//! Memory of this process: messages go through channels, for tests of services.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::core::Core;
use crate::error::Error;
use crate::outbox::{BATCH, Batch};
use crate::payload::{Buffer, Message};

/// Number of messages that wait in a channel; further messages wait at the sender.
const DEPTH: usize = 64;

/// Number of clients that wait to be accepted.
const BACKLOG: usize = 128;

/// Buffers of one direction, to be used again.
type Spare = Arc<ArrayQueue<Vec<u8>>>;

/// Channels of one end, to the peer and from it.
#[cfg(any(test, fuzzing))]
pub(crate) type Channels = (mpsc::Sender<Vec<u8>>, mpsc::Receiver<Vec<u8>>);

/// One end of a connection within this process.
#[derive(Debug)]
pub(crate) struct MemoryLink {
    sender: mpsc::Sender<Vec<u8>>,
    /// Buffers that the peer has read.
    sent: Spare,
    /// Taken by the task that receives.
    receiver: Mutex<Option<mpsc::Receiver<Vec<u8>>>>,
    received: Spare,
}

impl MemoryLink {
    /// Creates the two ends of a connection.
    fn pair() -> (Self, Self) {
        let [(a_sender, a_receiver), (b_sender, b_receiver)] =
            [(); 2].map(|()| mpsc::channel(DEPTH));
        let [a_spare, b_spare] = [(); 2].map(|()| Arc::new(ArrayQueue::new(DEPTH)));
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

    /// Returns the channels of this end, for a peer that sends any bytes.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn into_channels(self) -> Option<Channels> {
        Some((self.sender, self.receiver.into_inner()?))
    }

    pub(super) fn allocate(&self, len: usize) -> Vec<u8> {
        let mut buffer = match self.sent.pop() {
            Some(spare) if len == BATCH => spare,
            _ => Vec::new(),
        };
        buffer.resize(len, 0);
        buffer
    }

    /// Sends a message to the peer. Messages for a peer that is gone are dropped: the task that
    /// receives reports the end, after the messages that have arrived before.
    pub(super) fn try_send(&self, batch: &mut Batch) -> bool {
        match self.sender.try_reserve() {
            Ok(permit) => permit.send(message(batch)),
            Err(TrySendError::Full(())) => return false,
            Err(TrySendError::Closed(())) => {}
        }
        true
    }

    pub(super) async fn send(&self, batch: &mut Batch) {
        if let Ok(permit) = self.sender.reserve().await {
            permit.send(message(batch));
        }
    }

    /// Receives messages until the connection ends.
    pub(super) async fn receive(&self, core: &Arc<Core>) -> Error {
        let Some(mut receiver) = self.receiver.lock().take() else {
            return gone();
        };
        loop {
            core.room().await;
            let Some(message) = receiver.recv().await else {
                return gone();
            };
            if message.len() <= BATCH {
                core.handle(Message::Borrowed(&message));
                // A buffer above the limit is freed.
                drop(self.received.push(message));
            } else {
                core.handle(Message::Owned(Buffer::Heap(message)));
            }
        }
    }
}

/// Takes the message out of a batch, which is left without a buffer.
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

fn gone() -> Error {
    Error::disconnected("the peer closed it")
}

/// Place in the memory of this process at which a server listens.
#[derive(Debug, Clone)]
pub(crate) struct MemoryPort {
    clients: mpsc::Sender<MemoryLink>,
    /// Taken by the server that listens.
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

    pub(super) fn connect(&self) -> Result<MemoryLink, Error> {
        let (client, server) = MemoryLink::pair();
        let is_listening = self.listener.lock().is_none();
        if !is_listening || self.clients.try_send(server).is_err() {
            let reason = "no server accepts clients at this address";
            return Err(Error::disconnected(reason));
        }
        Ok(client)
    }

    pub(super) fn listen(&self) -> Result<MemoryListener, Error> {
        let clients = self.listener.lock().take();
        let clients = clients.ok_or_else(|| Error::Address {
            text: "memory".to_owned(),
            reason: "a server has listened at it already",
        })?;
        Ok(MemoryListener {
            port: self.clone(),
            clients,
        })
    }
}

/// Receiver of the clients of an address in memory.
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
        self.clients.recv().await.ok_or_else(gone)
    }
}
