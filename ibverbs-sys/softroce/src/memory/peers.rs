#![forbid(unsafe_code)]
//! The interface of the [`Registry`](super::Registry) to processes of the host that access memory
//! regions and windows directly. The registry publishes each region and window to these processes,
//! and withdraws it before it changes or is removed.

use std::ops::Range;

use crate::context::Refusal;
use crate::proto::{AccessFlags, Withdrawal};

/// Description of a region or window that is published to peer processes of the host. A peer needs
/// only this description to access the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Memory key by which requests of peer processes name the region or window.
    pub(crate) key: u32,
    /// Number of the protection domain to which the region or window belongs.
    pub(crate) domain: u64,
    /// Number of the only queue pair through which the memory is accessible; `None` if all queue
    /// pairs of the domain may access the memory.
    pub(crate) queue_pair: Option<u32>,
    /// Remote access rights that the region or window grants.
    pub(crate) access: AccessFlags,
    /// Address by which requests name the first byte of the region or window.
    pub(crate) start: u64,
    /// Length of the region or window in bytes.
    pub(crate) length: u64,
    /// Virtual address of the first byte in this process, from which a peer can copy by a system
    /// call.
    pub(crate) address: u64,
    /// Location of the bytes in the arena's file; `None` if the memory is not in the arena.
    pub(crate) place: Option<FilePlace>,
}

/// Location of bytes in the file of an [`Arena`](super::Arena), which peers can map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    /// Offset of the first byte in the file.
    pub(crate) offset: u64,
    /// Range in the file of the segment that contains the bytes. A peer maps the segment as a
    /// whole.
    pub(crate) segment: Range<u64>,
}

/// Table of the memory regions and windows that peer processes of the host can find and access. The
/// table has a record (slot) for each region and window. Registration, deregistration and window
/// binding change the table.
pub(crate) trait Peers: Send + Sync {
    /// Makes a memory region or window accessible to peer processes: writes the record `slot` of
    /// the table that the peers read. Peers that have read the previous content of the record may
    /// still be copying from or to the memory of the previous region or window.
    fn publish(&self, slot: u32, region: &Published);

    /// Removes the memory region or window in the record `slot` from the published table. Peer
    /// processes that have read the record before may still be copying from or to the memory.
    fn retract(&self, slot: u32);

    /// Returns whether peer processes can access the memory region or window in the record `slot`
    /// of the table that they read.
    fn is_published(&self, slot: u32) -> bool;

    /// Waits until peer processes have ended their copies from and to memory that was removed from
    /// the published table before this call. Fails with [`Busy`](Refusal::Busy) if a peer process
    /// was stopped during a copy and does not end the copy in time.
    fn wait(&self) -> Result<(), Refusal>;

    /// Removes the memory region or window in the record `slot` from the published table, so that
    /// peer processes stop using the memory. Does not wait until peers have ended their copies. If
    /// the returned [`Withdrawal`] is pending, the caller must call this function again later. If
    /// the withdrawal is refused, the record stays removed until the caller publishes the record
    /// again.
    fn withdraw(&self, slot: u32) -> Withdrawal;

    /// Cancels a pending [`withdraw`](Self::withdraw) of the memory region or window in the record
    /// `slot` of the published table. Returns `false` if no withdrawal was pending.
    fn cancel_withdrawal(&self, slot: u32) -> bool;
}
