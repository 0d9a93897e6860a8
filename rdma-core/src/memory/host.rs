//! Memory before its registration.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::error::{Error, Result};
use crate::ffi::{Allocation, PAGE};
use crate::protection_domain::ProtectionDomain;

/// The size of a huge page, where the program names none: that of x86-64, and the usual one of aarch64.
const HUGE_PAGE: usize = 2 << 20;

/// Memory of this process that can be registered: aligned, in huge pages, of a mapping.
///
/// The memory derefs to `[u8]`. [`ProtectionDomain::register`](crate::ProtectionDomain::register)
/// makes a [`Buffer`](super::Buffer) of it, and [`Buffer::into_owner`](super::Buffer::into_owner)
/// gives it back. `HostMemory` is `Send` and `Sync`, as a `Box<[u8]>` is.
///
/// ```
/// use rdma_core::{Context, HostMemory, HugePages};
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

/// Which pages memory lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pages {
    /// The system's ordinary ones, the device's own, or whatever a mapping of the program's has.
    Ordinary,
    /// Ordinary ones that the kernel may put together, which it was asked to do and promises nothing
    /// about (`MADV_HUGEPAGE`).
    Transparent,
    /// Huge ones of this many bytes, of the pool that the administrator reserved (`MAP_HUGETLB`).
    Huge(usize),
}

/// Choice of huge pages for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum HugePages {
    /// No.
    #[default]
    No,
    /// If there are any: of the reserved pool, else transparent ones, else ordinary ones.
    /// [`HostMemory::pages`] and [`HostMemory::fallback`] tell which, and why.
    Prefer,
    /// Of the reserved pool, or not at all.
    Require,
}

/// Settings of new memory: see [`HostMemory::builder`].
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
    /// Allocates `len` zeroed bytes, page-aligned.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes or more than there can be.
    pub fn zeroed(len: usize) -> Result<Self> {
        Self::builder(len).build()
    }

    /// Settings of `len` bytes of new memory.
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

    /// Returns the kind of pages that the memory lies in.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Returns the reason why the memory does not lie in huge pages of the reserved pool, if it was
    /// to.
    pub fn fallback(&self) -> Option<&Error> {
        self.fallback.as_ref()
    }
}

impl HostMemoryBuilder {
    /// Aligns it to this many bytes, a power of two, and at least to a page.
    pub fn align(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// Takes the memory from the device of this domain, if the device has memory of its own choice
    /// for regions, such as memory that other processes of the host reach faster. Without such
    /// memory, or for another library's device, ordinary memory takes its place. A wish for huge
    /// pages goes first.
    ///
    /// The memory can be registered with other domains and devices all the same. It keeps the
    /// domain alive.
    #[doc(alias = "ibv_alloc_buf")]
    pub fn domain(mut self, domain: &ProtectionDomain) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// Sets whether to use huge pages; by default not.
    pub fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Sets the size of huge pages; 2 MiB by default. The machine decides which sizes there are.
    pub fn huge_page_size(mut self, size: usize) -> Self {
        self.huge_page_size = size;
        self
    }

    /// Has the kernel bring all pages in now, and not when each is first used.
    ///
    /// Registering does the same, but for an [on-demand](super::AccessFlags::ON_DEMAND) region.
    pub fn prefault(mut self) -> Self {
        self.prefault = true;
        self
    }

    /// Allocates the memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes, an alignment or huge page size that is no power of two,
    /// or a huge page size of no huge page; what the system says, most often that there are no huge
    /// pages where they are required.
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
            // The kernel would take the size of its choice, and unmap no part of such a page.
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
    /// Allocates memory of the device if it has any, otherwise of the allocator.
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
