//! [`Bulk`]: long data that is transferred outside of requests and responses.
//!
//! The *owner* of a bulk lends its memory to the peer, the *borrower*. The memory of an argument is
//! lent until the call ends, the memory of a result until the caller drops the bulk. The borrower
//! reads or writes the memory in pieces: over RDMA by one-sided operations, over other transports
//! by frames that contain the pieces. At the end of a lease, the owner revokes the access at its
//! device.

mod access;
mod lease;
mod local;
mod memory;
mod piece;
mod scope;
mod table;
mod token;
mod transfer;

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use self::access::Access;
pub(crate) use self::access::Accesses;
pub(crate) use self::access::decode;
pub(crate) use self::lease::{
    CallLeases, ResultLeases, append_with_bulks, expire_results, results_left,
};
pub use self::memory::BulkMemory;
#[cfg(feature = "reflection")]
pub(crate) use self::scope::decode_in_scope;
pub(crate) use self::scope::{detect_bulks, is_incomplete};
pub(crate) use self::table::BulkTable;
use self::token::Token;
use self::transfer::Direction;
use crate::error::{BulkError, Error, Result};

/// Long data that an argument or result of a call contains, directly or nested in other values. The
/// data is transferred separately from the request and the response.
///
/// The owner of the memory creates the bulk: [`Bulk::from`] allows the peer to read the memory, and
/// [`Bulk::writable`] also allows the peer to write it. The peer receives a bulk that it can read
/// or write, completely or in part, with [`read`](Self::read), [`read_into`](Self::read_into),
/// [`write`](Self::write) and [`write_from`](Self::write_from). Over RDMA, these functions access
/// the leased memory by one-sided operations. Over other transports, they exchange messages. The
/// data is always transferred in pieces of at most 64 KiB, so that other calls of the connection
/// can proceed between the pieces. A transfer has at most two pieces in flight, and a connection at
/// most four.
///
/// # Ownership
///
/// Clones of a bulk refer to the same memory. While a call lends the memory, the owner cannot
/// access it. When the call has ended with a response or an error, the lease has ended at the
/// device. [`into_memory`](Self::into_memory) then returns the memory from a clone that the caller
/// has kept. If the peer accesses the memory after the end of the lease, the peer gets a remote
/// access error, which ends its connection.
///
/// A bulk in a result is lent until the caller has dropped all clones of the bulk, at most for the
/// time that [`Server::bulk_lease`](crate::Server::bulk_lease) sets.
///
/// ```
/// use rdma_rpc::{Address, Bulk, Server};
///
/// #[rdma_rpc::service]
/// trait Images {
///     /// Returns the bytes in reverse.
///     async fn mirror(&self, image: Bulk) -> Result<Bulk, String>;
/// }
///
/// struct Mirror;
///
/// impl Images for Mirror {
///     async fn mirror(&self, image: Bulk) -> Result<Bulk, String> {
///         let mut bytes = image.read(..).await.map_err(|error| error.to_string())?;
///         bytes.reverse();
///         Ok(Bulk::from(bytes))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(ImagesServer::new(Mirror)).listen(Address::memory()).await?;
/// let client = ImagesClient::connect(server.address()).await?;
///
/// let mut memory = client.client().bulk_memory(1 << 20)?;
/// memory[0] = 7;
/// let image = Bulk::from(memory);
/// let mirrored = client.mirror(image.clone()).await?;
/// // Reads only the last byte.
/// assert_eq!(*mirrored.read((1 << 20) - 1..).await?, [7]);
/// // The call has ended, so the memory is available again.
/// let memory = image.into_memory().expect("the call has ended");
/// assert_eq!(memory[0], 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Bulk(Arc<BulkKind>);

/// Memory behind a [`Bulk`], distinguished by its owner: this end of the connection or the peer.
enum BulkKind {
    /// This end owns the memory.
    Own(OwnBulk),
    /// The peer owns the memory.
    Peer(PeerBulk),
}

/// The owner's side of a [`Bulk`]: memory of this process that can be lent to the peer.
struct OwnBulk {
    len: usize,
    is_writable: bool,
    memory: Mutex<MemoryState>,
}

/// State of memory that this process owns and can lend to the peer as a [`Bulk`].
enum MemoryState {
    /// The memory can be accessed or lent.
    Available(BulkMemory),
    /// A call is lending the memory.
    Lent,
    /// The memory was taken by [`Bulk::into_memory`], or its lease could not be ended.
    Taken,
}

/// Content of a [`Bulk`] whose memory the peer owns and lends to this end.
struct PeerBulk {
    token: Token,
    /// Access to the memory. Set after the value that contains the bulk was decoded.
    access: std::sync::OnceLock<Arc<Access>>,
    /// Number of bytes transferred so far.
    transferred: Arc<AtomicU64>,
}

impl PeerBulk {
    fn new(token: Token) -> Self {
        Self {
            token,
            access: std::sync::OnceLock::new(),
            transferred: Arc::default(),
        }
    }
}

impl From<BulkMemory> for Bulk {
    /// Creates a [`Bulk`], by which a call lends `memory` to the peer. The peer can only read the
    /// memory.
    fn from(memory: BulkMemory) -> Self {
        Self::new(memory, false)
    }
}

impl From<Vec<u8>> for Bulk {
    /// Creates a [`Bulk`] that lends these bytes for reading to the peer. Over RDMA, the bytes are
    /// copied to registered memory when the bulk is sent.
    fn from(bytes: Vec<u8>) -> Self {
        BulkMemory::from(bytes).into()
    }
}

impl Bulk {
    /// Creates a [`Bulk`] that lends `memory` for reading and writing to the peer.
    pub fn writable(memory: BulkMemory) -> Self {
        Self::new(memory, true)
    }

    /// Creates a [`Bulk`] that lends `memory` of this end to the peer. The peer may read the memory
    /// and, if `is_writable` is set, also write it.
    fn new(memory: BulkMemory, is_writable: bool) -> Self {
        Self(Arc::new(BulkKind::Own(OwnBulk {
            len: memory.len(),
            is_writable,
            memory: Mutex::new(MemoryState::Available(memory)),
        })))
    }

    /// Creates a [`Bulk`] that refers to memory of the peer.
    fn of_peer(peer: PeerBulk) -> Self {
        Self(Arc::new(BulkKind::Peer(peer)))
    }

    /// Returns whether this [`Bulk`] and `other` are clones, which refer to the same memory. A
    /// message with clones lends the memory only once.
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the number of bytes in the memory to which this [`Bulk`] refers.
    pub fn len(&self) -> usize {
        match &*self.0 {
            BulkKind::Own(own) => own.len,
            BulkKind::Peer(peer) => usize::try_from(peer.token.len).unwrap_or(usize::MAX),
        }
    }

    /// Returns whether the length of the memory behind this value is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the owner allows its peer to write to the memory behind this value.
    pub fn is_writable(&self) -> bool {
        match &*self.0 {
            BulkKind::Own(own) => own.is_writable,
            BulkKind::Peer(peer) => peer.token.is_writable,
        }
    }

    /// Returns the memory from which this [`Bulk`] was created. If the bulk was an argument, the
    /// memory is available after the call has ended. If the bulk was in a result, the memory is
    /// available after the caller has dropped the bulk or the lease has expired.
    ///
    /// # Errors
    ///
    /// Returns this bulk as the error in these cases:
    /// * A call is lending the memory.
    /// * Another clone has already returned the memory.
    /// * The peer owns the memory.
    pub fn into_memory(self) -> Result<BulkMemory, Self> {
        if let BulkKind::Own(own) = &*self.0
            && let Some(memory) = own.take(MemoryState::Taken)
        {
            return Ok(memory);
        }
        Err(self)
    }

    /// Reads a range of the memory that the peer lends into new local memory. Allocates this memory
    /// when the transfer begins.
    ///
    /// A read of more than 1 MiB waits while such reads of the connection would together need more
    /// than 64 MiB of memory. A read of more than 32 MiB counts as 32 MiB, so two reads of any
    /// length can run at the same time.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::read_into`], and [`BulkError::OutOfMemory`].
    pub async fn read(&self, range: impl RangeBounds<usize>) -> Result<BulkMemory> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        let len = end.saturating_sub(start);
        self.check(start, len)?;
        match &*self.0 {
            BulkKind::Peer(peer) => peer.read_new(start, len).await,
            BulkKind::Own(own) => {
                let (outcome, memory) =
                    own.copy(Direction::Read, vec![(start, vec![0; len].into())]);
                outcome?;
                memory
                    .into_iter()
                    .next()
                    .ok_or_else(|| BulkError::Lost.into())
            }
        }
    }

    /// Reads ranges of the memory that the peer lends with this [`Bulk`]. Each part is an offset in
    /// the peer's memory, and local memory that is filled with the bytes from that offset. Returns
    /// the result, and all local memories in the same order. If the future is dropped, at most 128
    /// KiB are still transferred.
    ///
    /// # Errors
    ///
    /// * [`Error::Bulk`] if a range exceeds the bulk, if the lease has ended with its call, or if
    ///   this end owns the bulk and is lending it.
    /// * The error that ended the connection.
    ///
    /// After an error, a part of the local memory can be filled. If the device is still using
    /// memory after an error, this memory is lost, and empty memory is returned in its place.
    pub async fn read_into(
        &self,
        parts: impl IntoIterator<Item = (usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        self.transfer(Direction::Read, parts).await
    }

    /// Writes `memory` to the writable memory that the peer lends with this [`Bulk`], at the offset
    /// `at`. Returns the result and `memory`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::write_from`].
    pub async fn write(&self, at: usize, memory: BulkMemory) -> (Result<()>, BulkMemory) {
        let (outcome, mut memory) = self.write_from([(at, memory)]).await;
        (outcome, memory.pop().unwrap_or_default())
    }

    /// Writes local memory to the memory that the peer lends. Each part is an offset in the peer's
    /// memory, and the local memory whose bytes are written to that offset. Returns the result, and
    /// all local memory in the order of the parts.
    ///
    /// If the future is dropped, at most 128 KiB are still transferred.
    ///
    /// # Errors
    ///
    /// * [`Error::Bulk`] if the bulk is not writable.
    /// * The errors of [`Self::read_into`].
    ///
    /// After an error, some ranges can already be written.
    pub async fn write_from(
        &self,
        parts: impl IntoIterator<Item = (usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        self.transfer(Direction::Write, parts).await
    }

    /// Returns the number of bytes that reads and writes of this bulk of the peer have transferred
    /// so far, to show the progress of a running transfer. Always 0 for a bulk that this end owns.
    pub fn transferred(&self) -> u64 {
        match &*self.0 {
            BulkKind::Own(_) => 0,
            BulkKind::Peer(peer) => peer.transferred.load(Ordering::Relaxed),
        }
    }

    /// Checks that the `len` bytes at the offset `at` are within the bulk. Fails with
    /// [`BulkError::OutOfRange`] otherwise.
    fn check(&self, at: usize, len: usize) -> Result<()> {
        let end = at.checked_add(len).filter(|&end| end <= self.len());
        let outside = BulkError::OutOfRange {
            at,
            len,
            whole: self.len(),
        };
        end.map(drop).ok_or_else(|| outside.into())
    }

    /// Reads or writes parts of the bulk. Each part is an offset in the bulk, and local memory that
    /// is filled or sent. Nothing is transferred if a part exceeds the bulk. Returns the outcome
    /// and the local memory of all parts, also after an error.
    async fn transfer(
        &self,
        direction: Direction,
        parts: impl IntoIterator<Item = (usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        let parts: Vec<_> = parts.into_iter().collect();
        let checked = parts
            .iter()
            .try_for_each(|(at, memory)| self.check(*at, memory.len()));
        let checked = checked.and_then(|()| match direction {
            Direction::Write if !self.is_writable() => Err(BulkError::ReadOnly.into()),
            _ => Ok(()),
        });
        if let Err(error) = checked {
            return (Err(error), memories(parts));
        }
        match &*self.0 {
            BulkKind::Peer(peer) => peer.transfer(direction, parts).await,
            BulkKind::Own(own) => own.copy(direction, parts),
        }
    }
}

/// Removes the offsets from `parts`, and returns the local memories of a transfer in the same
/// order.
fn memories(parts: Vec<(usize, BulkMemory)>) -> Vec<BulkMemory> {
    parts.into_iter().map(|(_, memory)| memory).collect()
}

impl OwnBulk {
    /// Takes the memory out of the bulk, and sets the bulk's state to `state`. Returns `None`, and
    /// changes nothing, if a call is lending the memory, if the memory was already taken, or if the
    /// memory is lost.
    fn take(&self, state: MemoryState) -> Option<BulkMemory> {
        let mut memory = self.memory.lock();
        match std::mem::replace(&mut *memory, state) {
            MemoryState::Available(available) => Some(available),
            former => {
                *memory = former;
                None
            }
        }
    }

    /// Puts the memory of the bulk back after the end of its lease, or if the lending failed. The
    /// program can then use or lend the memory again. `memory` is `None` if the device could not
    /// end the lease. In that case the memory is lost.
    fn put(&self, memory: Option<BulkMemory>) {
        *self.memory.lock() = memory.map_or(MemoryState::Taken, MemoryState::Available);
    }

    /// Copies bytes between this memory and local memory of the same process, for a program that
    /// calls its own service without a connection. Each part is an offset in this memory and the
    /// local memory. `direction` says whether this memory is read or written.
    fn copy(
        &self,
        direction: Direction,
        mut parts: Vec<(usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        let mut own = self.memory.lock();
        let MemoryState::Available(available) = &mut *own else {
            return (Err(BulkError::InUse.into()), memories(parts));
        };
        for (at, memory) in &mut parts {
            let range = *at..*at + memory.len();
            match direction {
                Direction::Read => memory.copy_from_slice(&available[range]),
                Direction::Write => available[range].copy_from_slice(memory),
            }
        }
        drop(own);
        (Ok(()), memories(parts))
    }
}

impl Serialize for Bulk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let token = scope::token_of(self).map_err(ser::Error::custom)?;
        token.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bulk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let token = Token::deserialize(deserializer)?;
        scope::add_received(token).map_err(de::Error::custom)
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("len", &self.len())
            .field("is_writable", &self.is_writable())
            .field("is_own", &matches!(*self.0, BulkKind::Own(_)))
            .finish_non_exhaustive()
    }
}

impl From<BulkError> for Error {
    fn from(error: BulkError) -> Self {
        Self::Bulk(error)
    }
}
