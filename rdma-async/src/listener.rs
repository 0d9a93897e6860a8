//! [`RdmaListener`]: accepts the connections of any number of peers at one TCP address.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::builder::Template;
use crate::error::{Error, Result};
use crate::handshake;
use crate::rdma::Rdma;

/// Maximum number of concurrent handshakes; further peers wait in the TCP backlog.
const HANDSHAKES: usize = 64;

/// Listener for peers, created by [`RdmaBuilder::bind`](crate::RdmaBuilder::bind).
///
/// Handshakes run concurrently: a slow or faulty peer does not delay the others, up to 64 at a time.
#[derive(Debug)]
pub struct RdmaListener {
    listener: TcpListener,
    place: Template,
    handshakes: JoinSet<Result<Rdma>>,
}

impl RdmaListener {
    pub(crate) async fn bind(place: Template, address: impl ToSocketAddrs) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| Error::tcp("listening at", "the address", source))?;
        Ok(Self {
            listener,
            place,
            handshakes: JoinSet::new(),
        })
    }

    /// Returns the TCP address at which peers can connect.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`] if the system cannot return the address.
    pub fn local_address(&self) -> Result<SocketAddr> {
        self.listener
            .local_addr()
            .map_err(|source| Error::tcp("asking for", "the address", source))
    }

    /// Waits until the next peer has connected, and returns its connection. Can be called again after
    /// an error. Cancel-safe: dropping the future loses no connection.
    ///
    /// # Errors
    ///
    /// [`Error::Handshake`] if the handshake of a peer failed or exceeded the time limit of
    /// connecting, [`Error::Verbs`] if the device cannot create a queue pair, [`Error::Tcp`] if
    /// accepting failed.
    pub async fn accept(&mut self) -> Result<Rdma> {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => match done {
                    Ok(outcome) => return outcome,
                    Err(stopped) if stopped.is_panic() => {
                        std::panic::resume_unwind(stopped.into_panic())
                    }
                    Err(_) => {}
                },
                arrival = self.listener.accept(), if self.handshakes.len() < HANDSHAKES => {
                    let (stream, peer) = match arrival {
                        Ok(arrival) => arrival,
                        // The peer has already closed the connection.
                        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                        Err(source) => {
                            return Err(Error::tcp("accepting at", "the address", source));
                        }
                    };
                    let place = self.place.clone();
                    let limit = place.settings.connect_timeout;
                    self.handshakes.spawn(async move {
                        timeout(limit, handshake::accept(place, stream, peer)).await.unwrap_or_else(|_| {
                            let reason = format!("it took longer than {limit:?}");
                            Err(Error::Handshake { peer, reason })
                        })
                    });
                }
            }
        }
    }
}
