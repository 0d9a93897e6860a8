//! A pool of registered memory: pieces of dropped regions are kept and used again, because
//! registration is slow.

use std::alloc::Layout;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core::memory::{HostMemory, HugePages, SharedBuffer, WriteClaim};
use rdma_core::{Buffer, ProtectionDomain};

use super::usage::{PoolOptions, PoolStatistics, UNIT, Usage};
use crate::error::{Error, Result};

/// Sizes, in bytes, of the smallest and the largest piece that is kept. Larger memory is registered
/// separately and freed when it is dropped.
const SMALLEST: usize = UNIT;
const LARGEST: usize = 64 << 20;
/// Approximate number of bytes of small pieces that are registered together.
const CHUNK: usize = 64 << 10;
/// Approximate number of bytes of small pieces in huge pages that are registered together: a page
/// of the usual size.
const HUGE_CHUNK: usize = 2 << 20;
/// Limit of the bytes that are kept of each size; 4 to 4096 pieces of a size are kept.
const KEPT_BYTES: usize = 16 << 20;

/// Registered memory of one protection domain, in pieces whose sizes are powers of two.
#[derive(Debug)]
pub(crate) struct Pool {
    sizes: Vec<Arc<PieceLender>>,
    /// Lender of memory that is not kept.
    others: Arc<PieceLender>,
    usage: Arc<Usage>,
}

impl Pool {
    pub(crate) fn new(domain: &ProtectionDomain, options: &PoolOptions) -> Self {
        let usage = Arc::new(Usage::new(options.limit, domain.context().name()));
        let lender = |size| {
            Arc::new(PieceLender {
                huge_pages: options.huge_pages,
                usage: Some(Arc::clone(&usage)),
                ..PieceLender::new(domain.clone(), size)
            })
        };
        let sizes = std::iter::successors(Some(SMALLEST), |size| Some(2 * size));
        Self {
            sizes: sizes
                .take_while(|&size| size <= LARGEST)
                .map(lender)
                .collect(),
            others: lender(0),
            usage,
        }
    }

    /// Returns the statistics of the memory that [`Self::take`] has lent.
    pub(crate) fn statistics(&self) -> PoolStatistics {
        let kept = self
            .sizes
            .iter()
            .map(|lender| lender.kept.lock().len() * lender.size);
        self.usage.statistics(kept.sum())
    }

    /// Takes memory of `len` bytes, at most 64, for the header of a message or the result of an
    /// atomic.
    pub(crate) fn take_header(&self, len: usize) -> Result<WriteClaim> {
        match self.sizes[0].take()?.into_claim(..len) {
            Ok(claim) => Ok(claim),
            Err(_) => unreachable!("memory from the pool is unclaimed"),
        }
    }

    /// Takes back the memory of [`Self::take_header`].
    pub(crate) fn put_back_header(&self, piece: SharedBuffer) {
        self.sizes[0].keep(piece);
    }

    /// Takes memory with room for `layout`, whose size must not be 0. Returns it with the lender to
    /// which it must be returned.
    pub(crate) fn take(&self, layout: Layout) -> Result<(SharedBuffer, Arc<PieceLender>)> {
        let (lender, layout) = self.lender_of(layout)?;
        self.usage.take(layout.size())?;
        self.lend(lender, layout)
    }

    /// Takes memory like [`Self::take`], after waiting until the limit of the pool allows it.
    pub(crate) async fn take_when_free(
        &self,
        layout: Layout,
    ) -> Result<(SharedBuffer, Arc<PieceLender>)> {
        let (lender, layout) = self.lender_of(layout)?;
        self.usage.take_when_free(layout.size()).await?;
        self.lend(lender, layout)
    }

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
                self.usage.give(layout.size());
                Err(error)
            }
        }
    }

    /// Returns the lender of memory with room for `layout`, and the size and alignment of its
    /// piece.
    fn lender_of(&self, layout: Layout) -> Result<(&Arc<PieceLender>, Layout)> {
        let size = layout
            .size()
            .max(layout.align())
            .max(SMALLEST)
            .checked_next_power_of_two();
        let class = size.and_then(|size| {
            let class = size.trailing_zeros() - SMALLEST.trailing_zeros();
            self.sizes.get(class as usize)
        });
        // Pieces are aligned to their size, at most to a page, because each chunk begins on a page.
        let (lender, size) = match class.filter(|_| layout.align() <= 4096) {
            Some(lender) => (lender, Some(lender.size)),
            None => (&self.others, layout.size().checked_next_multiple_of(UNIT)),
        };
        let piece = size.and_then(|size| Layout::from_size_align(size, layout.align()).ok());
        let impossible = || Error::invalid("memory region", "no memory has such a size");
        Ok((lender, piece.ok_or_else(impossible)?))
    }
}

/// Lends pieces of registered memory of one size and takes them back.
#[derive(Debug)]
pub(crate) struct PieceLender {
    domain: ProtectionDomain,
    /// Size of every piece, or 0 if no piece is kept.
    size: usize,
    huge_pages: HugePages,
    /// Use of the pool of the pieces, if they belong to one.
    usage: Option<Arc<Usage>>,
    /// Pieces without any other holder. The piece that was kept last is used next, because its
    /// memory is still in the caches of the processor.
    kept: Mutex<Vec<SharedBuffer>>,
    /// Pieces that were put back while an operation in flight was still using them.
    claimed: Mutex<Vec<SharedBuffer>>,
}

impl PieceLender {
    pub(crate) fn new(domain: ProtectionDomain, size: usize) -> Self {
        let limit = (KEPT_BYTES / size.max(1)).clamp(4, 4096);
        Self {
            domain,
            size,
            huge_pages: HugePages::No,
            usage: None,
            kept: Mutex::new(Vec::with_capacity(limit)),
            claimed: Mutex::default(),
        }
    }

    pub(crate) fn take(&self) -> Result<SharedBuffer> {
        if let Some(piece) = self.take_kept() {
            return Ok(piece);
        }
        self.collect();
        match self.take_kept() {
            Some(piece) => Ok(piece),
            None => self.grow(),
        }
    }

    #[inline]
    fn take_kept(&self) -> Option<SharedBuffer> {
        self.kept.lock().pop()
    }

    /// Takes memory back. Frees memory that is only a part of a piece.
    pub(crate) fn put_back(&self, piece: SharedBuffer) {
        if let Some(usage) = &self.usage {
            usage.give(piece.len());
        }
        self.put_away(piece);
    }

    /// Keeps a piece that is no longer counted as used, or frees it.
    fn put_away(&self, piece: SharedBuffer) {
        if piece.len() != self.size {
            return;
        }
        if piece.is_sole_holder() {
            self.keep(piece);
        } else if !piece.is_unclaimed() {
            self.claimed.lock().push(piece);
        }
        // Otherwise a thread is ending a claim and holds the memory a moment longer. The piece is
        // freed instead of kept.
    }

    /// Keeps a piece for its next use. Frees a piece above the limit.
    #[inline]
    fn keep(&self, piece: SharedBuffer) {
        let mut kept = self.kept.lock();
        if kept.len() < kept.capacity() {
            kept.push(piece);
        } else {
            drop(kept);
            drop(piece);
        }
    }

    /// Keeps the claimed pieces whose operations have completed in the meantime.
    fn collect(&self) {
        let claimed = std::mem::take(&mut *self.claimed.lock());
        for piece in claimed {
            self.put_away(piece);
        }
    }

    /// Allocates and registers memory.
    fn allocate(&self, layout: Layout) -> Result<Buffer> {
        let memory = HostMemory::builder(layout.size())
            .align(layout.align())
            .huge_pages(self.huge_pages)
            .domain(&self.domain)
            .build()?;
        let registered = self.domain.register(memory);
        registered.map_err(|refused| rdma_core::Error::from(refused).into())
    }

    /// Registers more memory, returns one piece of it and keeps the others.
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

#[cfg(all(test, not(loom_models)))]
mod tests {
    use rdma_core::Context;

    use super::*;

    #[test]
    fn a_piece_that_an_operation_still_uses_is_given_back_once() {
        let domain = Context::open("softroce0").and_then(|context| context.protection_domain());
        let options = PoolOptions::default().limit(3 * CHUNK);
        let pool = Pool::new(&domain.unwrap(), &options);
        let take = || pool.take(Layout::new::<[u8; CHUNK]>()).unwrap();
        let (piece, lender) = take();
        let claim = piece.try_read(..).unwrap();
        lender.put_back(piece);
        assert_eq!(pool.statistics().in_use, 0);
        // No piece is kept, so the lender looks for claimed pieces whose operations have completed.
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
}
