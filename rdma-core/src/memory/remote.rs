//! Descriptors of memory at a peer: its address, length and key.

use std::ops::RangeBounds;

use super::buffer::resolve;
use crate::error::{Error, Result};

/// A descriptor of a peer's memory: address, length and remote key.
///
/// The program that owns the memory creates the descriptor with [`ExposedMemory::remote`], and
/// sends it to the peer as [bytes](Self::to_bytes) or, with the feature `serde`, in a serde format.
/// The owner's device checks every access against the rights that the key grants.
///
/// [`ExposedMemory::remote`]: super::ExposedMemory::remote
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RemoteMemory {
    /// The address of the first byte at the peer.
    pub address: u64,
    /// The length of the memory in bytes.
    pub len: u64,
    /// The remote key that the peer's device has assigned to the memory. Every access must contain
    /// this key.
    pub rkey: u32,
}

impl RemoteMemory {
    /// Length in bytes of the array that [`Self::to_bytes`] returns.
    pub const ENCODED_LEN: usize = 20;

    /// Returns a descriptor of the part `range` of the peer's memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the memory.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        let range = resolve(range, len)?;
        let address = self
            .address
            .checked_add(range.start as u64)
            .ok_or(Error::OutOfRange {
                start: range.start as u64,
                end: range.end as u64,
                len: self.len,
            })?;
        Ok(Self {
            address,
            len: range.len() as u64,
            rkey: self.rkey,
        })
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the descriptor as bytes that a message can contain: address (8 bytes), length (8
    /// bytes) and key (4 bytes), each in network byte order.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Decodes a descriptor of a peer's memory from the bytes that [`Self::to_bytes`] has returned.
    pub fn from_bytes(bytes: &[u8; Self::ENCODED_LEN]) -> Self {
        let word = |range: std::ops::Range<usize>| {
            u64::from_be_bytes(bytes[range].try_into().expect("eight bytes"))
        };
        let rkey = u32::from_be_bytes(bytes[16..].try_into().expect("four bytes"));
        Self {
            address: word(0..8),
            len: word(8..16),
            rkey,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: RemoteMemory = RemoteMemory {
        address: 0x1122_3344_5566_7788,
        len: 64,
        rkey: 0xabcd,
    };

    #[test]
    fn bytes_round_trip() {
        assert_eq!(RemoteMemory::from_bytes(&MEMORY.to_bytes()), MEMORY);
    }

    #[test]
    fn parts_stay_inside() {
        let part = MEMORY.slice(4..8).unwrap();
        assert_eq!((part.address, part.len), (MEMORY.address + 4, 4));
        assert_eq!(part.slice(..).unwrap(), part);
        assert!(part.slice(..5).is_err());
        let hostile = RemoteMemory {
            address: u64::MAX,
            len: u64::MAX,
            rkey: 0,
        };
        assert!(hostile.slice(2..).is_err());
    }
}
