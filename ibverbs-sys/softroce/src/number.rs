//! The structure of queue pair numbers: the four high bits identify the NIC's UDP port, the others the queue pair.
#![forbid(unsafe_code)]

use crate::limits::MAX_QP;

/// Number of low bits of a queue pair number that identify the queue pair within its NIC.
pub(crate) const BITS: u32 = 20;

/// Number of queue pair numbers that a NIC can assign.
pub(crate) const COUNT: u32 = 1 << BITS;

/// Number of records in a table that is indexed by queue pair numbers. Queue pairs of a NIC that exist at the same time have
/// different [records](record).
pub(crate) const RECORDS: usize = MAX_QP;

/// Returns the four high bits of a queue pair number, which identify the UDP port of its NIC.
#[inline]
pub(crate) fn slot(number: u32) -> u8 {
    (number >> BITS) as u8 & 0xf
}

/// Returns the index of a queue pair's record in a table.
#[inline]
pub(crate) fn record(number: u32) -> usize {
    number as usize % RECORDS
}
