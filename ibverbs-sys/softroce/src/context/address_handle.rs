use std::sync::Arc;

use crate::proto::Path;

use super::ProtectionDomain;

/// An address handle: the way that datagrams take.
#[derive(Debug)]
pub struct AddressHandle {
    path: Path,
    domain: Arc<ProtectionDomain>,
}

impl AddressHandle {
    /// The handle of a path that was checked.
    pub fn new(domain: &Arc<ProtectionDomain>, path: Path) -> Self {
        Self {
            path,
            domain: Arc::clone(domain),
        }
    }

    /// The way.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The protection domain, which a queue pair that sends there has to share.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }
}
