//! Registered memory that is kept for its next use.

use std::alloc::Layout;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use rdma_core::{ProtectionDomain, SharedBuffer, WriteClaim};

use crate::error::Result;

/// The smallest and the largest piece that is kept; a larger one is registered for itself.
const SMALLEST: usize = 64;
const LARGEST: usize = 1 << 20;
/// How much is registered at once, at least.
const CHUNK: usize = 64 << 10;
/// How many bytes of one size are kept at most.
const KEPT_BYTES: usize = 16 << 20;

/// Registered memory of one protection domain, by sizes that are powers of two.
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

    /// Takes memory of a request's own, of at most 64 bytes.
    pub(crate) fn take_header(&self, len: usize) -> Result<WriteClaim> {
        match self.sizes[0].take()?.into_claim(..len) {
            Ok(claim) => Ok(claim),
            Err(_) => unreachable!("memory from the pool is unclaimed"),
        }
    }

    /// Takes back the memory of [`Self::take_header`].
    pub(crate) fn put_back_header(&self, piece: SharedBuffer) {
        // What is more than is kept is freed.
        drop(self.sizes[0].kept.push(piece));
    }

    /// Memory with room for `layout`, which is not of size 0, and who wants it back.
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
        // Pieces are aligned to their size, up to the page that every chunk begins on.
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
    /// Pieces that nothing else holds, not even who is about to end its claim.
    kept: ArrayQueue<SharedBuffer>,
    /// Pieces that came back while an operation in flight still has them.
    claimed: Mutex<Vec<SharedBuffer>>,
}

impl PieceLender {
    pub(crate) fn new(domain: ProtectionDomain, size: usize) -> Self {
        let kept = ArrayQueue::new((KEPT_BYTES / size).clamp(16, 4096));
        Self {
            domain,
            size,
            kept,
            claimed: Mutex::default(),
        }
    }

    pub(crate) fn take(&self) -> Result<SharedBuffer> {
        if let Some(piece) = self.kept.pop() {
            return Ok(piece);
        }
        self.collect();
        match self.kept.pop() {
            Some(piece) => Ok(piece),
            None => self.grow(),
        }
    }

    /// Takes back memory. A part of a piece that was split is freed.
    pub(crate) fn put_back(&self, piece: SharedBuffer) {
        if piece.len() != self.size {
            return;
        }
        if let Err(piece) = self.keep(piece) {
            self.claimed.lock().push(piece);
        }
    }

    /// Keeps a piece for its next use, or gives it back while it is claimed.
    fn keep(&self, piece: SharedBuffer) -> Result<(), SharedBuffer> {
        let sole = piece.into_claim(..)?;
        // Who has just ended a claim holds the memory a moment longer; it is freed then. So is what
        // is more than is kept.
        if let Ok(piece) = sole.into_shared() {
            drop(self.kept.push(piece));
        }
        Ok(())
    }

    /// Takes back the pieces whose operations have completed in the meantime.
    fn collect(&self) {
        let mut claimed = self.claimed.lock();
        for piece in std::mem::take(&mut *claimed) {
            if let Err(piece) = self.keep(piece) {
                claimed.push(piece);
            }
        }
    }

    /// Registers more and returns the first piece of it.
    fn grow(&self) -> Result<SharedBuffer> {
        let mut rest = self
            .domain
            .allocate(self.size.max(CHUNK / self.size * self.size))?;
        while rest.len() > self.size {
            let (piece, tail) = rest.split_at(self.size);
            drop(self.kept.push(SharedBuffer::new(piece)));
            rest = tail;
        }
        Ok(SharedBuffer::new(rest))
    }
}
