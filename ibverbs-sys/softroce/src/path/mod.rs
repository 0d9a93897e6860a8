#![forbid(unsafe_code)]
//! The ways from a queue pair to its peer.
//!
//! | way | peer | who moves the bytes |
//! |---|---|---|
//! | [`Direct`](Way::Direct) | in this process | the thread that posts, which completes both sides |
//! | [`Shared`](Way::Shared) | in another process of the host | the thread that posts, and the peer's for what takes its receives |
//! | [`Udp`](Way::Udp) | anywhere | packets |
//!
//! A queue pair takes the first of these that there is, part of a message by part of a message. It does so without an
//! agreement, since sequence numbers are the same on all ways: what was not answered on one is settled there before
//! anything goes by another. So accidents that are
//! [arranged](crate::fault) while messages go, and captures, have their packets; and what is not clear, as a peer that is
//! not ready, gone, or connected to someone else, is always found out by packets, in the time that the attributes allow.
//!
//! `SOFTROCE_PATH` (`direct`, `shared` or `udp`) leaves only one way beside packets, or none. [`way()`] tells which one a queue
//! pair goes, and the [counters](crate::counters()) `direct_messages` and `shared_messages` the number of messages that went so.
//! Between processes these are reads, writes and atomics. A message that takes a receive goes through a ring in shared memory,
//! or a side copies its bytes, which other [counters](crate::counters()) tell, each with the bytes and the copies.

use crate::nic::Nic;

pub use crate::config::Way;

/// Returns the way that messages of this process's queue pair with the number `queue_pair` go at present; `None` if there is
/// no such queue pair.
///
/// The way of a queue pair that has not sent anything yet is [`Udp`](Way::Udp).
pub fn way(queue_pair: u32) -> Option<Way> {
    let found = Nic::opened()?.queue_pairs.find(queue_pair)?;
    Some(if found.is_direct() {
        Way::Direct
    } else if found.is_shared() {
        Way::Shared
    } else {
        Way::Udp
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_queue_pair_that_does_not_exist_goes_no_way() {
        assert_eq!(super::way(0), None);
    }
}
