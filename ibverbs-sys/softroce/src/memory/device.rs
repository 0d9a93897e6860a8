//! Memory of the device itself.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;

use crate::context::{Refusal, Shared, Usage};

/// Memory of the device: `ibv_dm`. It begins at a multiple of [`ALIGNMENT`](Self::ALIGNMENT).
pub struct DeviceMemory {
    pages: Box<[Page]>,
    length: u64,
    usage: Usage,
}

/// In a cell, since it is reached by its address.
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "reached by its address")] UnsafeCell<[u8; 4096]>);

// SAFETY: the bytes are reached through spans alone, whose accesses are atomic.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// What its address is a multiple of.
    pub const ALIGNMENT: u64 = align_of::<Page>() as u64;

    /// So many bytes, all zero.
    pub fn new(length: u64) -> Result<Arc<Self>, Refusal> {
        let count = length.div_ceil(size_of::<Page>() as u64);
        let count = usize::try_from(count).map_err(|_| Refusal::Exhausted)?;
        let mut pages = Vec::new();
        pages
            .try_reserve_exact(count)
            .map_err(|_| Refusal::Exhausted)?;
        pages.resize_with(count, || Page(UnsafeCell::new([0; 4096])));
        Ok(Arc::new(Self {
            pages: pages.into_boxed_slice(),
            length,
            usage: Usage::default(),
        }))
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its first byte.
    pub(super) fn address(&self) -> usize {
        self.pages.as_ptr().expose_provenance()
    }
}

impl Shared for DeviceMemory {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}
