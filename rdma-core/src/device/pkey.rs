//! Partition keys.

use std::fmt;

/// A partition key: which partition of a fabric, and whether as a full member of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PartitionKey(pub u16);

impl PartitionKey {
    /// The default partition, as a full member: the only one of RoCE (IBTA annex A17.7.1).
    pub const DEFAULT: Self = Self(0xffff);

    /// The partition: all bits but that of the membership.
    pub fn base(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether as a full member, which talks with every member; limited ones talk with full ones
    /// only (IBTA 10.9.1.1).
    pub fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether it is of no partition: an empty table entry (IBTA 10.9.1.2).
    pub fn is_invalid(self) -> bool {
        self.base() == 0
    }

    /// Whether holders of these two keys can talk with each other (IBTA 10.9.3).
    pub fn matches(self, other: Self) -> bool {
        !self.is_invalid()
            && self.base() == other.base()
            && (self.is_full_member() || other.is_full_member())
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_limited_members_do_not_match() {
        let (full, limited) = (PartitionKey(0x8001), PartitionKey(0x0001));
        assert!(full.matches(full) && full.matches(limited) && limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(PartitionKey(0x8002)));
        assert!(!PartitionKey(0x8000).matches(PartitionKey(0x8000)));
        assert!(PartitionKey(0x8000).is_invalid());
        assert_eq!(PartitionKey::DEFAULT.to_string(), "0xffff");
    }
}
