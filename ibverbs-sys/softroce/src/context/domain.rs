use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Context, Shared, Usage};

/// Tells protection domains apart: a key works only within its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DomainId(u64);

impl DomainId {
    /// One that no other domain has.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A protection domain, or a parent domain: one that stands for another.
#[derive(Debug)]
pub struct ProtectionDomain {
    id: DomainId,
    context: Arc<Context>,
    usage: Usage,
    is_parent: bool,
}

impl ProtectionDomain {
    /// A protection domain of its own.
    pub fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            id: DomainId::unique(),
            context: Arc::clone(context),
            usage: Usage::default(),
            is_parent: false,
        })
    }

    /// A parent domain: what is made in it is as if made in `domain` (`ibv_alloc_parent_domain(3)`).
    pub fn parent(domain: &Self) -> Arc<Self> {
        Arc::new(Self {
            id: domain.id,
            context: Arc::clone(&domain.context),
            usage: Usage::default(),
            is_parent: true,
        })
    }

    /// What keys are checked against: of a parent domain, that of the domain it stands for.
    pub fn id(&self) -> DomainId {
        self.id
    }

    /// The open device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether it is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.is_parent
    }
}

impl Shared for ProtectionDomain {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

/// A thread domain: a promise of the program about its threads, which this device does not need.
#[derive(Debug, Default)]
pub struct ThreadDomain {
    usage: Usage,
}

impl ThreadDomain {
    /// A thread domain.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }
}

impl Shared for ThreadDomain {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}
