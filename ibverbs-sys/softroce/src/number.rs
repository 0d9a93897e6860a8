//! The parts of a queue pair's number.
#![forbid(unsafe_code)]

use crate::limits::MAX_QP;

/// Number of bits below the slot.
pub(crate) const BITS: u32 = 20;

/// Number of different numbers of a slot.
pub(crate) const COUNT: u32 = 1 << BITS;

/// Records that are kept by queue pair number. A NIC's queue pairs that exist at the same time have different
/// [records](record).
pub(crate) const RECORDS: usize = MAX_QP;

/// Returns the slot of the NIC's UDP port, which all of its queue pairs have in the four high bits of their numbers.
#[inline]
pub(crate) fn slot(number: u32) -> u8 {
    (number >> BITS) as u8 & 0xf
}

/// Returns the index of the record of a queue pair.
#[inline]
pub(crate) fn record(number: u32) -> usize {
    number as usize % RECORDS
}
