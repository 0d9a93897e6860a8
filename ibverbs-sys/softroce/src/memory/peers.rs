#![forbid(unsafe_code)]
//! The interface of the [`Registry`](super::Registry) to processes of the host that access regions and windows directly. The
//! registry publishes its regions and windows to them, and withdraws each before it ends or changes.

use std::ops::Range;

use crate::context::Refusal;
use crate::proto::{AccessFlags, Withdrawal};

/// Description of a region or window for peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Memory key.
    pub(crate) key: u32,
    /// Number of the protection domain.
    pub(crate) domain: u64,
    /// The only queue pair through which the memory is accessible; `None` if all queue pairs of the domain are permitted.
    pub(crate) queue_pair: Option<u32>,
    /// Permitted remote access.
    pub(crate) access: AccessFlags,
    /// Address of the first byte in requests.
    pub(crate) start: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Address of the first byte in this process.
    pub(crate) address: u64,
    /// Location in the arena's file; `None` if the memory is not in the arena.
    pub(crate) place: Option<FilePlace>,
}

/// Location of bytes in an arena's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    /// Offset of the first byte.
    pub(crate) offset: u64,
    /// The part of the file that is mapped as a whole.
    pub(crate) segment: Range<u64>,
}

/// Processes of the host to which regions and windows are published, each in its slot of the table of regions.
///
/// Registration, deregistration and window binding use this interface. Data copies do not.
pub(crate) trait Peers: Send + Sync {
    /// Publishes a region or window in place of the slot's previous content. Does not wait for copies that use the previous
    /// content.
    fn publish(&self, slot: u32, region: &Published);

    /// Retracts the content of a slot. Copies of peers that began before may still be in progress.
    fn retract(&self, slot: u32);

    /// Returns whether a slot is published.
    fn is_published(&self, slot: u32) -> bool;

    /// Waits until all copies of peers have ended that may access memory retracted before this call. Fails with
    /// [`Busy`](Refusal::Busy) if a copy does not end because the peer was stopped during the copy.
    fn wait(&self) -> Result<(), Refusal>;

    /// Begins or continues to withdraw a slot: retracts the slot, and does not wait for the copies. Returns the progress of the
    /// withdrawal.
    fn withdraw(&self, slot: u32) -> Withdrawal;

    /// Removes the pending withdrawal of a slot. Returns whether there was one.
    fn forget_withdrawal(&self, slot: u32) -> bool;
}
