//! Work request ids that no two queues of the process share.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many low bits of an id are the queue's own; the rest is its tag.
pub(super) const OWN_BITS: u32 = 40;
/// The queue's own bits of an id.
pub(super) const OWN_MASK: u64 = (1 << OWN_BITS) - 1;

/// The high bits of every id of one queue.
///
/// A completion that outlived its queue pair must never be taken for one of another queue: it would
/// free memory in flight. Tags repeat only after 2^24 queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag(u64);

impl Tag {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) << OWN_BITS)
    }

    #[inline]
    pub(super) fn id(self, own: u64) -> u64 {
        self.0 | (own & OWN_MASK)
    }

    /// The queue's own bits, if the id is one of this tag's.
    #[inline]
    pub(super) fn own(self, id: u64) -> Option<u64> {
        (id & !OWN_MASK == self.0).then_some(id & OWN_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_belong_to_one_tag() {
        let (one, two) = (Tag::next(), Tag::next());
        assert_ne!(one, two);
        assert_eq!(one.own(one.id(7)), Some(7));
        assert_eq!(two.own(one.id(7)), None);
    }
}
