#![forbid(unsafe_code)]

use crate::context::DomainId;
use crate::proto::AccessFlags;

use super::Span;

/// Attributes with which a memory region is registered: the argument of
/// [`Registry::register`](super::Registry::register).
#[derive(Debug)]
pub struct RegionAttributes {
    /// Protection domain to which the region belongs.
    pub domain: DomainId,
    /// Memory of the region: the bytes that requests can access.
    pub span: Span,
    /// Address by which requests name the first byte.
    pub start: u64,
    /// Local and remote access rights that the region grants.
    pub access: AccessFlags,
}

/// New attributes of a region that is registered again (`ibv_rereg_mr`). An attribute that is
/// `None` stays unchanged.
#[derive(Debug, Default)]
pub struct RegionChange {
    /// New protection domain to which the region belongs.
    pub domain: Option<DomainId>,
    /// New memory, and the address by which requests name its first byte.
    pub translation: Option<(Span, u64)>,
    /// New local and remote access rights that the region grants.
    pub access: Option<AccessFlags>,
    /// Set if the region keeps its key, because its memory and its domain do not change.
    pub keeps_key: bool,
}

/// A registered memory region: attributes, and the number of windows that are bound to it.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) domain: DomainId,
    pub(super) span: Span,
    pub(super) start: u64,
    pub(super) access: AccessFlags,
    /// Number of windows that are bound to the region. While windows are bound, the region cannot
    /// be deregistered.
    pub(super) windows: usize,
}

impl Region {
    /// Returns the offset in this region of the `length` bytes at `address`, an address in a
    /// request. Returns `None` if the region does not contain all of these bytes.
    #[inline]
    pub(super) fn offset(&self, address: u64, length: u64) -> Option<u64> {
        offset(self.start, self.span.length(), address, length)
    }
}

/// Returns the offset of a range within a larger range. The inner range has `length` bytes and
/// begins at `address`. The outer range has `size` bytes and begins at `start`. Returns `None` if
/// the outer range does not contain all bytes of the inner range.
pub(super) fn offset(start: u64, size: u64, address: u64, length: u64) -> Option<u64> {
    let offset = address.checked_sub(start)?;
    (offset <= size && length <= size - offset).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::offset;

    #[test]
    fn only_ranges_inside_a_region_are_accepted() {
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
