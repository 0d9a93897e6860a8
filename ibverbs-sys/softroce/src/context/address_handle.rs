use std::sync::Arc;

use crate::proto::Path;

use super::ProtectionDomain;

/// Address handle: the path of datagrams to a peer.
#[derive(Debug)]
pub struct AddressHandle {
    path: Path,
    domain: Arc<ProtectionDomain>,
}

impl AddressHandle {
    /// Creates an address handle. The caller must have checked that `path` is valid.
    pub fn new(domain: &Arc<ProtectionDomain>, path: Path) -> Self {
        Self {
            path,
            domain: Arc::clone(domain),
        }
    }

    /// Returns the path to the peer.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the protection domain, which a queue pair that uses the handle must share.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }
}
