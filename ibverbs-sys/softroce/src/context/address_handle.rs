use crate::proto::Path;

use super::{Held, ProtectionDomain};

/// An address handle: the way that datagrams take.
#[derive(Debug)]
pub struct AddressHandle {
    path: Path,
    domain: Held<ProtectionDomain>,
}

impl AddressHandle {
    /// The handle of a path that was checked.
    pub fn new(domain: Held<ProtectionDomain>, path: Path) -> Self {
        Self { path, domain }
    }

    /// The way.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The protection domain, which a queue pair that sends there has to share.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }
}
