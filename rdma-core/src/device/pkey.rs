//! Partition keys (P_Keys).

use std::fmt;

/// A partition key (P_Key): the number of a partition of the fabric, and the type of membership in
/// that partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PartitionKey(pub u16);

impl PartitionKey {
    /// Full membership in the default partition, the only P_Key of RoCE (IBTA annex A17.7.1).
    pub const DEFAULT: Self = Self(0xffff);

    /// Returns the number of the partition, without the membership bit.
    pub fn base(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Returns whether the key stands for full membership in its partition. Full members
    /// communicate with all members, limited members only with full members (IBTA 10.9.1.1).
    pub fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Returns whether the partition key is invalid: its lower 15 bits are 0, as in an empty entry
    /// of a P_Key table (IBTA 10.9.1.2).
    pub fn is_invalid(self) -> bool {
        self.base() == 0
    }

    /// Returns whether a member with this partition key and a member with the partition key `other`
    /// can communicate (IBTA 10.9.3).
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
