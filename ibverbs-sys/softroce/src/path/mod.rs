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
//! anything goes by another ([`QueuePair::has_direct`](crate::proto::QueuePair::has_direct)). So accidents that are
//! [arranged](crate::fault) while messages go, and captures, have their packets; and what is not clear, as a peer that is
//! not ready, gone, or connected to someone else, is always found out by packets, in the time that the attributes allow.
//!
//! `SOFTROCE_PATH` (`direct`, `shared` or `udp`) leaves only one way beside packets, or none. [`way()`] tells which one a queue
//! pair goes, and the [counters](crate::counters()) `direct_messages` and `shared_messages` how many messages went so. Between
//! processes these are reads, writes and atomics. A message that takes a receive goes through a ring in shared memory, which
//! `shared_xmit_packets` counts, or the receiver copies its bytes.

use crate::nic::Nic;

/// A way from a queue pair to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Packets.
    Udp,
    /// Within the process.
    Direct,
    /// Between processes of the host, through memory that they share.
    Shared,
}

impl Way {
    /// Whether a choice allows it: packets always go.
    pub(crate) fn is_allowed(self, choice: Option<Self>) -> bool {
        self == Self::Udp || choice.is_none_or(|chosen| chosen == self)
    }
}

/// The way that messages of this process's queue pair with the number `queue_pair` go at present; none if there is no such
/// queue pair.
///
/// One that has not sent anything yet is told to send packets.
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
    use super::Way;

    #[test]
    fn a_choice_leaves_one_way_and_packets() {
        use Way::{Direct, Shared, Udp};
        for way in [Udp, Direct, Shared] {
            assert!(way.is_allowed(None));
            assert!(way.is_allowed(Some(way)));
            assert_eq!(way.is_allowed(Some(Udp)), way == Udp);
        }
        assert!(!Shared.is_allowed(Some(Direct)));
        assert_eq!(super::way(0), None);
    }
}
