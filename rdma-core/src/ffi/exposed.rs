//! Memory that peers can access through a registration of its own.

use super::region::RegionHandle;
use super::span::Span;
use super::volatile::Volatile;
use crate::error::Error;

/// A span (an owned range of registered memory) with a second registration that grants remote
/// access to the range.
///
/// The registration, and so the remote access at the device, ends before the span is given back.
#[derive(Debug)]
pub(crate) struct Exposed {
    lease: RegionHandle,
    memory: Volatile,
}

impl Exposed {
    /// Combines a span with the registration that grants remote access to exactly its range.
    pub(crate) fn new(lease: RegionHandle, span: Span) -> Self {
        Self {
            lease,
            memory: Volatile::new(span),
        }
    }

    /// Deregisters the memory at the device and returns the span. On failure returns the error and
    /// the memory, which is still exposed.
    pub(crate) fn revoke(mut self) -> Result<Span, (Box<Self>, Error)> {
        match self.lease.end() {
            Ok(()) => Ok(self.memory.into_span()),
            Err(error) => Err((Box::new(self), error)),
        }
    }

    pub(crate) fn memory(&self) -> &Volatile {
        &self.memory
    }

    /// Returns the address of the first byte in requests, both of peers and of this process.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        let start = self.memory.span().start();
        self.lease.request_address(start.as_ptr())
    }

    pub(crate) fn lease(&self) -> &RegionHandle {
        &self.lease
    }
}
