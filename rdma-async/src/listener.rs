//! Listening for peers.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::builder::Place;
use crate::error::{Error, Result};
use crate::handshake;
use crate::rdma::Rdma;

/// How many peers can be at their handshakes at once; more wait to be accepted by TCP.
const HANDSHAKES: usize = 64;

/// Listens for peers, from [`RdmaBuilder::bind`](crate::RdmaBuilder::bind).
///
/// A peer that is slow or wrong at its handshake keeps no other from connecting.
#[derive(Debug)]
pub struct RdmaListener {
    listener: TcpListener,
    place: Place,
    handshakes: JoinSet<Result<Rdma>>,
}

impl RdmaListener {
    pub(crate) async fn bind(place: Place, address: impl ToSocketAddrs) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| Error::tcp("listening at", "the address", source))?;
        Ok(Self {
            listener,
            place,
            handshakes: JoinSet::new(),
        })
    }

    /// The address it listens at.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`].
    pub fn local_address(&self) -> Result<SocketAddr> {
        self.listener
            .local_addr()
            .map_err(|source| Error::tcp("asking for", "the address", source))
    }

    /// Waits for the next peer. After an error it goes on with the next call. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Handshake`] for a peer that failed to connect, or not in time, [`Error::Verbs`] if
    /// the device has nothing left for it, [`Error::Tcp`].
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
                        // Who came has left already.
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
