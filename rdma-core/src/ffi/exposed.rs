//! Memory that peers can access through a separate registration.

use super::region::RegionHandle;
use super::span::Span;
use super::volatile::Volatile;
use crate::error::Error;

/// An owned range of registered memory (a span), with a second registration of this range that
/// grants peers access.
///
/// The second registration ends before [`Self::revoke`] returns the span. From then on the device
/// refuses accesses of peers.
#[derive(Debug)]
pub(crate) struct Exposed {
    lease: RegionHandle,
    memory: Volatile,
}

impl Exposed {
    /// Combines a span (range of registered memory) with `lease`, the registration that grants
    /// peers access to exactly this range.
    pub(crate) fn new(lease: RegionHandle, span: Span) -> Self {
        Self {
            lease,
            memory: Volatile::new(span),
        }
    }

    /// Ends the registration that grants peers access, and returns the span. On failure returns the
    /// error and this value, whose memory peers can still access.
    pub(crate) fn revoke(mut self) -> Result<Span, (Box<Self>, Error)> {
        match self.lease.end() {
            Ok(()) => Ok(self.memory.into_span()),
            Err(error) => Err((Box::new(self), error)),
        }
    }

    pub(crate) fn memory(&self) -> &Volatile {
        &self.memory
    }

    /// Returns the range of registered memory. No code may borrow the bytes of the memory, because
    /// peers can access the bytes at any time.
    pub(crate) fn span(&self) -> &Span {
        self.memory.span()
    }

    /// Returns the address that requests use for the first byte of the memory.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        let start = self.memory.span().start();
        self.lease.request_address(start.as_ptr())
    }

    pub(crate) fn lease(&self) -> &RegionHandle {
        &self.lease
    }
}
