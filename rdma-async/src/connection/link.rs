//! The link of a connection: the channel beside the queue pair by which each end notices that the
//! other end has closed the connection.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Connection;
use super::close_notice::CloseNotice;
use crate::cm::CmLink;

/// Means by which each end of a connection notices that the other end has closed the connection.
/// Dropping the link notifies the peer, except for [`Self::InBand`].
#[derive(Debug)]
pub(crate) enum Link {
    /// TCP connection of the handshake, which carries no further data. The kernel probes the peer
    /// (TCP keep-alive).
    Tcp(TcpStream),
    /// Connection of the connection manager, which does not detect that the peer's host has failed.
    Cm(CmLink),
    /// Control messages of the connection itself. Each end probes an idle peer by a message.
    /// Without such a probe, an end does not notice that the peer's program has ended.
    InBand(InBand),
}

/// Link of a connection that has no TCP or rdma_cm connection. Before an end closes the RDMA
/// connection, that end sends a control message on this connection. The link shares the record of
/// whether the peer's message has arrived.
#[derive(Debug)]
pub(crate) struct InBand(Arc<CloseNotice>);

impl Link {
    /// Creates the link of a connection that has no TCP or rdma_cm connection. With this link, each
    /// end announces its close by a control message on the RDMA connection.
    pub(crate) fn in_band(connection: &Connection) -> Self {
        Self::InBand(InBand(Arc::clone(&connection.close_notice)))
    }

    /// Waits until the peer closes the link, and returns the reason as a text for an error.
    pub(super) async fn wait_for_close(&mut self) -> String {
        match self {
            Self::Tcp(stream) => match stream.read(&mut [0]).await {
                Ok(0) => "the peer closed it".to_owned(),
                Ok(_) => "the peer sent data after the handshake".to_owned(),
                Err(error) => format!("the peer is gone: {error}"),
            },
            Self::Cm(link) => link.wait_for_close().await,
            Self::InBand(InBand(close_notice)) => {
                close_notice.wait().await;
                "the peer closed it".to_owned()
            }
        }
    }

    /// Notifies the peer that this end sends no further messages: shuts down the TCP connection,
    /// disconnects the rdma_cm connection, or sends a control message.
    pub(super) async fn shut_down(&mut self, connection: &Connection) {
        match self {
            // If this fails, the TCP connection is broken, and reading from it returns the error.
            Self::Tcp(stream) => drop(stream.shutdown().await),
            Self::Cm(link) => link.disconnect(),
            Self::InBand(_) => connection.announce_close(),
        }
    }

    /// Announces to the peer, by a control message, that this end closes the connection. Queues the
    /// message only once, and returns `true`. For a TCP or rdma_cm link, does nothing and returns
    /// `false`: such a link notifies the peer when the link is dropped.
    pub(super) fn announce_close_in_band(&self, connection: &Connection) -> bool {
        match self {
            Self::Tcp(_) | Self::Cm(_) => false,
            Self::InBand(_) => {
                connection.announce_close();
                true
            }
        }
    }

    /// Returns whether the connection must be kept until the peer has received all messages of this
    /// end, among them perhaps the control message that announces the close. Always returns `false`
    /// for a TCP or rdma_cm link, which needs no such message.
    pub(super) fn is_busy(&self, connection: &Connection) -> bool {
        matches!(self, Self::InBand(_)) && !connection.has_delivered_all()
    }

    /// Returns whether this end must probe an idle peer, because the link does not detect that the
    /// peer has failed.
    pub(super) fn needs_probes(&self) -> bool {
        !matches!(self, Self::Tcp(_))
    }

    /// Returns `true` while the link is open, which means that the peer has not closed the
    /// connection. Reads the state of the TCP or rdma_cm connection, or the arrival of a close
    /// message if there is no such connection. Does not wait, and does not need the runtime.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Tcp(stream) => {
                let peeked = SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]);
                peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            Self::Cm(link) => link.is_open(),
            Self::InBand(InBand(close_notice)) => !close_notice.has_arrived(),
        }
    }
}
