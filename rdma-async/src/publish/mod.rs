//! Published values: memory that one end updates and any number of peers read one-sided.
//!
//! The memory has four slots, which the owner fills in turn, so that readers find a complete value
//! while later values are written. Each slot has a header with the version, the length and a
//! checksum of the value. The owner writes the header after the value.
//!
//! A reader selects the header with the highest version, and checks the value. If the value does
//! not match the header, because the owner has filled the slot again meanwhile, the reader reads
//! again. A reader never uses the value of an older header, because a newer value was complete when
//! the read began. Readers take no lock, and the owner keeps no list of readers.
//!
//! ```text
//! byte 0..32           32..64         ...  128..               128 + capacity..        ...
//!      header of       header of           value in            value in
//!      slot 0          slot 1              slot 0              slot 1
//!
//! header: version, length, checksum, zero; 8 bytes each, in network byte order
//! ```

mod announcer;
mod right;

use std::alloc::Layout;
use std::fmt;
use std::hint::select_unpredictable;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma_core::{AccessFlags, ExposedMemory, RemoteMemory};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use self::announcer::Announcer;
pub use self::right::ReaderRight;
use self::right::Rights;
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess, RemoteMr};
use crate::rdma::Rdma;

/// Number of slots, each for one value, in the published memory. Successive updates write their
/// values to successive slots, and begin again after the last slot. The number is larger than two,
/// so that the next updates do not overwrite the value that a slow reader is reading.
const SLOTS: usize = 4;
/// Length in bytes of the header of a slot. The header has four words of 8 bytes: version, length,
/// checksum and zero.
const HEADER_LEN: usize = 32;
/// Number of words of 8 bytes in a header.
const HEADER_WORDS: usize = HEADER_LEN / 8;
/// Length of the headers of all slots, in bytes, and thus the offset of the first value in the
/// published memory.
const HEADERS_LEN: usize = SLOTS * HEADER_LEN;
/// Maximum length, in bytes, of published memory that a reader reads completely by one request, in
/// one round trip. From longer memory, a reader first reads the headers of the stored values, and
/// then only the newest value.
const MAX_SINGLE_READ_LEN: usize = 2048;
/// Time limit of a reader that finds no complete value, because the owner writes continually. The
/// limit is far longer than a read takes, so that only a constantly overwritten value exceeds the
/// limit.
const READ_TIMEOUT: Duration = match cfg!(test) {
    true => Duration::from_millis(200),
    false => Duration::from_secs(10),
};

/// A value in memory of this end that peers read by RDMA, without involving this program.
///
/// The owner updates the value. A [`PublishedReader`] on any connection of the device reads the
/// value, and never returns a partial update. Dropping `Published` deregisters the memory, after
/// which the device refuses the access of all readers.
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
/// // The program passes the token to the reader, for example by a message or a configuration file.
/// let mut reader = PublishedReader::new(&client, board.token())?;
/// assert_eq!(reader.read().await?, b"closed");
/// board.update(b"open")?;
/// assert_eq!(reader.read().await?, b"open");
/// # Ok(())
/// # }
/// ```
pub struct Published {
    /// Rights of single readers, which must be dropped before the memory.
    rights: Arc<Rights>,
    memory: ExposedMemory,
    capacity: usize,
    version: u64,
    /// Channel through which announcers receive each new version.
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
    /// Allocates and registers memory for a published value, which peers can read. A value has at
    /// most `capacity` bytes. The initial value is empty and has the version 0.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a capacity above a quarter of the address space.
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
    /// Returns the token of the memory (address, length and key), from which peers create a
    /// [`PublishedReader`].
    pub fn token(&self) -> RemoteMemory {
        self.memory.remote()
    }

    /// Returns the version of the published value: the number of its updates so far.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Replaces the published value by `value`, and returns the new version. Reads that begin
    /// afterwards return this value or a later value.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the value is longer than the capacity.
    pub fn update(&mut self, value: &[u8]) -> Result<u64> {
        if value.len() > self.capacity {
            let reason = format!(
                "{} bytes exceed the capacity of {}",
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

    /// Writes a value, and then its header, to one of the slots of the published memory. `version`,
    /// the number of the value, determines the slot.
    fn write(&mut self, version: u64, value: &[u8]) -> Result<()> {
        let slot = slot_of(version);
        // A reader that reads a partly written value finds a wrong checksum.
        self.memory
            .write_at(value_range(slot, self.capacity).start, value)?;
        let words = [version, value.len() as u64, checksum(version, value)];
        for (index, word) in words.into_iter().enumerate() {
            self.memory
                .store_u64(slot * HEADER_LEN + 8 * index, word.to_be())?;
        }
        Ok(())
    }

    /// Ends the access of all readers of this published value. The later reads of these readers
    /// fail with a remote access error, which ends their connections.
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

/// Reader of a value that a peer has [published](Published). Reads the value from the peer's memory
/// by RDMA, without involving the peer's program.
#[derive(Debug)]
pub struct PublishedReader<'c> {
    rdma: &'c Rdma,
    remote: RemoteMr,
    local: LocalMr,
    capacity: usize,
    /// Range of the last read value within `local`.
    value: Range<usize>,
    version: u64,
    /// Set while a received notification was not yet followed by a successful read.
    has_notification: bool,
    /// Set while a request may write to `local`: during a read, and after a read that failed or
    /// whose future was dropped.
    is_in_use: bool,
}

/// Header of a slot of the published memory, as a reader has read it. Not valid if the owner was
/// writing the slot during the read.
#[derive(Debug, Clone, Copy)]
struct Header {
    slot: usize,
    version: u64,
    len: usize,
    checksum: u64,
}

impl<'c> PublishedReader<'c> {
    /// Creates a reader of a published value, on a connection to the owner's device. `token`
    /// contains the address, length and key of the value's memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `token` does not belong to a published value. [`Error::Verbs`]
    /// if memory cannot be registered.
    pub fn new(rdma: &'c Rdma, token: RemoteMemory) -> Result<Self> {
        let wrong = || Error::invalid("token of a published value", "its length is invalid");
        let len = usize::try_from(token.len).map_err(|_| wrong())?;
        let slots = len.checked_sub(HEADERS_LEN).ok_or_else(wrong)?;
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
            has_notification: false,
            is_in_use: false,
        })
    }

    /// Returns the version of the value that was read last, or 0 before the first read.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Makes this reader read another published value, of the same owner and with the same
    /// capacity. One reader, with memory for one value, can thus read many values. `token` contains
    /// the address, length and key of the other value's memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the value has another capacity.
    #[inline]
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

    /// Reads the current value from the owner's memory by RDMA, and returns it.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if the owner writes continually, so that no complete value was found for
    /// 10 s. [`Error::Work`] if the owner has ended the access. [`Error::Verbs`] if the reader
    /// cannot register new memory. The reader needs new memory only if the future of an earlier
    /// read was dropped. Otherwise the error that ended the connection.
    pub async fn read(&mut self) -> Result<&[u8]> {
        if mem::replace(&mut self.is_in_use, true) {
            self.replace_memory()?;
        }
        let mut first_attempt = None;
        loop {
            let is_complete = match self.local.length() <= MAX_SINGLE_READ_LEN {
                true => {
                    self.rdma.read(&mut self.local, &self.remote).await?;
                    self.accept(newest_header(self.local.as_slice()))
                }
                false => self.read_parts().await?,
            };
            if is_complete {
                self.is_in_use = false;
                return Ok(self.last_value());
            }
            check_time(*first_attempt.get_or_insert_with(Instant::now))?;
            // Other tasks must be able to run even if every read completes without waiting.
            yield_now().await;
        }
    }

    /// Replaces the local memory of the reader by new memory. Needed because the request of an
    /// earlier read, whose future was dropped, still writes to the present memory.
    #[cold]
    fn replace_memory(&mut self) -> Result<()> {
        let layout = Layout::from_size_align(self.local.length(), 8);
        let layout = layout.expect("the memory had this layout before");
        self.local = self.rdma.device().alloc_local_mr_stale(layout)?;
        self.value = 0..0;
        Ok(())
    }

    /// Returns the published value that the last successful read has copied to local memory.
    #[inline]
    fn last_value(&self) -> &[u8] {
        &self.local.as_slice()[self.value.clone()]
    }

    /// Waits until the version differs from the last read version, and returns the new value. Reads
    /// the value every `interval`.
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

    /// Reads the newest published value and its header once, into local memory of the reader: the
    /// headers first, and then the value. Returns `false` if the value does not match the header,
    /// because the owner has overwritten the value during the read. The caller then reads again.
    async fn read_parts(&mut self) -> Result<bool> {
        self.read_part(0..HEADERS_LEN).await?;
        let newest = newest_header(self.local.as_slice());
        if newest.len > self.capacity {
            return Ok(false);
        }
        let start = value_range(newest.slot, self.capacity).start;
        self.read_part(start..start + newest.len).await?;
        Ok(self.accept(newest))
    }

    /// Reads the bytes `range` of the published memory, by RDMA, into the same range of `local`.
    async fn read_part(&mut self, range: Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (mut local, remote) = (self.local.get_mut(range.clone()), self.remote.get(range));
        match (&mut local, &remote) {
            (Some(local), Some(remote)) => self.rdma.read(local, remote).await,
            _ => unreachable!("local and remote memory have the length of the token"),
        }
    }

    /// Checks the value in local memory against the length and checksum in its header `newest`. If
    /// the value is complete, this value becomes the value that was read last. Otherwise changes
    /// nothing and returns `false`.
    #[inline]
    fn accept(&mut self, newest: Header) -> bool {
        let found = complete_value(self.local.as_slice(), &newest, self.capacity);
        let Some(value) = found else {
            return false;
        };
        self.value = value;
        self.version = newest.version;
        true
    }
}

/// Fails if more than [`READ_TIMEOUT`] has passed since `first_attempt`, the end of the first
/// attempt to read a value.
#[cold]
fn check_time(first_attempt: Instant) -> Result<()> {
    match first_attempt.elapsed() > READ_TIMEOUT {
        true => Err(Error::Timeout {
            what: "finding a complete published value",
            limit: READ_TIMEOUT,
        }),
        false => Ok(()),
    }
}

/// Returns the header of the newest published value: the header with the highest version in
/// `bytes`, a copy of the published memory.
#[inline]
fn newest_header(bytes: &[u8]) -> Header {
    let (words, _) = bytes[..HEADERS_LEN].as_chunks::<8>();
    let word = |slot: usize, index: usize| u64::from_be_bytes(words[slot * HEADER_WORDS + index]);
    // Only a higher version replaces slot 0: while all versions are 0, the initial value is in slot
    // 0, and unfilled slots also have the version 0.
    let (mut newest, mut version) = (0, word(0, 0));
    for slot in 1..SLOTS {
        // Selects without a branch, which the processor could not predict.
        let is_newer = word(slot, 0) > version;
        newest = select_unpredictable(is_newer, slot, newest);
        version = version.max(word(slot, 0));
    }
    Header {
        slot: newest,
        version,
        len: usize::try_from(word(newest, 1)).unwrap_or(usize::MAX),
        checksum: word(newest, 2),
    }
}

/// Returns the range of the published value with the header `header` in `bytes`, a copy of the
/// published memory. `capacity` is the maximum length of a value in bytes. Returns `None` if the
/// value does not match its length and checksum in the header, because the owner has overwritten
/// the value during the read.
#[inline]
fn complete_value(bytes: &[u8], header: &Header, capacity: usize) -> Option<Range<usize>> {
    let start = value_range(header.slot, capacity).start;
    let is_plausible = header.len <= capacity && slot_of(header.version) == header.slot;
    let value = start..start + header.len.min(capacity);
    let is_complete =
        is_plausible && checksum(header.version, &bytes[value.clone()]) == header.checksum;
    is_complete.then_some(value)
}

/// Returns the index of the slot that stores the value with the version `version`. Successive
/// versions use successive slots.
fn slot_of(version: u64) -> usize {
    (version % SLOTS as u64) as usize
}

/// Returns the byte range of the published memory in which the slot with the index `slot` stores
/// its value. `capacity` is the maximum length of a value in bytes.
fn value_range(slot: usize, capacity: usize) -> Range<usize> {
    let start = HEADERS_LEN + slot * capacity;
    start..start + capacity
}

/// Returns the checksum in the header of a slot, computed from the version and the value. The
/// checksum of an empty value is not 0, so an unfilled header is never valid.
#[inline]
fn checksum(version: u64, value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, version)
}

/// Returns the length of the published memory for values of at most `capacity` bytes: the headers
/// and the values of all slots. Fails if the length exceeds the address space.
fn region_len(capacity: usize) -> Result<usize> {
    capacity
        .checked_mul(SLOTS)
        .and_then(|slots| slots.checked_add(HEADERS_LEN))
        .filter(|&len| isize::try_from(len).is_ok())
        .ok_or_else(|| Error::invalid("capacity of a published value", "it is too large"))
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use crate::{LocalMrWriteAccess, testing};

    use super::*;

    #[tokio::test]
    async fn a_value_that_never_matches_its_checksum_is_an_error() {
        let (client, server) = testing::pair(|builder| builder).await;
        let layout = Layout::from_size_align(HEADERS_LEN + SLOTS * 64, 8).unwrap();
        let mut region = server.alloc_local_mr(layout).unwrap();
        region.as_mut_slice().fill(0xff);
        let lent = server.lend(region).map_err(|(_, error)| error).unwrap();
        let mut reader = PublishedReader::new(&client, lent.token()).unwrap();
        for _ in 0..2 {
            let error = reader.read().await.unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        assert_eq!(reader.version(), 0);
    }
}
