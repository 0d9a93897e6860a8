use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Shared, Usage};

/// Unique number of a protection domain. A local or remote key is valid only within its own domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DomainId(u64);

impl DomainId {
    /// Creates an identity that no other domain has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the identity as a number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A protection domain, or a parent domain (`ibv_alloc_parent_domain(3)`), which has the identity of another protection
/// domain.
#[derive(Debug)]
pub struct ProtectionDomain {
    id: DomainId,
    usage: Usage,
    is_parent: bool,
}

impl ProtectionDomain {
    /// Creates a protection domain.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            id: DomainId::unique(),
            usage: Usage::default(),
            is_parent: false,
        })
    }

    /// Creates a parent domain. Objects that are created in the parent domain belong to `domain`
    /// (`ibv_alloc_parent_domain(3)`).
    pub fn parent(domain: &Self) -> Arc<Self> {
        Arc::new(Self {
            id: domain.id,
            usage: Usage::default(),
            is_parent: true,
        })
    }

    /// Returns the identity that memory keys are checked against. For a parent domain, this is the identity of the protection
    /// domain that the parent domain stands for.
    pub fn id(&self) -> DomainId {
        self.id
    }

    /// Returns whether this is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.is_parent
    }
}

impl Shared for ProtectionDomain {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// Thread domain: a program promises by it that only one thread at a time uses the objects in the domain. This device
/// makes no use of the promise.
#[derive(Debug, Default)]
pub struct ThreadDomain {
    usage: Usage,
}

impl ThreadDomain {
    /// Creates a thread domain.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl Shared for ThreadDomain {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}
