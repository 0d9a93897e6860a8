//! A pool of registered memory: pieces of dropped regions are kept and used again, because
//! registration is slow.

use std::alloc::Layout;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_core::ProtectionDomain;
use rdma_core::memory::{SharedBuffer, WriteClaim};

use crate::error::Result;

/// Sizes, in bytes, of the smallest and the largest piece that is kept. Larger memory is registered
/// separately and freed when it is dropped.
const SMALLEST: usize = 64;
const LARGEST: usize = 64 << 20;
/// Approximate number of bytes of small pieces that are registered together.
const CHUNK: usize = 64 << 10;
/// Limit of the bytes that are kept of each size; 4 to 4096 pieces of a size are kept.
const KEPT_BYTES: usize = 16 << 20;

/// Registered memory of one protection domain, in pieces whose sizes are powers of two.
#[derive(Debug)]
pub(crate) struct Pool {
    domain: ProtectionDomain,
    sizes: Vec<Arc<PieceLender>>,
}

impl Pool {
    pub(crate) fn new(domain: &ProtectionDomain) -> Self {
        let mut sizes = Vec::new();
        let mut size = SMALLEST;
        while size <= LARGEST {
            sizes.push(Arc::new(PieceLender::new(domain.clone(), size)));
            size *= 2;
        }
        Self {
            domain: domain.clone(),
            sizes,
        }
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
    /// which it must be returned, or `None` if it is freed when it is dropped.
    pub(crate) fn take(&self, layout: Layout) -> Result<(SharedBuffer, Option<Arc<PieceLender>>)> {
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
        match class.filter(|_| layout.align() <= 4096) {
            Some(lender) => Ok((lender.take()?, Some(Arc::clone(lender)))),
            None => Ok((
                SharedBuffer::new(self.domain.allocate_layout(layout)?),
                None,
            )),
        }
    }
}

/// Lends pieces of registered memory of one size and takes them back.
#[derive(Debug)]
pub(crate) struct PieceLender {
    domain: ProtectionDomain,
    size: usize,
    /// Pieces without any other holder. The piece that was kept last is used next, because its memory
    /// is still in the caches of the processor.
    kept: Mutex<Vec<SharedBuffer>>,
    /// Pieces that were put back while an operation in flight was still using them.
    claimed: Mutex<Vec<SharedBuffer>>,
}

impl PieceLender {
    pub(crate) fn new(domain: ProtectionDomain, size: usize) -> Self {
        let limit = (KEPT_BYTES / size).clamp(4, 4096);
        Self {
            domain,
            size,
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
        if piece.len() != self.size {
            return;
        }
        if piece.is_sole_holder() {
            self.keep(piece);
        } else if !piece.is_unclaimed() {
            self.claimed.lock().push(piece);
        }
        // Otherwise a thread is ending a claim and holds the memory a moment longer. The piece is freed
        // instead of kept.
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
            self.put_back(piece);
        }
    }

    /// Registers more memory, returns one piece of it and keeps the others.
    fn grow(&self) -> Result<SharedBuffer> {
        let mut rest = self
            .domain
            .allocate(self.size.max(CHUNK / self.size * self.size))?;
        while rest.len() > self.size {
            let (piece, tail) = rest.split_at(self.size);
            self.keep(SharedBuffer::new(piece));
            rest = tail;
        }
        Ok(SharedBuffer::new(rest))
    }
}
