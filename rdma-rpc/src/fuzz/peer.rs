//! [`RawPeer`]: an end of a connection that sends and receives arbitrary bytes.

use tokio::sync::mpsc;

use crate::address::Address;
use crate::limits;
use crate::link::{Encryption, Link, Listener};

/// One end of an in-memory connection, used by tests in place of a client or server. Does not
/// implement the protocol: a test can send invalid messages and stop responding.
pub(crate) struct RawPeer {
    sender: mpsc::Sender<Vec<u8>>,
    receiver: mpsc::Receiver<Vec<u8>>,
}

impl RawPeer {
    /// Connects to the server at the in-memory address `address`, for a test in which the client
    /// sends arbitrary bytes.
    pub(crate) async fn connect(address: &Address) -> Self {
        let connected = Link::connect(
            address,
            limits::transport(None, limits::MESSAGE_LEN),
            &Encryption::default(),
        )
        .await;
        Self::new(connected.expect("a server listens").0)
    }

    /// Creates a listener at the in-memory address `address`, for a test of a client. The test acts
    /// as the server, which accepts the connection and sends arbitrary bytes.
    pub(crate) async fn listen(address: &Address) -> Listener {
        let bound = Listener::bind(address, limits::transport(None, limits::MESSAGE_LEN)).await;
        bound.expect("the address is new")
    }

    /// Waits for a client at `listener`, and returns the server's end of its connection.
    pub(crate) async fn accept(listener: &mut Listener) -> Self {
        let accepted = listener.accept().await.expect("a client connects");
        let begun = accepted.into_link(&Encryption::default()).await;
        Self::new(begun.expect("memory needs no TLS").0)
    }

    fn new(link: Link) -> Self {
        let Link::Memory(link) = link else {
            panic!("the address is in memory");
        };
        let (sender, receiver) = link.into_channels().expect("the link is new");
        Self { sender, receiver }
    }

    /// Sends a message without waiting. Returns `false` if the channel is full or the other end has
    /// closed the connection.
    pub(crate) fn send(&self, message: Vec<u8>) -> bool {
        self.sender.try_send(message).is_ok()
    }

    /// Returns the next message, or `None` if no message has arrived.
    pub(crate) fn try_receive(&mut self) -> Option<Vec<u8>> {
        self.receiver.try_recv().ok()
    }

    /// Returns whether the other end has closed the connection.
    #[cfg(test)]
    pub(crate) fn is_disconnected(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits for the next message. Returns `None` after the other end has closed the connection.
    #[cfg(test)]
    pub(crate) async fn receive(&mut self) -> Option<Vec<u8>> {
        self.receiver.recv().await
    }
}
