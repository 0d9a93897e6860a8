//! The link of a connection: the means, beside the queue pair, by which each end learns that the
//! other has closed the connection.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Connection;
use super::farewell::Farewell;
use crate::cm::ManagerLink;

/// Means by which the ends of a connection learn of its end. Dropping the link closes it.
#[derive(Debug)]
pub(crate) enum Link {
    /// TCP connection of the handshake, which carries no further data. The kernel tests the peer.
    Tcp(TcpStream),
    /// Connection manager, which does not learn that the peer's host is gone.
    Manager(ManagerLink),
    /// Messages of the connection. Each end tests an idle peer by a message, and does not learn
    /// immediately of a peer whose program has ended.
    InBand(InBand),
}

/// Link without means of its own.
#[derive(Debug)]
pub(crate) struct InBand(Arc<Farewell>);

impl Link {
    /// Returns a link that uses only messages of the connection.
    pub(crate) fn in_band(connection: &Connection) -> Self {
        Self::InBand(InBand(Arc::clone(&connection.farewell)))
    }

    /// Waits until the peer closes the link, and returns the reason.
    pub(super) async fn end(&mut self) -> String {
        match self {
            Self::Tcp(stream) => match stream.read(&mut [0]).await {
                Ok(0) => "the peer closed it".to_owned(),
                Ok(_) => "the peer sent something after the handshake".to_owned(),
                Err(error) => format!("the peer is gone: {error}"),
            },
            Self::Manager(link) => link.end().await,
            Self::InBand(InBand(farewell)) => {
                farewell.wait().await;
                "the peer closed it".to_owned()
            }
        }
    }

    /// Tells the peer that this end sends nothing more.
    pub(super) async fn shut_down(&mut self, connection: &Connection) {
        match self {
            // If this fails, the peer is gone, which the end of the stream will show.
            Self::Tcp(stream) => drop(stream.shutdown().await),
            Self::Manager(link) => link.disconnect(),
            Self::InBand(_) => connection.say_farewell(),
        }
    }

    /// Tells the peer that this end sends nothing more, if closing the link does not. Returns
    /// whether a message to the peer is on its way.
    pub(super) fn say_end(&self, connection: &Connection) -> bool {
        match self {
            Self::Tcp(_) | Self::Manager(_) => false,
            Self::InBand(_) => {
                connection.say_farewell();
                true
            }
        }
    }

    /// Returns whether a message about the end may be on its way to the peer.
    pub(super) fn is_busy(&self, connection: &Connection) -> bool {
        matches!(self, Self::InBand(_)) && !connection.is_settled()
    }

    /// Returns whether this end must test an idle peer.
    pub(super) fn needs_probes(&self) -> bool {
        !matches!(self, Self::Tcp(_))
    }

    /// Returns whether the peer has not closed the link. Needs no runtime.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Tcp(stream) => {
                let peeked = SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]);
                peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            Self::Manager(link) => link.is_open(),
            Self::InBand(InBand(farewell)) => !farewell.has_arrived(),
        }
    }
}
