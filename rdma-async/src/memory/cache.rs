//! [`RegistrationCache`]: registrations of the program's memory, kept for later operations.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use parking_lot::Mutex;
use rdma_core::memory::StableMemory;

use super::local::LocalMrReadAccess;
use super::shared::SharedLocalMr;
use crate::device::RdmaDevice;
use crate::error::Result;

/// Cache of the registrations of memory that the program shares and does not change, such as
/// `Arc<[u8]>`. The first call of [`register`](Self::register) with some memory registers the
/// memory. Later calls return the same region.
///
/// The program owns the cache, and decides by a limit in bytes how much memory the cache keeps
/// registered. At the limit, the cache evicts the regions that were not used for the longest time.
/// The memory of an evicted region is deregistered when the program has dropped its clones of the
/// region and the last operation on the memory has completed. The region then drops its clone of
/// the owner.
///
/// ```
/// use std::sync::Arc;
///
/// use rdma_async::{LocalMrReadAccess, RdmaDevice, RegistrationCache};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let device = RdmaDevice::open_default()?;
/// # let mut listener = device.builder().bind("127.0.0.1:0").await?;
/// # let address = listener.local_address()?;
/// # let (client, server) =
/// #     tokio::try_join!(device.builder().connect(address), listener.accept())?;
/// let cache = RegistrationCache::new(&device, 64 << 20);
/// let page: Arc<[u8]> = Arc::from([7; 4096]);
/// for _ in 0..3 {
///     // The device reads the memory of `page`.
///     client.send(&cache.register(&page)?).await?;
///     assert_eq!(server.receive().await?.as_slice(), &page[..]);
/// }
/// let statistics = cache.statistics();
/// assert_eq!((statistics.misses, statistics.hits), (1, 2));
///
/// cache.evict(&page);
/// assert_eq!(cache.statistics().bytes, 0);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_reg_mr")]
pub struct RegistrationCache {
    device: RdmaDevice,
    limit: usize,
    entries: Mutex<Entries>,
}

/// Statistics of a [`RegistrationCache`], by which a program can choose the limit of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Number of regions that the cache keeps.
    pub regions: usize,
    /// Number of bytes that the cache keeps registered.
    pub bytes: usize,
    /// Maximum number of bytes that the cache keeps registered.
    pub limit: usize,
    /// Number of calls that returned a region that the cache kept.
    pub hits: u64,
    /// Number of calls that registered memory.
    pub misses: u64,
    /// Number of regions that the cache has evicted because of its limit.
    pub evictions: u64,
}

/// Address and length of memory, by which a cache recognizes memory that it keeps registered. The
/// address is unique, because the cache also keeps the owner of the memory, so that the memory is
/// not freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Location {
    address: usize,
    len: usize,
}

/// Regions that a cache keeps, and the order in which the regions were last used. Regions that were
/// not used for the longest time are evicted first.
#[derive(Default)]
struct Entries {
    regions: HashMap<Location, Entry>,
    /// Locations of the regions in the order of their last use.
    by_use: BTreeMap<u64, Location>,
    /// Number of uses so far.
    uses: u64,
    /// Sum of the lengths of the regions.
    bytes: usize,
    hits: u64,
    misses: u64,
    evictions: u64,
}

struct Entry {
    region: SharedLocalMr,
    /// Number of the last use, the key in [`Entries::by_use`].
    last_use: u64,
}

impl RegistrationCache {
    /// Creates an empty cache for registrations of the program's memory with `device`. The cache
    /// keeps at most `limit` bytes registered.
    pub fn new(device: &RdmaDevice, limit: usize) -> Self {
        Self {
            device: device.clone(),
            limit,
            entries: Mutex::default(),
        }
    }

    /// Returns a registered region that consists of the memory of `owner`. Uses the registration
    /// that this cache keeps, or else registers the memory. The bytes are not copied.
    ///
    /// The cache recognizes memory by its address and length, so that all clones of an `Arc` have
    /// the same region. Memory above the limit of the cache is registered and not kept.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) for 0 bytes or if the memory cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<O: StableMemory + Clone>(&self, owner: &O) -> Result<SharedLocalMr> {
        if let Some(region) = self.entries.lock().find(Location::of(owner)) {
            return Ok(region);
        }
        // Other tasks use the cache during the registration, which takes long for large memory.
        let registered = self.device.register_shared(owner.clone());
        let region = registered.map_err(|(_, error)| error)?;
        let mut unused = Vec::new();
        let region = self.entries.lock().add(region, self.limit, &mut unused);
        // Ends registrations after the entries have been unlocked.
        drop(unused);
        Ok(region)
    }

    /// Removes the region that contains the memory of `owner` from the cache. Returns `true` if the
    /// region was in the cache, and `false` if there was no such region.
    pub fn evict(&self, owner: &impl StableMemory) -> bool {
        let region = self.entries.lock().remove(Location::of(owner));
        region.is_some()
    }

    /// Removes all regions from the cache. The memory of a region stays registered until its last
    /// clone is dropped and the last operation on the memory has completed.
    pub fn clear(&self) {
        let regions = {
            let mut entries = self.entries.lock();
            entries.by_use.clear();
            entries.bytes = 0;
            std::mem::take(&mut entries.regions)
        };
        drop(regions);
    }

    /// Returns the statistics of the cache, such as the number of kept bytes and of evictions.
    pub fn statistics(&self) -> CacheStatistics {
        let entries = self.entries.lock();
        CacheStatistics {
            regions: entries.regions.len(),
            bytes: entries.bytes,
            limit: self.limit,
            hits: entries.hits,
            misses: entries.misses,
            evictions: entries.evictions,
        }
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("device", &self.device)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

impl Location {
    fn of(owner: &impl StableMemory) -> Self {
        let memory = owner.memory();
        Self {
            address: memory.addr().get(),
            len: memory.len(),
        }
    }

    /// Returns the address and length of the memory of `region`. The region owns a clone of the
    /// program's value. Some types copy their bytes when they are cloned: the address then differs
    /// from the address in the program's value.
    fn of_region(region: &SharedLocalMr) -> Self {
        let bytes = region.as_slice();
        Self {
            address: bytes.as_ptr().addr(),
            len: bytes.len(),
        }
    }
}

impl Entries {
    /// Returns the cached region with the address and length in `location`, or `None` if the cache
    /// has no such region. Records the use, so that regions that were used less recently are
    /// evicted first.
    fn find(&mut self, location: Location) -> Option<SharedLocalMr> {
        let entry = self.regions.get_mut(&location)?;
        self.by_use.remove(&entry.last_use);
        self.uses += 1;
        self.hits += 1;
        entry.last_use = self.uses;
        self.by_use.insert(self.uses, location);
        Some(entry.region.clone())
    }

    /// Adds a new region to the cache, and returns the region to use. If another task has already
    /// added a region for the same memory, returns that region instead of the new region. Moves
    /// evicted regions, and an unused new region, to `unused`. The caller drops the regions in
    /// `unused` after it has released the lock.
    fn add(
        &mut self,
        region: SharedLocalMr,
        limit: usize,
        unused: &mut Vec<SharedLocalMr>,
    ) -> SharedLocalMr {
        let location = Location::of_region(&region);
        if let Some(present) = self.find(location) {
            unused.push(region);
            return present;
        }
        self.misses += 1;
        if location.len > limit {
            return region;
        }
        while self.bytes > limit - location.len {
            let Some((_, &oldest)) = self.by_use.first_key_value() else {
                break;
            };
            unused.extend(self.remove(oldest));
            self.evictions += 1;
        }
        self.uses += 1;
        self.by_use.insert(self.uses, location);
        let entry = Entry {
            region: region.clone(),
            last_use: self.uses,
        };
        self.regions.insert(location, entry);
        self.bytes += location.len;
        region
    }

    /// Removes the region with the address and length in `location` from the cache, and returns the
    /// region. Returns `None` if the cache has no such region.
    fn remove(&mut self, location: Location) -> Option<SharedLocalMr> {
        let Entry { region, last_use } = self.regions.remove(&location)?;
        self.by_use.remove(&last_use);
        self.bytes -= location.len;
        Some(region)
    }
}
