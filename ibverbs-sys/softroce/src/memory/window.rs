#![forbid(unsafe_code)]

use crate::context::DomainId;
use crate::proto::AccessFlags;

/// Type of a memory window (IBTA 10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Type 1: bound by `ibv_bind_mw` or a send request, any number of times, and accessible
    /// through all queue pairs of the protection domain.
    Type1,
    /// Type 2B: bound by a send request, with a key that the program chooses, and accessible only
    /// through the queue pair of that request. Can be bound again after it was invalidated.
    Type2,
}

/// A memory window, bound or unbound. The window grants access only while it is bound to a region.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) kind: WindowKind,
    pub(super) domain: DomainId,
    pub(super) binding: Option<Binding>,
}

/// Binding of a memory window to a memory region: the bytes that are accessible through the window.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    /// Slot (number in the table) of the region to which the window is bound.
    pub(super) region: u32,
    /// Address by which requests name the window's first byte.
    pub(super) start: u64,
    /// Offset of the window's first byte in the region's memory.
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) access: AccessFlags,
    /// The only queue pair through which a type 2 window is accessible; `None` for type 1.
    pub(super) queue_pair: Option<u32>,
}
