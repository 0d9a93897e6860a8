#![forbid(unsafe_code)]

use crate::context::DomainId;
use crate::proto::AccessFlags;

use super::Span;

/// A region to be registered.
#[derive(Debug)]
pub struct RegionAttributes {
    /// The protection domain.
    pub domain: DomainId,
    /// The memory.
    pub span: Span,
    /// The address of its first byte in requests.
    pub start: u64,
    /// What may be done to it.
    pub access: AccessFlags,
}

/// What becomes different of a region that is registered again.
#[derive(Debug, Default)]
pub struct RegionChange {
    /// The protection domain.
    pub domain: Option<DomainId>,
    /// The memory, and the address of its first byte in requests.
    pub translation: Option<(Span, u64)>,
    /// What may be done to it.
    pub access: Option<AccessFlags>,
}

/// A memory region.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) domain: DomainId,
    pub(super) span: Span,
    pub(super) start: u64,
    pub(super) access: AccessFlags,
    /// Windows that are bound to it.
    pub(super) windows: usize,
}

impl Region {
    /// How far into the memory `length` bytes from `address` on begin; none if they are not all inside.
    #[inline]
    pub(super) fn offset(&self, address: u64, length: u64) -> Option<u64> {
        offset(self.start, self.span.length(), address, length)
    }
}

/// How far after `start` the `length` bytes from `address` on begin, if they end before `start + size`.
pub(super) fn offset(start: u64, size: u64, address: u64, length: u64) -> Option<u64> {
    let offset = address.checked_sub(start)?;
    (offset <= size && length <= size - offset).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::offset;

    #[test]
    fn what_is_inside_and_what_is_not() {
        assert_eq!(offset(100, 10, 100, 10), Some(0));
        assert_eq!(offset(100, 10, 109, 1), Some(9));
        assert_eq!(offset(100, 10, 110, 0), Some(10));
        assert_eq!(offset(100, 10, 109, 2), None);
        assert_eq!(offset(100, 10, 99, 1), None);
        assert_eq!(offset(100, 10, 101, u64::MAX), None);
        assert_eq!(offset(u64::MAX - 9, 10, u64::MAX, 1), Some(9));
        assert_eq!(offset(0, u64::MAX, u64::MAX, 1), None);
    }
}
