//! Memory for which exclusive and shared use is checked at run time.
//!
//! Requests hold claims (rights to read or write) on the memory, so that several requests can use a
//! shared buffer at the same time.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::span::Span;

const WRITER: u32 = u32::MAX;

/// An owned range of registered memory (a span) that either several readers or a single writer can
/// claim, as with a non-blocking read-write lock.
///
/// A claim is a right to read or write the memory. The claim keeps this value alive and can outlive
/// every borrow. A claim that is leaked, or that belongs to a request in flight, keeps the memory
/// claimed, but never leads to a dangling pointer.
pub(crate) struct Shared {
    /// The number of read claims, or `WRITER` if a write claim exists.
    claims: AtomicU32,
    span: UnsafeCell<Span>,
    /// Length of the span in bytes. A copy is needed because the span must not be borrowed while a
    /// write claim exists.
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

    /// Returns the memory. No request can be using the memory, because the caller owns this value.
    pub(crate) fn into_span(self) -> Span {
        self.span.into_inner()
    }

    /// Returns whether `owner` is the only reference to the memory, so that no other code holds a
    /// right to read or write the memory. If so, everything that former holders wrote is visible to
    /// the caller.
    #[inline]
    pub(crate) fn is_sole(owner: &Arc<Self>) -> bool {
        let is_sole = Arc::strong_count(owner) == 1;
        // Pairs with the release of the reference that was dropped last.
        fence(Ordering::Acquire);
        is_sole
    }

    /// Returns whether no claim (right to read or write the memory) exists at this moment.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.claims.load(Ordering::Acquire) == 0
    }

    /// Returns the bytes of the memory for reading; `None` while a write claim (a right to write to
    /// the memory) exists.
    ///
    /// The caller of this method and of the methods below must be a shared buffer, whose reference
    /// to the memory belongs to no claim. A shared buffer creates write claims through `&mut self`,
    /// so no write claim can begin while the bytes are borrowed. Only read-only memory may have
    /// several shared buffers, and these never create write claims.
    #[inline]
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if self.claims.load(Ordering::Acquire) == WRITER {
            return None;
        }
        // SAFETY: nothing writes to the span, and the caller's borrow of the owner prevents write
        // claims while the bytes are borrowed.
        Some(unsafe { (*self.span.get()).bytes() })
    }

    /// Returns the bytes of the memory for writing; `None` while a claim (a right to read or write
    /// the memory) exists. The result borrows `owner` exclusively, so no claim can be created while
    /// the borrow lasts.
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
        self.set_writer().then(|| Writing {
            shared: Arc::clone(self),
        })
    }

    /// Converts a shared buffer's reference to a write claim, the exclusive right to write to the
    /// memory. Returns the reference unchanged if any claim on the memory already exists.
    #[inline]
    pub(crate) fn into_claim(self: Arc<Self>) -> Result<Writing, Arc<Self>> {
        if Self::is_sole(&self) {
            // No other thread can reach the count.
            self.claims.store(WRITER, Ordering::Relaxed);
        } else if !self.set_writer() {
            return Err(self);
        }
        Ok(Writing { shared: self })
    }

    #[inline]
    fn set_writer(&self) -> bool {
        self.claims
            .compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// A claim (right) to read the memory of a [`Shared`]. Dropping the claim releases the memory for
/// writers.
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

/// The exclusive claim (right) to read and write the memory of a [`Shared`]. Dropping the claim
/// releases the memory for other users.
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

    /// Returns all bytes of the shared memory for writing. Does not return the [`Span`], because a
    /// caller with two write claims could then swap the spans of two memories.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the only write claim is held; `&mut self` makes the borrow exclusive.
        unsafe { (*self.shared.span.get()).bytes_mut() }
    }
}

impl Writing {
    /// Releases the claim, and returns the shared memory if this claim has the last reference to
    /// that memory. Otherwise returns the claim.
    #[inline]
    pub(crate) fn into_shared(self) -> Result<Arc<Shared>, Self> {
        // The write claim excludes read claims, so the only other reference can be that of the
        // shared buffer.
        if !Shared::is_sole(&self.shared) {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        this.shared.claims.store(0, Ordering::Release);
        // SAFETY: `this` is never dropped and not used again, so the reference is moved out once.
        Ok(unsafe { ptr::read(&this.shared) })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.shared.claims.store(0, Ordering::Release);
    }
}
