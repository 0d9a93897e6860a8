//! Memory that peers can reach by a registration of its own.

use super::region::RegionHandle;
use super::span::Span;
use super::volatile::Volatile;
use crate::error::Error;

/// A span with a registration of its own that grants remote access.
///
/// The registration is dropped, and so the grant ended at the device, before the span is given back.
#[derive(Debug)]
pub(crate) struct Exposed {
    lease: RegionHandle,
    memory: Volatile,
}

impl Exposed {
    /// Pairs a span with a lease that covers exactly its range of the same memory.
    pub(crate) fn new(lease: RegionHandle, span: Span) -> Self {
        Self {
            lease,
            memory: Volatile::new(span),
        }
    }

    /// Ends the grant at the device; the span. The error comes with what is still exposed.
    pub(crate) fn revoke(mut self) -> Result<Span, (Box<Self>, Error)> {
        match self.lease.end() {
            Ok(()) => Ok(self.memory.into_span()),
            Err(error) => Err((Box::new(self), error)),
        }
    }

    pub(crate) fn memory(&self) -> &Volatile {
        &self.memory
    }

    /// What requests, a peer's and this side's, call the first byte.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        let start = self.memory.span().start();
        self.lease.request_address(start.as_ptr())
    }

    pub(crate) fn lease(&self) -> &RegionHandle {
        &self.lease
    }
}
