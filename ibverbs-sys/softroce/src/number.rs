//! The structure of queue pair numbers.
#![forbid(unsafe_code)]

use crate::limits::MAX_QP;

/// Number of bits below the slot in a queue pair number.
pub(crate) const BITS: u32 = 20;

/// Number of queue pair numbers of a slot.
pub(crate) const COUNT: u32 = 1 << BITS;

/// Number of records that are indexed by queue pair numbers. Queue pairs of a NIC that exist at the same time have different
/// [records](record).
pub(crate) const RECORDS: usize = MAX_QP;

/// Returns the slot of the NIC's UDP port, which is in the four high bits of a queue pair number.
#[inline]
pub(crate) fn slot(number: u32) -> u8 {
    (number >> BITS) as u8 & 0xf
}

/// Returns the index of the record of a queue pair.
#[inline]
pub(crate) fn record(number: u32) -> usize {
    number as usize % RECORDS
}
