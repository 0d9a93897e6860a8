//! The structure of queue pair numbers: the eight high bits identify the UDP port of the NIC, and
//! the 16 low bits the queue pair.
#![forbid(unsafe_code)]

use crate::limits::MAX_QP;

/// Number of low bits of a queue pair number that identify the queue pair within its NIC. The
/// higher bits identify the UDP port of the NIC.
pub(crate) const BITS: u32 = 16;

/// Number of queue pair numbers that a NIC can assign. The NIC assigns the numbers in turn, so that
/// the number of a destroyed queue pair is not reused soon.
pub(crate) const COUNT: u32 = 1 << BITS;

/// Number of entries in a table that has an entry for each queue pair, indexed by [`record`]. Two
/// queue pairs of a NIC that exist at the same time never have the same index, so they never share
/// an entry.
pub(crate) const RECORDS: usize = MAX_QP;

/// Returns the eight high bits of a queue pair number, which identify the UDP port of its NIC.
#[inline]
pub(crate) fn slot(number: u32) -> u8 {
    (number >> BITS) as u8
}

/// Returns the index of the queue pair with the number `number` in a table that has an entry for
/// each queue pair. Such a table has [`RECORDS`] entries. Queue pairs of a NIC that exist at the
/// same time have different indices.
#[inline]
pub(crate) fn record(number: u32) -> usize {
    number as usize % RECORDS
}
