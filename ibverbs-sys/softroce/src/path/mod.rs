#![forbid(unsafe_code)]
//! The paths by which a queue pair reaches its peer: without packets, or by packets.
//!
//! | path | peer | who copies the bytes |
//! |---|---|---|
//! | [`Direct`](Way::Direct) | in this process | the thread that posts, which completes both sides |
//! | [`Shared`](Way::Shared) | in another process of the host | the thread that posts; for messages that consume a receive also a thread of the peer |
//! | [`Udp`](Way::Udp) | anywhere | packets |
//!
//! A queue pair uses the first of these paths that is available, and decides again for each range
//! of a message. This decision needs no agreement with the peer, because sequence numbers are the
//! same on all paths. All packets and messages that are unacknowledged on one path are completed on
//! that path before another path is used. So [injected faults](crate::fault) and captures also
//! apply to packets if they begin while messages are transferred. If the state of the peer is
//! unclear (not ready, ended, or connected to another queue pair), packets are used, within the
//! timeouts of the attributes.
//!
//! `SOFTROCE_PATH` (`direct`, `shared` or `udp`) allows only one path besides packets, or none.
//! [`way()`] returns the present path of a queue pair, and the [counters](crate::counters())
//! `direct_messages` and `shared_messages` count the messages on these paths. Between processes,
//! `shared_messages` counts only reads, writes and atomic operations. A message that consumes a
//! receive goes through a ring in shared memory, or one side copies its bytes. Other
//! [counters](crate::counters()) count these messages, bytes and copies.

use crate::nic::Nic;

pub use crate::config::Way;

/// Returns the path that messages of the local queue pair number `queue_pair` take at present, or
/// `None` if this process has no such queue pair.
///
/// The path of a queue pair that has not sent anything yet is [`Udp`](Way::Udp).
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
    fn no_path_leads_to_a_missing_queue_pair() {
        assert_eq!(super::way(0), None);
    }
}
