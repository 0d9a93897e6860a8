//! Memory whose exclusive and shared use is decided at run time.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::span::Span;

const WRITER: u32 = u32::MAX;

/// A span that is read by many or written by one, whichever claims it first.
///
/// Claims keep the cell alive and can outlive every borrow: one that is forgotten, or parked in an
/// in-flight slot, keeps the memory claimed and never makes it dangle.
pub(crate) struct Shared {
    /// The number of read claims, or `WRITER`.
    claims: AtomicU32,
    span: UnsafeCell<Span>,
    /// What the span's place is; copied out, as a claim may be writing to its bytes.
    len: usize,
}

// SAFETY: the span's bytes are reached through claims only, of which there is one writer or there
// are only readers, as `claims` decides.
unsafe impl Sync for Shared {}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claims = match self.claims.load(Ordering::Relaxed) {
            WRITER => "one writer".to_owned(),
            readers => format!("{readers} readers"),
        };
        f.debug_struct("Shared")
            .field("len", &self.len)
            .field("claims", &claims)
            .finish()
    }
}

impl Shared {
    pub(crate) fn new(span: Span) -> Self {
        Self {
            claims: AtomicU32::new(0),
            len: span.len(),
            span: UnsafeCell::new(span),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The span, from the last owner.
    pub(crate) fn into_span(self) -> Span {
        self.span.into_inner()
    }

    /// Whether no claim is held at this moment.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.claims.load(Ordering::Acquire) == 0
    }

    /// The bytes, if no write claim is held.
    ///
    /// Only the owner of the one [`Arc`] that is in no claim calls this and the functions below,
    /// and through `&mut` those that write, so that a write claim and this borrow exclude each other.
    #[inline]
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if self.claims.load(Ordering::Acquire) == WRITER {
            return None;
        }
        // SAFETY: nobody writes to the span, and the caller's borrow of the owner keeps write
        // claims from being made while the bytes are borrowed.
        Some(unsafe { (*self.span.get()).bytes() })
    }

    /// The bytes for writing, if no claim is held. The owner is exclusively borrowed meanwhile, so
    /// that no claim is made.
    #[inline]
    pub(crate) fn bytes_mut(owner: &mut Arc<Self>) -> Option<&mut [u8]> {
        if owner.claims.load(Ordering::Acquire) != 0 {
            return None;
        }
        // SAFETY: no claim is held, and none can be made while the owner is exclusively borrowed.
        Some(unsafe { (*owner.span.get()).bytes_mut() })
    }

    #[inline]
    pub(crate) fn claim_read(self: &Arc<Self>) -> Option<Reading> {
        let add = |claims: u32| (claims < WRITER - 1).then(|| claims + 1);
        self.claims
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, add)
            .ok()?;
        Some(Reading {
            shared: Arc::clone(self),
        })
    }

    #[inline]
    pub(crate) fn claim_write(self: &Arc<Self>) -> Option<Writing> {
        self.claims
            .compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        Some(Writing {
            shared: Arc::clone(self),
        })
    }
}

/// The right to read a [`Shared`].
#[derive(Debug)]
pub(crate) struct Reading {
    shared: Arc<Shared>,
}

impl Reading {
    #[inline]
    pub(crate) fn span(&self) -> &Span {
        // SAFETY: a read claim is held, so nobody writes to or mutably borrows the span.
        unsafe { &*self.shared.span.get() }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.shared.claims.fetch_sub(1, Ordering::Release);
    }
}

/// The right to read and write a [`Shared`].
#[derive(Debug)]
pub(crate) struct Writing {
    shared: Arc<Shared>,
}

impl Writing {
    #[inline]
    pub(crate) fn span(&self) -> &Span {
        // SAFETY: the one write claim is held; `&self` allows shared borrows only.
        unsafe { &*self.shared.span.get() }
    }

    /// The bytes and not the span: exchanging two spans would part claims from their memory.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the one write claim is held; `&mut self` makes the borrow exclusive.
        unsafe { (*self.shared.span.get()).bytes_mut() }
    }
}

impl Writing {
    /// The cell, unclaimed, if this claim is all that holds it.
    pub(crate) fn into_shared(self) -> Result<Arc<Shared>, Self> {
        // The write claim excludes readers, so the only other holder there can be is the owner.
        if Arc::strong_count(&self.shared) == 1 {
            Ok(Arc::clone(&self.shared))
        } else {
            Err(self)
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.shared.claims.store(0, Ordering::Release);
    }
}
