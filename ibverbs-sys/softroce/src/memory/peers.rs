#![forbid(unsafe_code)]
//! Processes of the host that reach regions and windows by themselves, as the [`Registry`](super::Registry) needs them:
//! the registry publishes its regions and windows to them, and withdraws each before it ends or changes.

use std::ops::Range;

use crate::context::Refusal;
use crate::proto::{AccessFlags, Withdrawal};

/// Description of a region or window for peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// The key.
    pub(crate) key: u32,
    /// The protection domain's number.
    pub(crate) domain: u64,
    /// The only queue pair that serves it.
    pub(crate) queue_pair: Option<u32>,
    /// Rights of peers.
    pub(crate) access: AccessFlags,
    /// The address of the first byte in requests.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// The address of the first byte in the process.
    pub(crate) address: u64,
    /// The place in the arena's file.
    pub(crate) place: Option<FilePlace>,
}

/// Place of bytes in an arena's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    /// Offset of the first byte.
    pub(crate) offset: u64,
    /// The part of the file that is mapped at once.
    pub(crate) segment: Range<u64>,
}

/// Processes of the host to which regions and windows are published, each in its slot.
///
/// Regions come and go, and windows are bound, through this interface. Copies from and to memory do not pass it.
pub(crate) trait Peers: Send + Sync {
    /// Publishes a region or window in the place of the slot's last one. Does not wait for copies that began by the last one.
    fn publish(&self, slot: u32, region: &Published);

    /// Retracts a slot. Copies of peers that began before may still be going on.
    fn retract(&self, slot: u32);

    /// Returns whether a slot is published.
    fn is_published(&self, slot: u32) -> bool;

    /// Waits until all copies of peers have ended that may be from or to memory that was retracted before.
    /// [`Busy`](Refusal::Busy): one does not end, since the peer was stopped during the copy.
    fn wait(&self) -> Result<(), Refusal>;

    /// Begins to withdraw a slot, or continues: retracts the slot, and does not wait for the copies. Returns how far the
    /// withdrawal is.
    fn withdraw(&self, slot: u32) -> Withdrawal;

    /// Forgets the withdrawal of a slot. Returns whether there was one.
    fn forget_withdrawal(&self, slot: u32) -> bool;
}
