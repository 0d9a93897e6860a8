#![forbid(unsafe_code)]

use crate::context::DomainId;
use crate::proto::AccessFlags;

/// The type of a memory window (IBTA 10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Bound by a verb of its own, again and again; all queue pairs of the protection domain serve it.
    Type1,
    /// Type 2B: bound by a send request with a key of the caller's choice, from then on served by that queue pair
    /// alone, and free for another binding when it was invalidated.
    Type2,
}

/// A memory window.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) kind: WindowKind,
    pub(super) domain: DomainId,
    pub(super) binding: Option<Binding>,
}

/// Where a window is bound.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    /// Slot of the region.
    pub(super) region: u32,
    /// Where peers begin to count.
    pub(super) start: u64,
    /// Where that is in the region's memory, from its first byte on.
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) access: AccessFlags,
    /// The only queue pair that serves it, of type 2.
    pub(super) queue_pair: Option<u32>,
}
