//! Device memory (`ibv_alloc_dm`): memory that belongs to the device and not to the program.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;

use crate::context::{HasUsage, Refusal, Usage};

/// A block of device memory (`ibv_dm`), allocated by `ibv_alloc_dm` in the memory of this process.
/// The address of the memory is a multiple of [`ALIGNMENT`](Self::ALIGNMENT), the size of a page.
pub struct DeviceMemory {
    pages: Box<[Page]>,
    length: u64,
    usage: Usage,
}

/// A 4 KiB page of device memory. The content is in an `UnsafeCell`, because the page is written
/// through its address while shared references to it exist.
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "reached by its address")] UnsafeCell<[u8; 4096]>);

// SAFETY: the bytes are only accessed through spans, which access them atomically.
unsafe impl Send for DeviceMemory {}
// SAFETY: the bytes are only accessed through spans, which access them atomically.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Alignment in bytes of the address of each block of device memory: one page.
    pub const ALIGNMENT: u64 = align_of::<Page>() as u64;

    /// Allocates `length` zeroed bytes of device memory. Fails if there is not enough memory.
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

    /// Returns the length of the device memory in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the address of the first byte of the device memory.
    pub(super) fn address(&self) -> usize {
        self.pages.as_ptr().expose_provenance()
    }
}

impl HasUsage for DeviceMemory {
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
