//! [`ReaderRight`]: the access right of one reader to a published value.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdma_core::memory::ExposedGrant;
use rdma_core::{AccessFlags, RemoteMemory};

use super::Published;
use crate::error::Result;

/// Memory keys of a published value, with one key for each reader that the owner has admitted. The
/// number of a [`ReaderRight`] identifies its key. The key is removed when the right ends. Also
/// contains the last number, so that every right gets a new number.
#[derive(Debug, Default)]
pub(super) struct Rights {
    grants: Mutex<(u64, HashMap<u64, ExposedGrant>)>,
}

/// The access right of one reader to a [`Published`] value, with a memory key of its own. Dropping
/// the right ends this reader's access at the device, without affecting other readers. The right
/// also ends with the value.
pub struct ReaderRight {
    number: u64,
    token: RemoteMemory,
    rights: Weak<Rights>,
}

impl fmt::Debug for ReaderRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReaderRight")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Published {
    /// Admits one reader of this published value: registers the memory again for that reader, and
    /// returns the access right. The owner can end the access of each admitted reader separately.
    /// For this, the owner must not give [`Self::token`], the key for all readers, to any reader.
    ///
    /// ```
    /// use rdma_async::{PublishedReader, RdmaBuilder};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
    /// # let address = listener.local_address()?;
    /// # let (client, server) =
    /// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
    /// let mut board = server.device().publish(64)?;
    /// board.update(b"news")?;
    /// let right = board.admit()?;
    /// let mut reader = PublishedReader::new(&client, right.token())?;
    /// assert_eq!(reader.read().await?, b"news");
    /// right.end()?;
    /// assert!(reader.read().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) if the device cannot register the memory again.
    #[doc(alias = "ibv_reg_mr")]
    pub fn admit(&self) -> Result<ReaderRight> {
        let grant = self.memory.grant(AccessFlags::REMOTE_READ)?;
        let token = grant.remote();
        let mut grants = self.rights.grants.lock();
        let (last, grants) = &mut *grants;
        *last += 1;
        grants.insert(*last, grant);
        Ok(ReaderRight {
            number: *last,
            token,
            rights: Arc::downgrade(&self.rights),
        })
    }
}

impl ReaderRight {
    /// Returns the token of the memory (address, length and key), from which the reader creates a
    /// [`PublishedReader`](crate::PublishedReader).
    pub fn token(&self) -> RemoteMemory {
        self.token
    }

    /// Ends the reader's access at the device. The reader's next read fails with a remote access
    /// error, which ends its connection.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) if the device cannot end the access.
    pub fn end(self) -> Result<()> {
        match self.take() {
            Some(grant) => Ok(grant.revoke()?),
            None => Ok(()),
        }
    }

    /// Removes the memory key with which this reader reads the published value, and returns the
    /// key. The reader's access ends when the key is dropped. Returns `None` if the published value
    /// was dropped, which has ended the access of all readers.
    fn take(&self) -> Option<ExposedGrant> {
        let rights = self.rights.upgrade()?;
        let mut grants = rights.grants.lock();
        grants.1.remove(&self.number)
    }
}

impl Drop for ReaderRight {
    fn drop(&mut self) {
        drop(self.take());
    }
}
