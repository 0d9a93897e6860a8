use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{HasUsage, Usage};

/// Number that identifies a protection domain and that no other domain has. A memory key can be
/// used only in the domain in which it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DomainId(u64);

impl DomainId {
    /// Creates an identifier that no other protection domain has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the identifier of the protection domain as an integer. Peer processes read this
    /// integer with each published memory region, and access the region only for queue pairs of the
    /// same domain.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A protection domain (`ibv_pd`), or a parent domain (`ibv_alloc_parent_domain(3)`). A parent
/// domain is made from a protection domain, and has the same identifier.
#[derive(Debug)]
pub struct ProtectionDomain {
    id: DomainId,
    usage: Usage,
    is_parent: bool,
}

impl ProtectionDomain {
    /// Creates a protection domain (`ibv_pd`) with a new identifier.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            id: DomainId::unique(),
            usage: Usage::default(),
            is_parent: false,
        })
    }

    /// Creates a parent domain of the protection domain `domain` (`ibv_alloc_parent_domain(3)`). A
    /// parent domain is another handle by which the program creates objects in `domain`.
    pub fn parent(domain: &Self) -> Arc<Self> {
        Arc::new(Self {
            id: domain.id,
            usage: Usage::default(),
            is_parent: true,
        })
    }

    /// Returns the identifier of the domain, by which the use of memory keys is checked. A parent
    /// domain has the identifier of the protection domain from which it was created.
    pub fn id(&self) -> DomainId {
        self.id
    }

    /// Returns whether this domain was created by [`parent`](Self::parent). No further parent
    /// domain can be created from such a domain.
    pub fn is_parent(&self) -> bool {
        self.is_parent
    }
}

impl HasUsage for ProtectionDomain {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// Thread domain (`ibv_td`): the program promises that only one thread at a time uses the objects
/// in the domain. This device does not make use of the promise.
#[derive(Debug, Default)]
pub struct ThreadDomain {
    usage: Usage,
}

impl ThreadDomain {
    /// Creates a thread domain (`ibv_td`), whose objects are used by one thread at a time.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl HasUsage for ThreadDomain {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}
