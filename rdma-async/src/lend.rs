//! [`Lent`]: memory that the peer may access until this end ends the access.

use std::fmt;
use std::sync::Arc;

use rdma_core::{AccessFlags, RemoteMemory};

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::memory::LocalMr;
use crate::rdma::Rdma;

impl Rdma {
    /// Lends a region to the peer, which may read and write it until the returned [`Lent`] ends the
    /// access. Sends nothing: the program passes the token ([`Lent::token`]) to the peer.
    ///
    /// Unlike [`Self::reserve`], the access has no time limit of its own, and [`Lent::end`] returns
    /// the region without waiting.
    ///
    /// ```
    /// # use std::alloc::Layout;
    /// use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, RdmaBuilder, RemoteMr};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
    /// # let address = listener.local_address()?;
    /// # let (client, server) =
    /// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
    /// let region = server.alloc_local_mr(Layout::new::<[u8; 8]>())?;
    /// let lent = server.lend(region).map_err(|(_, error)| error)?;
    ///
    /// let mut remote = RemoteMr::from_token_bytes(&lent.token().to_bytes());
    /// let mut local = client.alloc_local_mr(Layout::new::<[u8; 8]>())?;
    /// local.as_mut_slice().fill(7);
    /// client.write(&local, &mut remote).await?;
    ///
    /// assert_eq!(lent.end()?.as_slice(), [7; 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Every error is returned together with the region. [`Error::Verbs`] if an operation is using
    /// the region, or if the device cannot register the region. Otherwise the error that ended the
    /// connection.
    pub fn lend(&self, region: LocalMr) -> Result<Lent, (LocalMr, Error)> {
        self.lend_with(region, AccessFlags::all())
    }

    /// Lends a region like [`Self::lend`], except that the peer may only read the region.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::lend`].
    pub fn lend_read_only(&self, region: LocalMr) -> Result<Lent, (LocalMr, Error)> {
        self.lend_with(region, AccessFlags::REMOTE_READ)
    }

    /// Lends a region to the peer. The peer gets the access rights in `allowed`, except rights that
    /// the settings of the connection do not allow.
    fn lend_with(&self, region: LocalMr, allowed: AccessFlags) -> Result<Lent, (LocalMr, Error)> {
        let connection = self.connection_arc();
        let (lease, memory) = connection.lend_with(region, allowed)?;
        Ok(Lent {
            memory,
            lease: Some(OpenLease {
                connection: Arc::clone(connection),
                number: lease,
            }),
        })
    }
}

/// Memory of this end that the peer may access, see [`Rdma::lend`]. Dropping this value ends the
/// access, and drops the region.
#[must_use = "dropping the value ends the access"]
pub struct Lent {
    memory: RemoteMemory,
    /// `None` once the access has ended.
    lease: Option<OpenLease>,
}

/// Right of the peer to access a memory region of this end, until this end ends the access.
/// `number` identifies the right on its connection.
struct OpenLease {
    connection: Arc<Connection>,
    number: u64,
}

impl Lent {
    /// Returns the token of the memory: its address, length and key. The program passes the token
    /// to the peer, which creates a [`RemoteMr`](crate::RemoteMr) by
    /// [`from_token`](crate::RemoteMr::from_token).
    pub fn token(&self) -> RemoteMemory {
        self.memory
    }

    /// Ends the access at the device, and returns the region. A later access of the peer gets a
    /// remote access error and changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot end the access. The connection then ends, and the
    /// memory is not reused.
    pub fn end(mut self) -> Result<LocalMr> {
        let ended = self.lease.take().map(OpenLease::end);
        ended.unwrap_or(Err(Error::LeaseEnded))
    }
}

impl OpenLease {
    fn end(self) -> Result<LocalMr> {
        let Some(region) = self.connection.end_lease(self.number) else {
            return Err(Error::LeaseEnded);
        };
        region.map_err(|error| {
            let error = Error::from(error);
            self.connection.fail(error.clone());
            error
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // On an error the device may still access the memory, which is then not freed.
        drop(self.lease.take().map(OpenLease::end));
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}
