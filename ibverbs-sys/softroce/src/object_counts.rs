//! Counts of the existing verbs objects of the device by kind, as `rdma resource` shows them for
//! kernel devices.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kind of a verbs object, such as a queue pair or a memory region. [`objects`] returns the number
/// of existing objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
#[expect(missing_docs, reason = "the specification's own names")]
pub enum Kind {
    Context,
    ProtectionDomain,
    MemoryRegion,
    MemoryWindow,
    DeviceMemory,
    Buffer,
    CompletionChannel,
    CompletionQueue,
    SharedReceiveQueue,
    QueuePair,
    AddressHandle,
    XrcDomain,
}

impl Kind {
    /// All kinds of verbs objects, in the order of the enum's variants.
    pub const ALL: [Self; 12] = [
        Self::Context,
        Self::ProtectionDomain,
        Self::MemoryRegion,
        Self::MemoryWindow,
        Self::DeviceMemory,
        Self::Buffer,
        Self::CompletionChannel,
        Self::CompletionQueue,
        Self::SharedReceiveQueue,
        Self::QueuePair,
        Self::AddressHandle,
        Self::XrcDomain,
    ];
}

static COUNTS: [AtomicU64; Kind::ALL.len()] = [const { AtomicU64::new(0) }; Kind::ALL.len()];

/// Returns the number of existing verbs objects of a kind: objects that this process has created on
/// the softroce device and has not destroyed.
///
/// ```
/// assert_eq!(softroce::objects(softroce::Kind::QueuePair), 0);
/// ```
pub fn objects(kind: Kind) -> u64 {
    COUNTS[kind as usize].load(Ordering::Relaxed)
}

/// Sets the counts of existing verbs objects (queue pairs, memory regions and so on) to zero. Must
/// be called in a child of `fork`, because the child does not have its parent's objects.
pub(crate) fn reset_in_child() {
    for count in &COUNTS {
        count.store(0, Ordering::Relaxed);
    }
}

/// Counter field of a verbs object, by which [`objects`] counts the object. Creating this value
/// increases the number of existing objects of the [`Kind`], and dropping the value decreases the
/// number.
pub(crate) struct Counted(Kind);

impl Counted {
    /// Counts a new object of the kind `kind`. The object must contain the returned value, which
    /// subtracts the object from the count when it is dropped.
    pub(crate) fn new(kind: Kind) -> Self {
        COUNTS[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self(kind)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNTS[self.0 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one {:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Counted, Kind, objects};

    #[test]
    fn each_kind_of_object_is_counted_separately() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, place);
        }
        let before = objects(Kind::XrcDomain);
        let one = Counted::new(Kind::XrcDomain);
        assert_eq!(objects(Kind::XrcDomain), before + 1);
        drop(one);
        assert_eq!(objects(Kind::XrcDomain), before);
    }
}
