//! Memory whose exclusive and shared use is checked at run time.
//!
//! Requests hold claims on the memory, so that a shared buffer can be in several requests at once.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::span::Span;

const WRITER: u32 = u32::MAX;

/// A span (an owned range of registered memory) that several readers or a single writer can claim,
/// like a non-blocking read-write lock.
///
/// A claim keeps this cell alive and can outlive every borrow. A claim that is leaked, or held by
/// an in-flight slot, keeps the memory claimed; it never leaves a dangling pointer.
pub(crate) struct Shared {
    /// The number of read claims, or `WRITER`.
    claims: AtomicU32,
    span: UnsafeCell<Span>,
    /// Length of the span in bytes; a copy, as the span must not be borrowed under a write claim.
    len: usize,
}

// SAFETY: the span's bytes are reached only through claims, and `claims` allows either one writer
// or any number of readers.
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

    /// Returns the span. No claim of it exists, because the function takes the cell by value.
    pub(crate) fn into_span(self) -> Span {
        self.span.into_inner()
    }

    /// Returns whether no claim is held at this moment.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.claims.load(Ordering::Acquire) == 0
    }

    /// Returns the bytes, or `None` if a write claim is held.
    ///
    /// This function and the functions below are called only by the owner of the one [`Arc`] that
    /// belongs to no claim. The owner makes write claims through `&mut`, so a write claim and this
    /// borrow exclude each other.
    #[inline]
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if self.claims.load(Ordering::Acquire) == WRITER {
            return None;
        }
        // SAFETY: nothing writes to the span, and the caller's borrow of the owner prevents write
        // claims while the bytes are borrowed.
        Some(unsafe { (*self.span.get()).bytes() })
    }

    /// Returns the bytes for writing, or `None` if a claim is held. The result exclusively borrows
    /// the owner, so no claim can be made meanwhile.
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

/// A read claim on a [`Shared`]; dropping it releases the claim.
#[derive(Debug)]
pub(crate) struct Reading {
    shared: Arc<Shared>,
}

impl Reading {
    #[inline]
    pub(crate) fn span(&self) -> &Span {
        // SAFETY: a read claim is held, so nothing writes to or mutably borrows the span.
        unsafe { &*self.shared.span.get() }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.shared.claims.fetch_sub(1, Ordering::Release);
    }
}

/// The write claim on a [`Shared`], which also allows reading; dropping it releases the claim.
#[derive(Debug)]
pub(crate) struct Writing {
    shared: Arc<Shared>,
}

impl Writing {
    #[inline]
    pub(crate) fn span(&self) -> &Span {
        // SAFETY: the only write claim is held; `&self` allows shared borrows only.
        unsafe { &*self.shared.span.get() }
    }

    /// Returns the bytes for writing. Does not return the span: a caller could exchange two spans,
    /// and each claim would then guard the wrong memory.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the only write claim is held; `&mut self` makes the borrow exclusive.
        unsafe { (*self.shared.span.get()).bytes_mut() }
    }
}

impl Writing {
    /// Releases the claim and returns the shared memory, if the claim holds the last reference to
    /// it. Otherwise returns the claim.
    pub(crate) fn into_shared(self) -> Result<Arc<Shared>, Self> {
        // The write claim excludes read claims, so the only other reference can be the owner's.
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
