//! Processes whose number of descriptors is limited.

use softroce::path::Way;

use crate::connected;
use crate::peer::Role;

/// Limit of the number of descriptors of this process and of the peers that it starts. The previous
/// limit is set again when this value is dropped.
struct DescriptorLimit(libc::rlimit);

impl DescriptorLimit {
    fn set(limit: u64) -> Self {
        let mut before = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the pointer is valid for writes.
        let outcome = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) };
        assert_eq!(outcome, 0);
        let lower = libc::rlimit {
            rlim_cur: limit.min(before.rlim_max),
            ..before
        };
        // SAFETY: the pointer is valid for reads.
        let outcome = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const lower) };
        assert_eq!(outcome, 0);
        Self(before)
    }
}

impl Drop for DescriptorLimit {
    fn drop(&mut self) {
        // SAFETY: the pointer is valid for reads.
        let outcome = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.0) };
        if outcome != 0 {
            eprintln!("the limit of descriptors could not be set again");
        }
    }
}

pub(crate) fn processes_with_the_usual_limit_of_descriptors_share_memory() {
    // The default of most systems.
    let _limit = DescriptorLimit::set(1024);
    let (node, _peer) = connected(Role::Idle);
    assert_eq!(node.way(), Some(Way::Shared));
}
