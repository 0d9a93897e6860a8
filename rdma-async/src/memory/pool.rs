//! A pool of registered memory. The memory of dropped regions stays registered and is used again,
//! because registration is slow.

use std::alloc::Layout;
use std::iter::successors;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;

use parking_lot::Mutex;
use rdma_core::device::DeviceCapabilities;
use rdma_core::memory::{HostMemory, HugePages, SharedBuffer, WriteClaim};
use rdma_core::{AccessFlags, Buffer, Context, ProtectionDomain};

use super::usage::{KeptBytes, PoolOptions, PoolStatistics, UNIT, Usage};
use crate::error::{Error, Result};

/// Size in bytes of the smallest piece of memory of the pool. Smaller regions get a piece of this
/// size.
const MIN_PIECE: usize = UNIT;
/// Size, in bytes, of the largest piece of memory that the pool keeps for reuse. Larger memory is
/// registered separately, and freed when its region is dropped.
const MAX_PIECE: usize = 64 << 20;
/// Approximate number of bytes that are registered with one call and split into pieces. Registering
/// several small pieces with one call takes less time.
const CHUNK: usize = 64 << 10;
/// Approximate number of bytes in huge pages that the pool registers with one call, and then splits
/// into pieces. Equal to the usual size of a huge page.
const HUGE_CHUNK: usize = 2 << 20;
/// Maximum number of caches of a pool. Limits the unused memory that a pool keeps on a machine with
/// many processors.
const MAX_CACHES: usize = 16;
/// Approximate number of bytes of unused memory that each cache of a pool keeps registered for each
/// size of pieces. The cache frees further pieces. As a number of pieces, the limit is at least 4 and at
/// most 4096. Not used if the program has set watermarks.
const MAX_KEPT_BYTES: usize = 64 << 20;

thread_local! {
    /// Number of the thread, by which pools distribute the threads over their caches.
    static THREAD_NUMBER: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
}

/// Pool of registered memory of one protection domain, which lends memory in pieces. The sizes of
/// the pieces are powers of two.
#[derive(Debug)]
pub(crate) struct Pool {
    /// One cache for each processor. Threads use different caches, so that the shards of several
    /// threads do not wait for each other.
    caches: Vec<Cache>,
    /// Lender of memory that is too large or too strictly aligned for the sizes, and is freed when
    /// it is returned.
    unpooled: Arc<PieceLender>,
    usage: Arc<Usage>,
}

/// The lenders of one cache of a [`Pool`]: one for each size of pieces, the smallest size first. A
/// region returns to the cache from which the region was taken.
type Cache = Vec<Arc<PieceLender>>;

impl Pool {
    pub(crate) fn new(domain: &ProtectionDomain, options: &PoolOptions) -> Arc<Self> {
        let usage = Arc::new(Usage::new(options.limit, domain.context().name()));
        let watermarks = options.kept_watermarks.clone();
        let kept_bytes = watermarks.map(|watermarks| Arc::new(KeptBytes::new(watermarks)));
        Arc::new_cyclic(|pool| {
            let lender = |size| {
                let lender = PieceLender::new(domain.clone(), size);
                Arc::new(PieceLender {
                    huge_pages: options.huge_pages,
                    usage: Some(Arc::clone(&usage)),
                    kept_bytes: kept_bytes.clone(),
                    pool: Weak::clone(pool),
                    ..lender
                })
            };
            let cache = |_| {
                let sizes = successors(Some(MIN_PIECE), |size| Some(2 * size));
                sizes
                    .take_while(|&size| size <= MAX_PIECE)
                    .map(lender)
                    .collect()
            };
            let caches = available_parallelism().map_or(1, NonZero::get);
            Self {
                caches: (0..caches.min(MAX_CACHES)).map(cache).collect(),
                unpooled: lender(0),
                usage: Arc::clone(&usage),
            }
        })
    }

    /// Returns the statistics of this memory pool: the bytes of the regions that exist, and the
    /// unused bytes that the pool keeps registered.
    pub(crate) fn statistics(&self) -> PoolStatistics {
        self.usage.statistics(self.kept())
    }

    /// Returns the number of bytes in unused pieces of memory, which the pool keeps registered for
    /// reuse.
    fn kept(&self) -> usize {
        let kept = |lender: &Arc<PieceLender>| lender.kept.lock().len() * lender.size;
        self.lenders().map(kept).sum()
    }

    /// Returns the lenders of all caches, those of the smallest size first.
    fn lenders(&self) -> impl DoubleEndedIterator<Item = &Arc<PieceLender>> {
        let sizes = 0..self.caches[0].len();
        sizes.flat_map(|size| self.caches.iter().map(move |cache| &cache[size]))
    }

    /// Returns the cache that the calling thread uses.
    #[inline]
    fn cache(&self) -> &Cache {
        &self.caches[THREAD_NUMBER.with(|number| *number) % self.caches.len()]
    }

    /// Frees unused pieces of registered memory until the pool keeps at most `target` bytes.
    /// Returns the number of freed bytes. First frees large pieces, except pieces that are larger
    /// than the number of bytes left to free. If this does not suffice, also frees the smallest
    /// sufficient pieces.
    pub(crate) fn trim(&self, target: usize) -> usize {
        for lender in self.lenders() {
            lender.collect_claimed();
        }
        let mut excess = self.kept().saturating_sub(target);
        let mut freed = 0;
        for lender in self.lenders().rev() {
            let bytes = lender.free_kept(excess / lender.size);
            (freed, excess) = (freed + bytes, excess - bytes);
        }
        for lender in self.lenders() {
            let bytes = lender.free_kept(excess.div_ceil(lender.size));
            (freed, excess) = (freed + bytes, excess.saturating_sub(bytes));
        }
        freed
    }

    /// Returns the number of bytes of the pool that a region with the size and alignment of
    /// `layout` uses. This number is the size of the piece of memory that contains the region.
    pub(crate) fn piece_len(&self, layout: Layout) -> Result<usize> {
        Ok(self.lender_of(layout)?.1.size())
    }

    /// Returns the maximum number of bytes of the pool that all peers together may request and
    /// hold. Returns `None` if the pool has no limit.
    pub(crate) fn limit_of_peers(&self) -> Option<usize> {
        self.usage.limit_of_peers()
    }

    /// Takes registered memory of `len` bytes, at most [`MIN_PIECE`], for the header of a message
    /// or the result of an atomic operation. Returns a claim: exclusive use of the memory by one
    /// request.
    pub(crate) fn take_header(&self, len: usize) -> Result<WriteClaim> {
        match self.cache()[0].take()?.into_claim(..len) {
            Ok(claim) => Ok(claim),
            Err(_) => unreachable!("memory from the pool is unclaimed"),
        }
    }

    /// Puts memory that [`Self::take_header`] has lent back into the pool, which keeps the memory
    /// for the next header.
    pub(crate) fn put_back_header(&self, piece: SharedBuffer) {
        self.cache()[0].keep(piece);
    }

    /// Takes memory with the size and alignment of `layout` from the pool. Returns the memory and
    /// its lender: the part of the pool to which the caller must return the memory. Fails if the
    /// limit of the pool would be exceeded. The caller must ensure that the size is not 0.
    pub(crate) fn take(&self, layout: Layout) -> Result<(SharedBuffer, Arc<PieceLender>)> {
        let (lender, layout) = self.lender_of(layout)?;
        self.usage.acquire(layout.size())?;
        self.lend(lender, layout)
    }

    /// Takes memory with the size and alignment of `layout` from the pool, after waiting until the
    /// limit of the pool allows it. Returns the memory and its lender, the part of the pool to
    /// which the caller must return the memory.
    pub(crate) async fn take_when_free(
        &self,
        layout: Layout,
    ) -> Result<(SharedBuffer, Arc<PieceLender>)> {
        let (lender, layout) = self.lender_of(layout)?;
        self.usage.acquire_when_free(layout.size()).await?;
        self.lend(lender, layout)
    }

    /// Takes memory from `lender`, the part of the pool for one size. The caller must have added
    /// the size of the memory to the pool's [`Usage`]. If no memory can be registered, subtracts
    /// the size again.
    fn lend(
        &self,
        lender: &Arc<PieceLender>,
        layout: Layout,
    ) -> Result<(SharedBuffer, Arc<PieceLender>)> {
        let taken = match lender.size {
            0 => lender.allocate(layout).map(SharedBuffer::new),
            _ => lender.take(),
        };
        match taken {
            Ok(memory) => Ok((memory, Arc::clone(lender))),
            Err(error) => {
                self.usage.release(layout.size());
                Err(error)
            }
        }
    }

    /// Returns the lender (part of the pool) for the smallest piece size that fits `layout`, and
    /// the size and alignment of the piece. If no piece size fits, returns the lender whose memory
    /// is not kept for reuse.
    fn lender_of(&self, layout: Layout) -> Result<(&Arc<PieceLender>, Layout)> {
        let size = layout
            .size()
            .max(layout.align())
            .max(MIN_PIECE)
            .checked_next_power_of_two();
        let class = size.and_then(|size| {
            let class = size.trailing_zeros() - MIN_PIECE.trailing_zeros();
            self.cache().get(class as usize)
        });
        // Pieces of up to 4096 bytes are aligned to their size, and larger pieces to a page of 4096
        // bytes, because the memory of a registration begins on a page.
        let (lender, size) = match class.filter(|_| layout.align() <= 4096) {
            Some(lender) => (lender, Some(lender.size)),
            None => (&self.unpooled, layout.size().checked_next_multiple_of(UNIT)),
        };
        let piece = size.and_then(|size| Layout::from_size_align(size, layout.align()).ok());
        let impossible = || Error::invalid("memory region", "the size is too large");
        Ok((lender, piece.ok_or_else(impossible)?))
    }
}

/// Allocator of registered memory in pieces of one size. Usually a part of a [`Pool`], but receive
/// queues have an allocator of their own. Keeps the pieces of dropped regions registered for their
/// next use.
#[derive(Debug)]
pub(crate) struct PieceLender {
    domain: ProtectionDomain,
    /// Size of every piece, in bytes. 0 if the lender keeps no piece and lends memory of any size.
    size: usize,
    huge_pages: HugePages,
    /// Usage counters of the pool, if the lender belongs to a pool.
    usage: Option<Arc<Usage>>,
    /// Counter of the kept bytes of the pool, if the lender belongs to a pool with watermarks.
    kept_bytes: Option<Arc<KeptBytes>>,
    /// Pool to which the lender belongs. Dangling if the lender belongs to no pool.
    pool: Weak<Pool>,
    /// Maximum number of kept pieces, unless the pool has watermarks.
    max_kept: usize,
    /// Pieces that no other object refers to. The piece that was returned last is used next,
    /// because its bytes may still be in the processor's caches.
    kept: Mutex<Vec<SharedBuffer>>,
    /// Returned pieces that an operation in flight was still using.
    claimed: Mutex<Vec<SharedBuffer>>,
}

impl PieceLender {
    pub(crate) fn new(domain: ProtectionDomain, size: usize) -> Self {
        let limit = (MAX_KEPT_BYTES / size.max(1)).clamp(4, 4096);
        Self {
            domain,
            size,
            huge_pages: HugePages::No,
            usage: None,
            kept_bytes: None,
            pool: Weak::new(),
            max_kept: limit,
            kept: Mutex::new(Vec::with_capacity(limit)),
            claimed: Mutex::default(),
        }
    }

    /// Returns a piece of registered memory. Uses an unused piece that this lender keeps. If the
    /// lender keeps no piece, registers new memory.
    pub(crate) fn take(&self) -> Result<SharedBuffer> {
        if let Some(piece) = self.take_kept() {
            return Ok(piece);
        }
        self.collect_claimed();
        match self.take_kept().or_else(|| self.take_from_other_cache()) {
            Some(piece) => Ok(piece),
            None => self.grow(),
        }
    }

    /// Takes an unused piece of another cache of the pool, because using the piece is faster than
    /// registering new memory. Returns `None` if no cache keeps a piece of this size.
    #[cold]
    fn take_from_other_cache(&self) -> Option<SharedBuffer> {
        let pool = self.pool.upgrade()?;
        let mut others = pool.lenders().filter(|other| other.size == self.size);
        others.find_map(|other| {
            other.collect_claimed();
            other.take_kept()
        })
    }

    #[inline]
    fn take_kept(&self) -> Option<SharedBuffer> {
        let piece = self.kept.lock().pop()?;
        if let Some(kept_bytes) = &self.kept_bytes {
            kept_bytes.subtract(self.size);
        }
        Some(piece)
    }

    /// Takes back the memory of a dropped region, and keeps it for its next use. Frees the memory
    /// instead if the region was split, so that the memory is not a whole piece. Frees further kept
    /// memory if it now exceeds the high watermark.
    pub(crate) fn put_back(&self, piece: SharedBuffer) {
        if let Some(usage) = &self.usage {
            usage.release(piece.len());
        }
        self.keep_or_free(piece);
        if let Some(low) = self.kept_bytes.as_ref().and_then(|kept| kept.above_high())
            && let Some(pool) = self.pool.upgrade()
        {
            pool.trim(low);
        }
    }

    /// Keeps the memory of a dropped region for its next use. If an operation is still using the
    /// memory, sets the memory aside until [`Self::collect_claimed`] finds that the operation has
    /// completed. Frees the memory instead if its length is not the size of these pieces, or if
    /// another thread is just ending the last operation on the memory.
    fn keep_or_free(&self, piece: SharedBuffer) {
        if piece.len() != self.size {
            return;
        }
        if piece.is_sole_holder() {
            self.keep(piece);
        } else if !piece.is_unclaimed() {
            self.claimed.lock().push(piece);
        }
        // Otherwise another thread is just ending the last claim, and still refers to the memory.
        // The piece is then freed.
    }

    /// Keeps a piece of registered memory for its next use. Frees the piece instead if the maximum
    /// number of pieces of this size is already kept. A pool for which the program has set
    /// watermarks has no such maximum.
    #[inline]
    fn keep(&self, piece: SharedBuffer) {
        let mut kept = self.kept.lock();
        if let Some(kept_bytes) = &self.kept_bytes {
            kept_bytes.add(self.size);
            kept.push(piece);
        } else if kept.len() < self.max_kept {
            kept.push(piece);
        } else {
            drop(kept);
            drop(piece);
        }
    }

    /// Frees up to `pieces` unused pieces of memory, beginning with the piece that was returned
    /// first. Returns the number of freed bytes.
    fn free_kept(&self, pieces: usize) -> usize {
        let freed: Vec<_> = {
            let mut kept = self.kept.lock();
            let pieces = pieces.min(kept.len());
            kept.drain(..pieces).collect()
        };
        let bytes = freed.len() * self.size;
        if let Some(kept_bytes) = &self.kept_bytes {
            kept_bytes.subtract(bytes);
        }
        bytes
    }

    /// Examines the pieces of memory that were returned while operations were still using them. If
    /// these operations have completed, keeps the pieces for their next use.
    fn collect_claimed(&self) {
        let claimed = std::mem::take(&mut *self.claimed.lock());
        for piece in claimed {
            self.keep_or_free(piece);
        }
    }

    /// Allocates memory with the size and alignment of `layout`, and registers the memory with the
    /// device.
    fn allocate(&self, layout: Layout) -> Result<Buffer> {
        let memory = HostMemory::builder(layout.size())
            .align(layout.align())
            .huge_pages(self.huge_pages)
            .domain(&self.domain)
            .build()?;
        let registration = self
            .domain
            .registration()
            .access(window_access(&self.domain));
        let registered = registration.register(memory);
        registered.map_err(|refused| rdma_core::Error::from(refused).into())
    }

    /// Registers further memory, divides it into pieces, and returns one piece. Keeps the other
    /// pieces for later use. Called when no unused piece is left.
    fn grow(&self) -> Result<SharedBuffer> {
        let chunk = match self.huge_pages {
            HugePages::No => CHUNK,
            _ => HUGE_CHUNK,
        };
        let len = self.size.max(chunk / self.size * self.size);
        let layout = Layout::from_size_align(len, 1);
        let layout = layout.map_err(|error| Error::invalid("memory region", error.to_string()))?;
        let mut rest = self.allocate(layout)?;
        while rest.len() > self.size {
            let (piece, tail) = rest.split_at(self.size);
            self.keep(SharedBuffer::new(piece));
            rest = tail;
        }
        Ok(SharedBuffer::new(rest))
    }
}

/// Returns the access flag that permits binding memory windows to the pool's memory. Returns no
/// flag if the device does not support windows of type 2. The flag gives peers no access to the
/// memory.
fn window_access(domain: &ProtectionDomain) -> AccessFlags {
    match has_windows(domain.context()) {
        true => AccessFlags::WINDOW_BIND,
        false => AccessFlags::empty(),
    }
}

/// Returns whether the device of `context` supports memory windows of type 2, by which a peer gets
/// access to a part of a buffer.
pub(crate) fn has_windows(context: &Context) -> bool {
    let type_2 = DeviceCapabilities::MEM_WINDOW_TYPE_2A | DeviceCapabilities::MEM_WINDOW_TYPE_2B;
    let attributes = context.attributes();
    attributes.is_ok_and(|attributes| attributes.capabilities().intersects(type_2))
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use super::*;

    #[test]
    fn a_piece_that_an_operation_still_uses_is_returned_once() {
        let domain = Context::open("softroce0").and_then(|context| context.protection_domain());
        let options = PoolOptions::default().limit(3 * CHUNK);
        let pool = Pool::new(&domain.unwrap(), &options);
        let take = || pool.take(Layout::new::<[u8; CHUNK]>()).unwrap();
        let (piece, lender) = take();
        let claim = piece.try_read(..).unwrap();
        lender.put_back(piece);
        assert_eq!(pool.statistics().in_use, 0);
        // No piece is kept, so the lender checks the claimed pieces for completed operations.
        let (second, _) = take();
        assert_eq!(pool.statistics().in_use, CHUNK);
        drop(claim);
        let (third, _) = take();
        assert_eq!(pool.statistics().in_use, 2 * CHUNK);
        lender.put_back(second);
        lender.put_back(third);
        let statistics = pool.statistics();
        assert_eq!((statistics.in_use, statistics.kept), (0, 2 * CHUNK));
    }

    #[test]
    fn threads_use_caches_of_their_own_and_the_unused_memory_of_the_others() {
        let domain = Context::open("softroce0").and_then(|context| context.protection_domain());
        let pool = Pool::new(&domain.unwrap(), &PoolOptions::default());
        let layout = Layout::new::<[u8; CHUNK]>();
        let (piece, lender) = pool.take(layout).unwrap();
        lender.put_back(piece);
        let mut unused: Vec<_> = pool.caches.iter().collect();
        // Threads of other tests can get numbers meanwhile, so more threads than caches are tried.
        for _ in 0..1000 {
            let used = std::thread::scope(|scope| {
                let used = scope.spawn(|| {
                    let (piece, lender) = pool.take(layout).unwrap();
                    assert_eq!(pool.statistics().kept, 0, "the unused memory is used");
                    lender.put_back(piece);
                    lender
                });
                used.join().unwrap()
            });
            assert_eq!(pool.statistics().kept, CHUNK);
            unused.retain(|cache| !cache.iter().any(|own| Arc::ptr_eq(own, &used)));
            if unused.is_empty() {
                return;
            }
        }
        panic!("{} caches were not used", unused.len());
    }
}
