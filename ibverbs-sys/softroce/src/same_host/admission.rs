#![forbid(unsafe_code)]
//! Limits for handshakes with other processes of the host: how much time, memory and how many
//! descriptors of this process they can take.
//!
//! Every process in the same network namespace can connect to the sockets on which this process
//! listens, and a process of the same user can perform the whole handshake as often as it likes. So
//! each resource that a handshake takes has a limit:
//!
//! | resource | bounded by |
//! |---|---|
//! | processor time | [`CONNECTIONS_PER_SECOND`], [`HANDSHAKES_PER_SECOND`] |
//! | pending connections | [`MAX_PENDING_HANDSHAKES`], [`MAX_PENDING_PER_PROCESS`], for [`HANDSHAKE_TIMEOUT`] each |
//! | memory and descriptors of unfinished handshakes | [`MAX_WELCOMED`] |
//! | memory and descriptors of links | [`MAX_LINKS`], [`MAX_LINKS_PER_PROCESS`], [`is_short_of_descriptors`] |
//!
//! A connection from a process of another user is closed when it is accepted: no message of such a
//! process is received. A connection that exceeds a rate limit is not refused. Such a connection
//! waits in the kernel's queue, or with its first message unread.

use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::descriptor::Descriptor;

/// Maximum time that a peer may take for its messages in a handshake. A running peer answers within
/// microseconds. Half a second suffices even if the peer must wait for a processor, and is short
/// enough for a program that waits in a verb.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time after which a handshake is tried again with a peer that refused it or did not answer. So a
/// program that often connects to such a peer rarely waits for [`HANDSHAKE_TIMEOUT`].
pub(super) const RETRY_COOLDOWN: Duration = Duration::from_secs(1);

/// Maximum number of connections of other processes whose handshakes are not finished. Each
/// connection holds one descriptor. The kernel queues up to the same number of further connections.
/// Fewer processes usually start at the same time, so the limit is rarely reached.
pub(super) const MAX_PENDING_HANDSHAKES: usize = 64;

/// Maximum number of connections from a single process whose handshakes are not finished. A process
/// opens more than one connection only if several of its threads look up different addresses of
/// this process at the same time.
pub(super) const MAX_PENDING_PER_PROCESS: usize = 4;

/// Maximum number of unfinished handshakes that this process has accepted by a `Welcome` message.
/// If another handshake is accepted, the oldest one is ended. At [`HANDSHAKES_PER_SECOND`], its
/// peer has then had 64 ms for the last message. Each handshake holds eight descriptors and two
/// mappings, so 16 handshakes stay far below the usual limit of 1024 descriptors.
pub(super) const MAX_WELCOMED: usize = 16;

/// Maximum number of links of this process: other processes with which it shares memory. Usually
/// fewer than 256 processes run on one host. Each link holds six descriptors and 1.3 MiB.
pub(super) const MAX_LINKS: usize = 1024;

/// Maximum number of links (shared memory) with a single process. Two processes need one link. A
/// second link can exist while the first one has ended for only one of the two processes.
pub(super) const MAX_LINKS_PER_PROCESS: usize = 2;

/// Maximum number of connections that are accepted per second. Accepting and refusing a connection
/// takes less than 20 us, so a flood of connections takes less than 2 % of a processor's time. A
/// full kernel queue of [`MAX_PENDING_HANDSHAKES`] connections is accepted in 64 ms.
pub(super) const CONNECTIONS_PER_SECOND: u32 = 1000;

/// Maximum number of handshakes that are answered per second. An answer takes less than 400 us, so
/// a flood of handshakes takes less than 10 % of a processor's time. [`MAX_PENDING_HANDSHAKES`]
/// handshakes are answered in 256 ms, which is within the [`HANDSHAKE_TIMEOUT`] of the last one.
pub(super) const HANDSHAKES_PER_SECOND: u32 = 250;

/// Maximum number of operations that a [`RateLimit`] allows in immediate succession after a pause,
/// for example when many processes start at the same time. The limit is low because the lock of the
/// directory of peers is held during such a burst, for a few milliseconds.
pub(super) const MAX_BURST: u32 = 16;

/// Time for which this process accepts no connections after it failed to accept a connection.
/// Accepting fails if descriptors or memory are exhausted. It also fails if
/// [`MAX_PENDING_HANDSHAKES`] handshakes are pending and all of their connections must stay open.
pub(super) const ACCEPT_COOLDOWN: Duration = Duration::from_millis(10);

/// Rate limit of an operation. In the long run, `per_second` operations per second are allowed.
/// After a pause, [`MAX_BURST`] operations are allowed in immediate succession.
#[derive(Debug)]
pub(super) struct RateLimit {
    interval: Duration,
    /// Time at which a full burst of [`MAX_BURST`] operations will be allowed again.
    full_at: Instant,
}

impl RateLimit {
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second,
            full_at: now,
        }
    }

    /// Returns the earliest time at which this rate limit allows the next operation.
    pub(super) fn ready_at(&self) -> Instant {
        let burst = self.interval * (MAX_BURST - 1);
        self.full_at.checked_sub(burst).unwrap_or(self.full_at)
    }

    /// Returns whether this rate limit allows one more operation at the time `now`.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.ready_at() <= now
    }

    /// Counts an operation at the time `now` against this rate limit. The limit then allows one
    /// operation less until the interval between two operations has passed. The caller must first
    /// check that the limit [allows](Self::is_ready) the operation.
    pub(super) fn count(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.interval;
    }
}

/// Returns whether the process is short of file descriptors, so that another link (shared memory
/// with a process) could take descriptors that the program needs. The process is short of
/// descriptors if all descriptor numbers in the lower half of the permitted range are in use.
/// `descriptor` is any descriptor of the device. The device's own descriptors have the highest
/// numbers, and so do not fill the lower half before the highest quarter is full.
pub(super) fn is_short_of_descriptors(descriptor: &Descriptor) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = descriptor.lowest_free_number();
    lowest.is_none_or(|lowest| u64::from(lowest) >= limit / 2)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_rate_allows_a_burst_and_then_one_for_each_interval() {
        let start = Instant::now();
        let mut limit = RateLimit::new(100, start);
        let mut allowed = |now| {
            let mut count = 0;
            while limit.is_ready(now) {
                limit.count(now);
                count += 1;
            }
            count
        };
        assert_eq!(allowed(start), MAX_BURST);
        assert_eq!(allowed(start + Duration::from_millis(9)), 0);
        assert_eq!(allowed(start + Duration::from_millis(10)), 1);
        assert_eq!(allowed(start + Duration::from_millis(35)), 2);
        // A long pause allows only one burst.
        assert_eq!(allowed(start + Duration::from_secs(60)), MAX_BURST);
    }

    #[test]
    fn the_next_request_is_allowed_at_the_returned_time() {
        let start = Instant::now();
        let mut limit = RateLimit::new(1000, start);
        (0..MAX_BURST).for_each(|_| limit.count(start));
        let ready_at = limit.ready_at();
        assert!(ready_at > start && limit.is_ready(ready_at));
        assert!(!limit.is_ready(ready_at - Duration::from_nanos(1)));
    }
}
