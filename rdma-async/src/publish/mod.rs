//! Published values: memory that one end updates and any number of peers read one-sided.
//!
//! The memory has four slots, which the owner fills in turn, so that readers find a complete value
//! while the next ones are written. Each slot has a header with the version, the length and a
//! checksum of the value. The owner writes the header after the value. A reader takes the header
//! with the highest version and checks the value; if the value is not that of the header, because
//! the owner has filled the slot again meanwhile, the reader reads again. The values of older
//! headers are not used, even if they are complete: a newer one was complete when the read began.
//! Readers take no lock, and the owner does not know of them.
//!
//! ```text
//! byte 0..32           32..64         ...  128..               128 + capacity..        ...
//!      header of       header of           value in            value in
//!      slot 0          slot 1              slot 0              slot 1
//!
//! header: version, length, checksum, 0; eight bytes each, in network byte order
//! ```

mod announcer;
mod right;

use std::alloc::Layout;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma_core::{AccessFlags, ExposedMemory, RemoteMemory};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::announcer::Announcer;
pub use self::right::ReaderRight;
use self::right::Rights;
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess, RemoteMr};
use crate::rdma::Rdma;

const SLOTS: usize = 4;
/// Number of bytes of a header.
const HEADER: usize = 32;
/// Number of bytes of all headers.
const HEADERS: usize = SLOTS * HEADER;
/// Maximum number of bytes of all slots that a reader reads at once. Of larger values, a reader
/// reads the headers first, and then one slot.
const SMALL: usize = 2048;
/// Maximum time in which a reader finds a complete value while the owner writes.
const PATIENCE: Duration = Duration::from_secs(10);

/// A value that peers read one-sided, as often as they like, without this program.
///
/// The owner updates the value; a [`PublishedReader`] on any connection of the device reads the
/// value and never sees a part of an update. Dropping this value ends the access of all readers at
/// the device.
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
/// let mut board = server.device().publish(1024)?;
/// board.update(b"closed")?;
/// // The token reaches the reader by any means, such as a message or a configuration.
/// let mut reader = PublishedReader::new(&client, board.token())?;
/// assert_eq!(reader.read().await?, b"closed");
/// board.update(b"open")?;
/// assert_eq!(reader.read().await?, b"open");
/// # Ok(())
/// # }
/// ```
pub struct Published {
    /// Dropped before the memory, to which the rights belong.
    rights: Arc<Rights>,
    memory: ExposedMemory,
    capacity: usize,
    version: u64,
    /// Version for the announcers.
    versions: watch::Sender<u64>,
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published")
            .field("token", &self.token())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl RdmaDevice {
    /// Allocates memory for a published value of at most `capacity` bytes. The first value is empty
    /// and has the version 0.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a capacity above a quarter of the address space,
    /// [`Error::Verbs`] if the memory cannot be registered.
    pub fn publish(&self, capacity: usize) -> Result<Published> {
        let len = region_len(capacity)?;
        let memory = self.protection_domain().allocate(len)?;
        let memory = memory
            .expose(AccessFlags::REMOTE_READ)
            .map_err(|refused| refused.error)?;
        let mut published = Published {
            rights: Arc::default(),
            memory,
            versions: watch::Sender::new(0),
            capacity,
            version: 0,
        };
        published.write(0, &[])?;
        Ok(published)
    }
}

impl Published {
    /// Returns the address, length and key with which peers make a [`PublishedReader`].
    pub fn token(&self) -> RemoteMemory {
        self.memory.remote()
    }

    /// Returns the version of the value, which is the number of updates.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Replaces the value, and returns its version. Reads that begin afterwards get this value or a
    /// later one.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the value is longer than the capacity.
    pub fn update(&mut self, value: &[u8]) -> Result<u64> {
        if value.len() > self.capacity {
            let reason = format!(
                "{} bytes are above the capacity of {}",
                value.len(),
                self.capacity
            );
            return Err(Error::invalid("published value", reason));
        }
        self.write(self.version + 1, value)?;
        self.version += 1;
        if self.versions.receiver_count() > 0 {
            self.versions.send_replace(self.version);
        }
        Ok(self.version)
    }

    fn write(&mut self, version: u64, value: &[u8]) -> Result<()> {
        let slot = slot_of(version);
        // A reader that meets the value while it is written finds a wrong checksum.
        self.memory
            .write_at(place_of(slot, self.capacity).start, value)?;
        let words = [version, value.len() as u64, checksum(version, value)];
        for (index, word) in words.into_iter().enumerate() {
            self.memory
                .store_u64(slot * HEADER + 8 * index, word.to_be())?;
        }
        Ok(())
    }

    /// Ends the access of all readers at the device. Their reads fail with a remote access error,
    /// which ends their connections.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device cannot end the access.
    pub fn end(self) -> Result<()> {
        let Self { rights, memory, .. } = self;
        drop(rights);
        match memory.revoke() {
            Ok(_) => Ok(()),
            Err(refused) => Err(refused.error.into()),
        }
    }
}

/// Reads a value that a peer has [published](Published).
#[derive(Debug)]
pub struct PublishedReader<'c> {
    rdma: &'c Rdma,
    remote: RemoteMr,
    local: LocalMr,
    capacity: usize,
    /// Range of the value that was read last, within `local`.
    value: Range<usize>,
    version: u64,
}

/// Header of a slot.
#[derive(Debug, Clone, Copy)]
struct Header {
    slot: usize,
    version: u64,
    len: usize,
    checksum: u64,
}

impl<'c> PublishedReader<'c> {
    /// Creates a reader of the value with this token, on a connection to its owner's device.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the token is not one of a published value, [`Error::Verbs`] if
    /// memory cannot be registered.
    pub fn new(rdma: &'c Rdma, token: RemoteMemory) -> Result<Self> {
        let wrong = || Error::invalid("token of a published value", "it has another length");
        let len = usize::try_from(token.len).map_err(|_| wrong())?;
        let slots = len.checked_sub(HEADERS).ok_or_else(wrong)?;
        if slots % SLOTS != 0 {
            return Err(wrong());
        }
        let layout = Layout::from_size_align(len, 8).map_err(|_| wrong())?;
        Ok(Self {
            rdma,
            remote: RemoteMr::from_token(token),
            local: rdma.device().alloc_local_mr_stale(layout)?,
            capacity: slots / SLOTS,
            value: 0..0,
            version: 0,
        })
    }

    /// Returns the version of the value that was read last.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Makes this reader read another value of the same owner and capacity, which has this token.
    /// One reader, with memory for one value, can thus read many values.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the value has another capacity.
    pub fn switch_to(&mut self, token: RemoteMemory) -> Result<()> {
        if usize::try_from(token.len) != Ok(self.local.length()) {
            let reason = "the value has another capacity";
            return Err(Error::invalid("token of a published value", reason));
        }
        self.remote = RemoteMr::from_token(token);
        self.value = 0..0;
        self.version = 0;
        Ok(())
    }

    /// Reads the current value.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if the owner writes without pause for 10 s and no complete value was
    /// found, [`Error::Work`] if the owner has ended the access, and the error that ended the
    /// connection.
    pub async fn read(&mut self) -> Result<&[u8]> {
        if !self.try_read().await? {
            self.read_again().await?;
        }
        Ok(self.last_value())
    }

    /// Returns the value that was read last.
    fn last_value(&self) -> &[u8] {
        &self.local.as_slice()[self.value.clone()]
    }

    /// Waits until the value has another version than the one that was read last, and reads the
    /// value. Looks for a change every `interval`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::read`].
    pub async fn changed(&mut self, interval: Duration) -> Result<&[u8]> {
        let before = self.version;
        loop {
            self.read().await?;
            if self.version != before {
                return Ok(self.last_value());
            }
            sleep(interval).await;
        }
    }

    async fn read_again(&mut self) -> Result<()> {
        let begun = Instant::now();
        let again = async {
            while !self.try_read().await? {
                // The tasks of this thread go on, even if every read completes at once.
                tokio::task::yield_now().await;
                if begun.elapsed() > PATIENCE {
                    break;
                }
            }
            Ok(())
        };
        timeout(PATIENCE, again)
            .await
            .unwrap_or(Err(Error::Timeout {
                what: "finding a complete published value",
                limit: PATIENCE,
            }))
    }

    /// Reads the value once. Returns `false` if the owner was writing meanwhile.
    async fn try_read(&mut self) -> Result<bool> {
        if self.local.length() <= SMALL {
            self.rdma.read(&mut self.local, &self.remote).await?;
            let newest = self.newest_header();
            return Ok(self.accept(newest));
        }
        self.read_part(0..HEADERS).await?;
        let newest = self.newest_header();
        if newest.len > self.capacity {
            return Ok(false);
        }
        let start = place_of(newest.slot, self.capacity).start;
        self.read_part(start..start + newest.len).await?;
        Ok(self.accept(newest))
    }

    async fn read_part(&mut self, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (mut local, remote) = (self.local.get_mut(range.clone()), self.remote.get(range));
        match (&mut local, &remote) {
            (Some(local), Some(remote)) => self.rdma.read(local, remote).await,
            _ => unreachable!("both have the length of the token"),
        }
    }

    /// Makes the value of a header the current one. Returns `false` if the slot has another value.
    fn accept(&mut self, header: Header) -> bool {
        let start = place_of(header.slot, self.capacity).start;
        let is_whole = header.len <= self.capacity
            && slot_of(header.version) == header.slot
            && checksum(
                header.version,
                &self.local.as_slice()[start..start + header.len],
            ) == header.checksum;
        if is_whole {
            self.value = start..start + header.len;
            self.version = header.version;
        }
        is_whole
    }

    /// Returns the header with the highest version among those that were read.
    fn newest_header(&self) -> Header {
        let bytes = self.local.as_slice();
        let word = |slot: usize, index: usize| {
            let at = slot * HEADER + 8 * index;
            u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        };
        // Slot 0 has the first value, whose version is that of slots that were never filled.
        let slots = (0..SLOTS).rev();
        let newest = slots.max_by_key(|&slot| word(slot, 0));
        let slot = newest.expect("there are several slots");
        Header {
            slot,
            version: word(slot, 0),
            len: usize::try_from(word(slot, 1)).unwrap_or(usize::MAX),
            checksum: word(slot, 2),
        }
    }
}

fn slot_of(version: u64) -> usize {
    (version % SLOTS as u64) as usize
}

/// Returns the range of the value of a slot.
fn place_of(slot: usize, capacity: usize) -> Range<usize> {
    let start = HEADERS + slot * capacity;
    start..start + capacity
}

/// Returns the checksum of a value, which is not 0 for an empty one.
fn checksum(version: u64, value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, version)
}

fn region_len(capacity: usize) -> Result<usize> {
    capacity
        .checked_mul(SLOTS)
        .and_then(|slots| slots.checked_add(HEADERS))
        .filter(|&len| isize::try_from(len).is_ok())
        .ok_or_else(|| Error::invalid("capacity of a published value", "it is impossible"))
}
