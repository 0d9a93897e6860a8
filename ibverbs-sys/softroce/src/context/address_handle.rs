use std::sync::Arc;

use crate::proto::Path;

use super::ProtectionDomain;

/// An address handle (`ibv_ah`): the path that datagrams take to a peer.
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

    /// Returns the protection domain of the address handle. Only queue pairs of the same domain may
    /// use the handle.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }
}
