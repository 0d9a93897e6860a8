//! Page-aligned, zeroed memory whose address never changes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

use crate::error::{Errno, Error, Result};

const PAGE: usize = 4096;

/// Memory that devices may access. It gives out its address only; who may form references into it
/// is decided by the types built on it ([`super::Span`], [`super::Exposed`]).
pub(crate) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the allocation is plain memory; access to it is governed by the types built on it.
unsafe impl Send for Allocation {}
// SAFETY: as above: a shared `Allocation` gives out an address and no access.
unsafe impl Sync for Allocation {}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish()
    }
}

impl Allocation {
    /// `len` zeroed bytes, aligned to `align` and at least to a page.
    pub(crate) fn zeroed(len: usize, align: usize) -> Result<Self> {
        let what = "memory region";
        if len == 0 {
            return Err(Error::invalid(
                what,
                "a region of 0 bytes cannot be registered",
            ));
        }
        let layout = Layout::from_size_align(len, align.max(PAGE)).map_err(|_| {
            Error::invalid(what, format!("no memory of {len} bytes aligned to {align}"))
        })?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Ok(Self { start, layout, len }),
            None => {
                let object = format!("a memory region of {len} bytes");
                Err(Error::verb("alloc", object, Errno(libc::ENOMEM)))
            }
        }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with `layout` and is freed once, here. Every registration
        // of this memory holds an `Arc` of it and is gone, so no device refers to it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
