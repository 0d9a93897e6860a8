//! [`Announcer`]: notifications of the readers of a published value about its changes.

use std::alloc::Layout;
use std::pin::pin;

use rdma_core::RemoteMemory;
use tokio::sync::watch;

use super::{Published, PublishedReader};
use crate::error::Result;
use crate::memory::RemoteMr;
use crate::rdma::Rdma;

/// Notifier of readers about changes of a [`Published`] value. A notification is an empty RDMA
/// write with immediate data. Created by [`Published::announcer`].
///
/// A reader waits for notifications by [`PublishedReader::announced`], instead of reading
/// repeatedly.
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
/// let mut reader = PublishedReader::new(&client, board.token())?;
/// let announcer = board.announcer();
/// let announcing = tokio::spawn(async move { announcer.announce(&server, 0).await });
/// board.update(b"news")?;
/// assert_eq!(reader.announced().await?, b"news");
/// // Dropping the value ends the announcements.
/// drop(board);
/// announcing.await.expect("the task does not panic")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Announcer {
    versions: watch::Receiver<u64>,
}

impl Published {
    /// Creates an announcer for the published value. [`Announcer::announce`] notifies one reader
    /// whenever the value changes after this call. The program calls `announce` for each reader,
    /// for example in a task.
    pub fn announcer(&self) -> Announcer {
        Announcer {
            versions: self.versions.subscribe(),
        }
    }
}

impl Announcer {
    /// Sends a notification to the peer of `rdma` after each change of the published value, until
    /// the value is dropped. `immediate` is the immediate data of the notification, for example to
    /// distinguish several values.
    ///
    /// A notification waits until the peer has a free receive, as a message does. Changes during
    /// this wait share one notification, and the last change is always announced. The first
    /// notification is sent immediately, because the value has perhaps changed before this call.
    ///
    /// # Errors
    ///
    /// The error that ended the connection.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub async fn announce(mut self, rdma: &Rdma, immediate: u32) -> Result<()> {
        let memory = rdma.alloc_local_mr(Layout::new::<u8>())?;
        let local = memory.get(0..0).expect("an empty range of a region");
        // A write of 0 bytes accesses no memory, so it needs no key (IBTA volume 1, C9-88).
        let mut remote = RemoteMr::from_token(RemoteMemory {
            address: 0,
            len: 0,
            rkey: 0,
        });
        let mut values = self.versions.clone();
        let end_of_value = async move { while values.changed().await.is_ok() {} };
        let mut end_of_value = pin!(end_of_value);
        loop {
            self.versions.mark_unchanged();
            // After the end of the value, a notification waits no longer for a credit.
            tokio::select! {
                biased;
                written = rdma.write_with_immediate(&local, &mut remote, immediate) => written?,
                () = &mut end_of_value => return Ok(()),
            }
            tokio::select! {
                changed = self.versions.changed() => if changed.is_err() {
                    return Ok(());
                },
                error = rdma.ended() => return Err(error),
            }
        }
    }
}

impl PublishedReader<'_> {
    /// Waits for a notification that the published value has changed, reads the value, and returns
    /// it. The end that publishes the value sends the notifications by [`Announcer::announce`].
    ///
    /// Consumes all writes with immediate data on the connection. A program that uses these writes
    /// for other purposes must receive them itself ([`Rdma::receive_write_immediate`]) and call
    /// [`Self::read`] after each notification.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::read`].
    pub async fn announced(&mut self) -> Result<&[u8]> {
        let before = self.version();
        loop {
            // If this future is dropped during the read, the next call reads the value.
            if !self.has_notification {
                self.rdma.receive_write_immediate().await?;
                self.has_notification = true;
            }
            self.read().await?;
            self.has_notification = false;
            // The notification may be about a change that an earlier read has found.
            if self.version() != before {
                return Ok(self.last_value());
            }
        }
    }
}
