#![forbid(unsafe_code)]
//! The interface of the [`Registry`](super::Registry) to processes of the host that access regions and windows directly. The
//! registry publishes its regions and windows to them, and withdraws each before it ends or changes.

use std::ops::Range;

use crate::context::Refusal;
use crate::proto::{AccessFlags, Withdrawal};

/// Description of a region or window, as published to peer processes of the host.
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
    /// Address by which requests name the first byte.
    pub(crate) start: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Virtual address of the first byte in this process.
    pub(crate) address: u64,
    /// Location of the bytes in the arena's file; `None` if the memory is not in the arena.
    pub(crate) place: Option<FilePlace>,
}

/// Location of bytes in the file of an [`Arena`](super::Arena).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    /// Offset of the first byte in the file.
    pub(crate) offset: u64,
    /// Range of the surrounding segment in the file, which is mapped as a whole.
    pub(crate) segment: Range<u64>,
}

/// The peer processes of the host to which regions and windows are published. Each region and window has a slot (record) in the
/// published table.
///
/// Registration, deregistration and window binding use this interface. Copies of data do not.
pub(crate) trait Peers: Send + Sync {
    /// Publishes a region or window in a slot (record of the table), and replaces the record's previous content. Does not wait
    /// for peers that are copying from or to the previous region or window.
    fn publish(&self, slot: u32, region: &Published);

    /// Retracts the region or window in a slot (record of the table). Peers that have found it before may still be copying from
    /// or to its memory.
    fn retract(&self, slot: u32);

    /// Returns whether a slot (record of the table) contains a published region or window.
    fn is_published(&self, slot: u32) -> bool;

    /// Waits until peers have finished all copies from and to memory that was retracted before this call. Fails with
    /// [`Busy`](Refusal::Busy) if a peer was stopped during a copy and does not finish it in time.
    fn wait(&self) -> Result<(), Refusal>;

    /// Begins or continues to withdraw the region or window in a slot (record of the table): retracts it, and does not wait for
    /// peers that are still copying. Returns the progress of the withdrawal.
    fn withdraw(&self, slot: u32) -> Withdrawal;

    /// Removes the pending withdrawal of the region or window in a slot (record of the table). Returns whether there was a
    /// pending withdrawal.
    fn forget_withdrawal(&self, slot: u32) -> bool;
}
