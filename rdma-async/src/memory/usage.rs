//! The usage of a pool: its limit, its watermarks, and the tasks that wait for memory.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_core::memory::HugePages;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use crate::observe::PoolBytes;

/// Unit, in bytes, in which the limit of a pool is counted. Equal to the size of the smallest piece
/// of memory, so that the size of every piece is a multiple of the unit.
pub(super) const UNIT: usize = 64;

/// Options of the pool of registered memory of a device, see
/// [`RdmaDevice::with_pool`](crate::RdmaDevice::with_pool).
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct PoolOptions {
    pub(crate) limit: Option<usize>,
    pub(crate) huge_pages: HugePages,
    pub(crate) kept_watermarks: Option<RangeInclusive<usize>>,
}

impl PoolOptions {
    /// Sets the maximum number of bytes of local memory regions that exist at the same time. By
    /// default there is no limit. The size of a region of up to 64 MiB is rounded up to a power of
    /// two.
    ///
    /// Only regions that the program or a peer holds count towards the limit. Memory that the pool
    /// keeps after a region was dropped does not count, nor do the receives of connections. The
    /// regions that peers have [requested](crate::Rdma::request_remote_mr) and hold use at most
    /// three quarters of the limit. One quarter remains for the program, even if hostile peers
    /// request all memory.
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Sets the watermarks, in bytes, of the memory that stays registered after its region was
    /// dropped. When this memory exceeds `high`, the pool frees memory until at most `low` bytes
    /// are left. By default the pool has no watermarks. Each of its caches, one for each processor,
    /// then keeps about 64 MiB of regions of each size.
    ///
    /// Large regions are freed first. Regions of less than 64 KiB, or of less than 2 MiB in huge
    /// pages, share registrations. A shared registration ends when all its regions are freed.
    /// `high` should exceed the size of all regions that the program drops and allocates again.
    /// Otherwise the pool frees and registers memory again and again.
    ///
    /// ```
    /// use std::alloc::Layout;
    ///
    /// use rdma_async::{PoolOptions, RdmaDevice};
    ///
    /// let options = PoolOptions::default().kept_watermarks(1 << 20, 4 << 20);
    /// let device = RdmaDevice::with_pool(&rdma_core::Context::open_default()?, &options)?;
    /// let layout = Layout::new::<[u8; 1 << 20]>();
    /// let regions: Vec<_> = (0..5).map(|_| device.alloc_local_mr(layout)).collect();
    /// drop(regions);
    /// assert_eq!(device.pool_statistics().kept, 1 << 20);
    /// # Ok::<(), rdma_async::Error>(())
    /// ```
    pub fn kept_watermarks(mut self, low: usize, high: usize) -> Self {
        self.kept_watermarks = Some(low..=high);
        self
    }

    /// Sets whether the memory is allocated in huge pages, which devices can translate with fewer
    /// table entries. The default is ordinary pages.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Checks the watermarks of the memory that the pool keeps registered. Returns an error if the
    /// low watermark exceeds the high watermark.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.kept_watermarks {
            Some(watermarks) if watermarks.is_empty() => {
                let (low, high) = (watermarks.start(), watermarks.end());
                let reason = format!("low is {low} bytes, and high only {high} bytes");
                Err(Error::invalid("watermarks of a pool", reason))
            }
            _ => Ok(()),
        }
    }
}

/// Statistics of the pool of registered memory of a device, see
/// [`RdmaDevice::pool_statistics`](crate::RdmaDevice::pool_statistics).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Number of bytes of the local memory regions that exist.
    pub in_use: usize,
    /// Highest number of bytes in use since the device was opened.
    pub highest: usize,
    /// Number of bytes of dropped regions that stay registered for their next use.
    pub kept: usize,
    /// Maximum number of bytes in use, or `None` if there is no limit.
    pub limit: Option<usize>,
    /// Number of tasks that wait for memory.
    pub waiting: usize,
}

/// Counters of the bytes that one pool lends, with the limit of the bytes in use.
#[derive(Debug)]
pub(super) struct Usage {
    in_use: AtomicUsize,
    highest: AtomicUsize,
    waiting: AtomicUsize,
    limit: Option<Limit>,
    observed: PoolBytes,
}

/// Limit of the bytes in use of a memory pool. Tasks can wait until other memory is returned and
/// the limit allows more bytes.
#[derive(Debug)]
struct Limit {
    bytes: usize,
    /// Units that are not in use. Tasks acquire units in the order in which they began to wait.
    free: Semaphore,
    /// Total number of released bytes. A part of a piece may not be a multiple of the unit, so the
    /// units are computed from this sum.
    released: AtomicUsize,
}

impl Usage {
    pub(super) fn new(limit: Option<usize>, device: &str) -> Self {
        let limit = limit.map(|bytes| Limit {
            bytes,
            free: Semaphore::new((bytes / UNIT).min(Semaphore::MAX_PERMITS)),
            released: AtomicUsize::new(0),
        });
        Self {
            in_use: AtomicUsize::new(0),
            highest: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            limit,
            observed: PoolBytes::of(device),
        }
    }

    /// Returns the maximum number of bytes of the regions that all peers together may request and
    /// hold: three quarters of the pool's limit. Returns `None` if the pool has no limit.
    pub(super) fn limit_of_peers(&self) -> Option<usize> {
        let limit = self.limit.as_ref()?.bytes;
        Some(limit - limit / 4)
    }

    /// Counts `bytes` bytes of pool memory as used. Fails if the limit of the pool would be
    /// exceeded. `bytes` is a multiple of [`UNIT`].
    pub(super) fn acquire(&self, bytes: usize) -> Result<()> {
        if let Some(limit) = &self.limit {
            let permit = units(bytes).and_then(|units| limit.free.try_acquire_many(units).ok());
            permit.ok_or_else(|| limit.full_error(bytes))?.forget();
        }
        self.count(bytes);
        Ok(())
    }

    /// Counts `bytes` bytes of pool memory as used, after waiting until the limit of the pool
    /// allows it. Tasks get memory in the order in which they began to wait. Fails if `bytes`
    /// exceeds the whole limit.
    pub(super) async fn acquire_when_free(&self, bytes: usize) -> Result<()> {
        if let Some(limit) = &self.limit {
            let units = units(bytes).filter(|_| bytes <= limit.bytes);
            let units = units.ok_or_else(|| limit.full_error(bytes))?;
            let _waiting = WaitingTask::new(&self.waiting);
            let permit = limit.free.acquire_many(units).await;
            permit.map_err(|_| limit.full_error(bytes))?.forget();
        }
        self.count(bytes);
        Ok(())
    }

    /// Adds `bytes` to the number of bytes of regions that exist, and updates the maximum of this
    /// number for the statistics.
    fn count(&self, bytes: usize) {
        let in_use = self.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.observed.add(bytes);
        if in_use > self.highest.load(Ordering::Relaxed) {
            self.highest.fetch_max(in_use, Ordering::Relaxed);
        }
    }

    /// Subtracts `bytes` from the bytes in use of the pool, so that waiting tasks can use these
    /// bytes. `bytes` is the length of returned memory, or of memory that could not be registered.
    pub(super) fn release(&self, bytes: usize) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
        self.observed.subtract(bytes);
        if let Some(limit) = &self.limit {
            let before = limit.released.fetch_add(bytes, Ordering::Relaxed);
            // The counter wraps around at a multiple of the unit.
            let units = (before % UNIT + bytes) / UNIT;
            limit.free.add_permits(units);
        }
    }

    pub(super) fn statistics(&self, kept: usize) -> PoolStatistics {
        PoolStatistics {
            in_use: self.in_use.load(Ordering::Relaxed),
            highest: self.highest.load(Ordering::Relaxed),
            kept,
            limit: self.limit.as_ref().map(|limit| limit.bytes),
            waiting: self.waiting.load(Ordering::Relaxed),
        }
    }
}

impl Limit {
    /// Returns the error for a region of `requested` bytes, with which the bytes in use would
    /// exceed the limit.
    fn full_error(&self, requested: usize) -> Error {
        let limit = self.bytes;
        Error::PoolFull { requested, limit }
    }
}

/// Counter of the kept bytes of a memory pool. Kept bytes are memory of dropped regions that stays
/// registered. Contains the two watermarks that limit the kept bytes.
#[derive(Debug)]
pub(super) struct KeptBytes {
    bytes: AtomicUsize,
    watermarks: RangeInclusive<usize>,
}

impl KeptBytes {
    pub(super) fn new(watermarks: RangeInclusive<usize>) -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            watermarks,
        }
    }

    /// Adds `bytes`, the length of memory that was returned to the pool, to the number of kept
    /// (unused) bytes. The caller must call this function before the memory is in the pool: a
    /// thread that takes the memory from the pool subtracts the same number.
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the low watermark if the kept bytes exceed the high watermark, else `None`. The
    /// caller must then free unused memory until at most the returned number of bytes is kept.
    pub(super) fn above_high(&self) -> Option<usize> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        (bytes > *self.watermarks.end()).then(|| *self.watermarks.start())
    }
}

/// Returns the number of [`UNIT`]s (64 bytes) that `bytes` bytes occupy, rounded up. Pool memory is
/// counted in these units. Returns `None` if the number exceeds 32 bits.
fn units(bytes: usize) -> Option<u32> {
    u32::try_from(bytes.div_ceil(UNIT)).ok()
}

/// Guard that counts a task in [`PoolStatistics::waiting`] until the guard is dropped.
struct WaitingTask<'u>(&'u AtomicUsize);

impl<'u> WaitingTask<'u> {
    fn new(count: &'u AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingTask<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
