//! Memory that the program allocates in order to register it later.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::error::{Error, Result};
use crate::ffi::{Allocation, PAGE};
use crate::protection_domain::ProtectionDomain;

/// The default size of a huge page in bytes: 2 MiB, the smallest size on x86-64 and the usual size
/// on aarch64.
const HUGE_PAGE: usize = 2 << 20;

/// Memory of this process that can be registered. The memory can have a chosen alignment, can be in
/// huge pages, or can be a mapping that the program created.
///
/// The memory dereferences to `[u8]`.
/// [`ProtectionDomain::register`](crate::ProtectionDomain::register) converts it to a
/// [`Buffer`](super::Buffer), and [`Buffer::into_owner`](super::Buffer::into_owner) gives it back.
/// `HostMemory` is `Send` and `Sync`, like a `Box<[u8]>`.
///
/// ```
/// use rdma_core::Context;
/// use rdma_core::memory::{HostMemory, HugePages};
///
/// let memory = HostMemory::builder(1 << 20)
///     .huge_pages(HugePages::Prefer)
///     .prefault()
///     .build()?;
/// if let Some(reason) = memory.fallback() {
///     println!("not in huge pages: {reason}");
/// }
/// let domain = Context::open_default()?.protection_domain()?;
/// let buffer = domain.register(memory)?;
/// assert_eq!(buffer.len(), 1 << 20);
/// # Ok::<(), rdma_core::Error>(())
/// ```
pub struct HostMemory {
    allocation: Allocation,
    pages: Pages,
    fallback: Option<Error>,
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory")
            .field("allocation", &self.allocation)
            .field("pages", &self.pages)
            .field("fallback", &self.fallback)
            .finish()
    }
}

/// The kind of memory pages in which the bytes of a [`HostMemory`] lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pages {
    /// Ordinary pages of the system, memory of the device's allocator, or the pages of the
    /// program's own mapping.
    Ordinary,
    /// Ordinary pages, for which this crate has asked the kernel to use transparent huge pages
    /// (`MADV_HUGEPAGE`). The kernel may decline.
    Transparent,
    /// Huge pages of this size in bytes, from the pool that the administrator reserved
    /// (`MAP_HUGETLB`).
    Huge(usize),
}

/// The setting of [`HostMemoryBuilder::huge_pages`]: whether new memory is allocated in huge pages.
/// A device needs fewer address-translation entries for huge pages than for ordinary pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HugePages {
    /// Ordinary pages only.
    #[default]
    No,
    /// Huge pages of the pool that the administrator reserved, if available. Otherwise transparent
    /// huge pages, or else ordinary pages. [`HostMemory::pages`] returns the kind of pages in use.
    /// [`HostMemory::fallback`] returns the reason why reserved huge pages are not used.
    Prefer,
    /// Huge pages of the pool that the administrator reserved. The allocation fails if such pages
    /// are not available.
    Require,
}

/// A builder for [`HostMemory`], from [`HostMemory::builder`].
#[derive(Debug, Clone)]
#[must_use = "nothing is allocated until it is built"]
pub struct HostMemoryBuilder {
    len: usize,
    align: usize,
    huge_pages: HugePages,
    huge_page_size: usize,
    prefault: bool,
    domain: Option<ProtectionDomain>,
}

impl HostMemory {
    /// Allocates `len` zeroed, page-aligned bytes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes or for a size that cannot be allocated.
    pub fn zeroed(len: usize) -> Result<Self> {
        Self::builder(len).build()
    }

    /// Returns a builder that allocates `len` bytes of new memory.
    pub fn builder(len: usize) -> HostMemoryBuilder {
        HostMemoryBuilder {
            len,
            align: 1,
            huge_pages: HugePages::No,
            huge_page_size: HUGE_PAGE,
            prefault: false,
            domain: None,
        }
    }

    pub(crate) fn of(allocation: Allocation) -> Self {
        Self {
            allocation,
            pages: Pages::Ordinary,
            fallback: None,
        }
    }

    pub(crate) fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// Returns the kind of pages in which the bytes of this memory lie.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Returns the reason why this memory is not in huge pages of the reserved pool, although the
    /// program requested huge pages. Returns `None` if the memory is in such pages, or if the
    /// program did not request huge pages.
    pub fn fallback(&self) -> Option<&Error> {
        self.fallback.as_ref()
    }
}

impl HostMemoryBuilder {
    /// Sets the alignment in bytes, a power of two. The memory is aligned at least to a page.
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// Makes the builder use the memory allocator of the device of `domain`. Other processes of the
    /// host may be able to access such memory faster. If the device has no allocator or belongs to
    /// another verbs library, the builder allocates ordinary memory. A request for huge pages takes
    /// precedence over the device's allocator.
    ///
    /// The memory can still be registered with other domains and devices. The memory keeps `domain`
    /// alive.
    #[doc(alias = "ibv_alloc_buf")]
    pub fn domain(mut self, domain: &ProtectionDomain) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// Sets whether the memory is allocated in huge pages. The default is [`HugePages::No`].
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Sets the size of a huge page in bytes. The default is 2 MiB. The available sizes depend on
    /// the machine.
    pub fn huge_page_size(mut self, size: usize) -> Self {
        self.huge_page_size = size;
        self
    }

    /// Makes the builder fault in all pages during the allocation, instead of at their first use.
    ///
    /// Registering the memory faults in all pages as well, except for an
    /// [on-demand](super::AccessFlags::ON_DEMAND) region.
    pub fn prefault(mut self) -> Self {
        self.prefault = true;
        self
    }

    /// Allocates the memory with the settings of this builder.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes, for an alignment or huge page size that is not a
    /// power of two, or for a huge page size that is not larger than a page. Also returns the error
    /// of the system's allocation functions, most often because huge pages are required but not
    /// available.
    pub fn build(self) -> Result<HostMemory> {
        for (what, size) in [
            ("alignment", self.align),
            ("huge page size", self.huge_page_size),
        ] {
            if !size.is_power_of_two() {
                return Err(Error::invalid(what, format!("{size} is no power of two")));
            }
        }
        if self.huge_pages != HugePages::No && self.huge_page_size <= PAGE {
            // The kernel would use huge pages of a size other than the requested one, and could not
            // unmap a part of such a page.
            let reason = format!("{} is that of no huge page", self.huge_page_size);
            return Err(Error::invalid("huge page size", reason));
        }
        let mut memory = self.allocate()?;
        if let Some(reason) = &memory.fallback {
            tracing::info!(bytes = self.len, pages = ?memory.pages, %reason, "no huge pages");
        }
        if self.prefault {
            memory.allocation.touch();
        }
        Ok(memory)
    }

    fn allocate(&self) -> Result<HostMemory> {
        let (len, page) = (self.len, self.huge_page_size);
        if self.huge_pages == HugePages::No {
            return self.ordinary().map(HostMemory::of);
        }
        let made = |allocation, pages, fallback| HostMemory {
            allocation,
            pages,
            fallback,
        };
        match Allocation::huge(len, self.align, page) {
            Ok(memory) => Ok(made(memory, Pages::Huge(page), None)),
            Err(error) if self.huge_pages == HugePages::Require => Err(error),
            Err(error @ Error::InvalidArgument { .. }) => Err(error),
            Err(reason) => match Allocation::transparent(len, self.align, page) {
                Ok(memory) => Ok(made(memory, Pages::Transparent, Some(reason))),
                Err(_) => Ok(made(self.ordinary()?, Pages::Ordinary, Some(reason))),
            },
        }
    }
}

impl HostMemoryBuilder {
    /// Allocates the memory without huge pages. Uses the device's allocator if a protection domain
    /// was set and that allocation succeeds. Otherwise uses the program's heap.
    fn ordinary(&self) -> Result<Allocation> {
        let (len, align) = (self.len, self.align);
        if let Some(domain) = &self.domain {
            match Allocation::of_device(domain.handle(), len, align) {
                Ok(memory) => return Ok(memory),
                Err(error) => tracing::debug!(%error, "memory of the allocator in its place"),
            }
        }
        Allocation::zeroed(len, align)
    }
}

impl Deref for HostMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.allocation.bytes()
    }
}

impl DerefMut for HostMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.allocation.bytes_mut()
    }
}
