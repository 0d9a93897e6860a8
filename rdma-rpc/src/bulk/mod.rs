//! [`Bulk`]: long data that never passes through a request or response.
//!
//! The *owner* of a bulk lends its memory for the time of a call, or, for a result, until the
//! caller drops the bulk. The *borrower* reads or writes it in pieces: over RDMA by one-sided
//! operations, over other transports by frames that carry the pieces. The lease ends at the owner's
//! device.

mod access;
mod lease;
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
pub(crate) use self::lease::{Leased, Results, place, results_left, serve_results};
pub use self::memory::BulkMemory;
#[cfg(feature = "reflection")]
pub(crate) use self::scope::decoding;
pub(crate) use self::scope::is_incomplete;
pub(crate) use self::table::Table;
use self::token::Token;
use self::transfer::Direction;
use crate::error::{BulkError, Error, Result};

/// Long data of a call, which never passes through a message: an argument, a result, or a part of
/// either, at any depth.
///
/// The side that has the memory makes the bulk of it: [`Bulk::from`] lets the other side read it,
/// and [`Bulk::writable`] also write it. The other side gets a bulk that it reads or writes, in
/// whole or in part, with [`read`](Self::read), [`read_into`](Self::read_into),
/// [`write`](Self::write) and [`write_from`](Self::write_from). Over RDMA these are one-sided
/// operations on leased memory. Over TCP and memory the same functions exchange messages. Either
/// way the data moves in pieces of 64 KiB, between which other calls of the connection find their
/// place.
///
/// # Ownership
///
/// Clones of a bulk are the same bulk. While a call lends its memory, the owner cannot access the
/// memory. When the call has ended with an answer or an error, the lease has ended at the device,
/// and [`into_memory`](Self::into_memory) of a clone that the caller has kept returns the memory. A
/// peer that still accesses the memory gets a remote access error, which ends its connection.
///
/// A bulk of a result is lent until the caller has dropped all clones of it, at most for the time
/// that [`Server::bulk_lease`](crate::Server::bulk_lease) sets.
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
/// // The last byte alone.
/// assert_eq!(*mirrored.read((1 << 20) - 1..).await?, [7]);
/// // The memory is back.
/// let memory = image.into_memory().expect("the call has ended");
/// assert_eq!(memory[0], 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Bulk(Arc<Kind>);

enum Kind {
    Own(Own),
    Peer(Peer),
}

/// Bulk whose memory this end has.
struct Own {
    len: usize,
    is_writable: bool,
    place: Mutex<Place>,
}

/// Place of the memory of a bulk.
enum Place {
    Here(BulkMemory),
    /// A call is lending the memory.
    Lent,
    /// The memory was taken, or its lease could not be ended.
    Gone,
}

/// Bulk whose memory the peer has.
struct Peer {
    token: Token,
    /// Set as soon as the value that the bulk is a part of was decoded.
    access: std::sync::OnceLock<Arc<Access>>,
    /// Number of bytes that were transferred.
    transferred: Arc<AtomicU64>,
}

impl Peer {
    fn new(token: Token) -> Self {
        Self {
            token,
            access: std::sync::OnceLock::new(),
            transferred: Arc::default(),
        }
    }
}

impl From<BulkMemory> for Bulk {
    /// Makes a bulk that the peer can read.
    fn from(memory: BulkMemory) -> Self {
        Self::new(memory, false)
    }
}

impl From<Vec<u8>> for Bulk {
    /// Makes a bulk that the peer can read. Over RDMA the bytes are copied.
    fn from(bytes: Vec<u8>) -> Self {
        BulkMemory::from(bytes).into()
    }
}

impl Bulk {
    /// Makes a bulk that the peer can read and write.
    pub fn writable(memory: BulkMemory) -> Self {
        Self::new(memory, true)
    }

    fn new(memory: BulkMemory, is_writable: bool) -> Self {
        Self(Arc::new(Kind::Own(Own {
            len: memory.len(),
            is_writable,
            place: Mutex::new(Place::Here(memory)),
        })))
    }

    fn of_peer(peer: Peer) -> Self {
        Self(Arc::new(Kind::Peer(peer)))
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match &*self.0 {
            Kind::Own(own) => own.len,
            Kind::Peer(peer) => usize::try_from(peer.token.len).unwrap_or(usize::MAX),
        }
    }

    /// Returns whether the bulk has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the side that did not make the bulk can write it.
    pub fn is_writable(&self) -> bool {
        match &*self.0 {
            Kind::Own(own) => own.is_writable,
            Kind::Peer(peer) => peer.token.is_writable,
        }
    }

    /// Returns the memory that the bulk was made of.
    ///
    /// # Errors
    ///
    /// This bulk, if a call is lending its memory, if another clone has returned the memory, or if
    /// the peer has made the bulk.
    pub fn into_memory(self) -> Result<BulkMemory, Self> {
        if let Kind::Own(own) = &*self.0
            && let Some(memory) = own.take(Place::Gone)
        {
            return Ok(memory);
        }
        Err(self)
    }

    /// Reads a range of a bulk of the peer into new memory.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::read_into`].
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
        self.check(start, end.saturating_sub(start))?;
        let memory = self.allocate(end.saturating_sub(start))?;
        let (outcome, mut memory) = self.read_into([(start, memory)]).await;
        outcome?;
        memory.pop().ok_or_else(|| BulkError::Lost.into())
    }

    /// Reads parts of a bulk of the peer: fills each memory with the bytes that begin at the offset
    /// before it. Returns the memories, in their order, with the outcome. If the future is dropped,
    /// the transfer stops behind the piece that is being transferred.
    ///
    /// # Errors
    ///
    /// [`Error::Bulk`] if a part exceeds the bulk, if the lease has ended, which ends with the
    /// call, or if this end has made the bulk and is lending it. The error that ended the
    /// connection. Some parts may then be filled.
    pub async fn read_into(
        &self,
        parts: impl IntoIterator<Item = (usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        self.transfer(Direction::Read, parts).await
    }

    /// Writes memory to a writable bulk of the peer, from the offset `at` on. Returns the memory
    /// with the outcome.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::write_from`].
    pub async fn write(&self, at: usize, memory: BulkMemory) -> (Result<()>, BulkMemory) {
        let (outcome, mut memory) = self.write_from([(at, memory)]).await;
        (outcome, memory.pop().unwrap_or_default())
    }

    /// Writes parts of a writable bulk of the peer: copies each memory to the offset before it.
    /// Returns the memories, in their order, with the outcome. If the future is dropped, the
    /// transfer stops behind the piece that is being transferred.
    ///
    /// # Errors
    ///
    /// [`Error::Bulk`] if the bulk is not writable, and the errors of [`Self::read_into`]. Some
    /// parts may then be written.
    pub async fn write_from(
        &self,
        parts: impl IntoIterator<Item = (usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        self.transfer(Direction::Write, parts).await
    }

    /// Returns the number of bytes that reads and writes of this bulk have transferred so far, for
    /// the progress of a transfer that runs.
    pub fn transferred(&self) -> u64 {
        match &*self.0 {
            Kind::Own(_) => 0,
            Kind::Peer(peer) => peer.transferred.load(Ordering::Relaxed),
        }
    }

    /// Checks that `len` bytes at `at` are in the bulk.
    fn check(&self, at: usize, len: usize) -> Result<()> {
        let end = at.checked_add(len).filter(|&end| end <= self.len());
        let outside = BulkError::OutOfRange {
            at,
            len,
            whole: self.len(),
        };
        end.map(drop).ok_or_else(|| outside.into())
    }

    /// Allocates memory to read the bulk into.
    fn allocate(&self, len: usize) -> Result<BulkMemory> {
        match &*self.0 {
            Kind::Own(_) => Ok(vec![0; len].into()),
            Kind::Peer(peer) => {
                let access = peer.access.get().ok_or(BulkError::Ended)?;
                let link = access.core().outbox.link();
                let link = link.ok_or_else(|| access.core().ended_now())?;
                BulkMemory::allocate(&link, len, true)
            }
        }
    }

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
            Kind::Peer(peer) => peer.transfer(direction, parts).await,
            Kind::Own(own) => own.copy(direction, parts),
        }
    }
}

fn memories(parts: Vec<(usize, BulkMemory)>) -> Vec<BulkMemory> {
    parts.into_iter().map(|(_, memory)| memory).collect()
}

impl Own {
    /// Takes the memory, and leaves `place` in place of it; `None` if it is not here.
    fn take(&self, place: Place) -> Option<BulkMemory> {
        let mut own = self.place.lock();
        match std::mem::replace(&mut *own, place) {
            Place::Here(memory) => Some(memory),
            former => {
                *own = former;
                None
            }
        }
    }

    /// Puts the memory back after a lease; `None` if its lease could not be ended.
    fn put(&self, memory: Option<BulkMemory>) {
        *self.place.lock() = memory.map_or(Place::Gone, Place::Here);
    }

    /// Copies parts of the bulk within this process, for a service that is called without a
    /// connection.
    fn copy(
        &self,
        direction: Direction,
        mut parts: Vec<(usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        let mut place = self.place.lock();
        let Place::Here(own) = &mut *place else {
            return (Err(BulkError::InUse.into()), memories(parts));
        };
        for (at, memory) in &mut parts {
            let range = *at..*at + memory.len();
            match direction {
                Direction::Read => memory.copy_from_slice(&own[range]),
                Direction::Write => own[range].copy_from_slice(memory),
            }
        }
        drop(place);
        (Ok(()), memories(parts))
    }
}

impl Serialize for Bulk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let token = scope::token(self).map_err(ser::Error::custom)?;
        token.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Bulk {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let token = Token::deserialize(deserializer)?;
        scope::received(token).map_err(de::Error::custom)
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("len", &self.len())
            .field("is_writable", &self.is_writable())
            .field("is_own", &matches!(*self.0, Kind::Own(_)))
            .finish_non_exhaustive()
    }
}

impl From<BulkError> for Error {
    fn from(error: BulkError) -> Self {
        Self::Bulk(error)
    }
}
