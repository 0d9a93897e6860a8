#![forbid(unsafe_code)]
//! Limits on what other processes of the host can cost this one by handshakes.
//!
//! Whoever is in the same network namespace can connect to a process's listener, and a process of the same user can go
//! through the whole handshake as often as it likes. So there is a bound for each thing that this takes:
//!
//! | resource | bounded by |
//! |---|---|
//! | processor time | [`CONNECTIONS_PER_SECOND`], [`HANDSHAKES_PER_SECOND`] |
//! | pending connections | [`MAX_PENDING_HANDSHAKES`], [`MAX_PENDING_PER_PROCESS`], for [`HANDSHAKE_TIMEOUT`] each |
//! | memory and descriptors of unfinished handshakes | [`MAX_WELCOMED`] |
//! | memory and descriptors of links | [`MAX_LINKS`], [`MAX_LINKS_PER_PROCESS`], [`is_short_of_descriptors`] |
//!
//! Processes of other users are refused when they are accepted: nothing that they say is received. What exceeds a rate is
//! not refused but waits: in the listener's backlog, or with its first message unread.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::descriptor::Descriptor;

/// Time that a peer has for its part of a handshake. The peer's engine answers, which takes microseconds; half a second
/// is enough where that thread has to wait for a processor, and short enough for a program that waits in a verb.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(500);

/// Time for which a peer that refused, or did not answer, is not asked again: so that programs that connect often to such
/// a peer seldom wait for [`HANDSHAKE_TIMEOUT`].
pub(super) const RETRY_COOLDOWN: Duration = Duration::from_secs(1);

/// Connections without a finished handshake, and the length of the kernel's queue of those that were not accepted: more
/// processes than usually start at the same moment. Each holds one descriptor.
pub(super) const MAX_PENDING_HANDSHAKES: usize = 64;

/// The same of a single process, which needs one for each of its threads that look for different addresses of this
/// process at the same time.
pub(super) const MAX_PENDING_PER_PROCESS: usize = 4;

/// Pending handshakes that were answered. Each holds eight descriptors and two mappings; 16 of them stay far below the
/// usual limit of 1024 descriptors. A peer needs this state for a round trip only, so the oldest one makes room: at
/// [`HANDSHAKES_PER_SECOND`] it has had 64 ms.
pub(super) const MAX_WELCOMED: usize = 16;

/// Links of this process: more than processes that one host usually runs. Each holds eight descriptors and 1.3 MiB.
pub(super) const MAX_LINKS: usize = 1024;

/// Links with a single process, which needs one; another one takes its place while the end of the first is not known to
/// both.
pub(super) const MAX_LINKS_PER_PROCESS: usize = 2;

/// Connections that are accepted per second. To accept and refuse one takes less than 20 us, so a flood of them takes less
/// than 2 % of a processor's time; and the kernel's queue of [`MAX_PENDING_HANDSHAKES`] passes in 64 ms.
pub(super) const CONNECTIONS_PER_SECOND: u32 = 1000;

/// Handshakes that are answered per second. To answer one takes less than 400 us, most of it to map memory, so a flood of
/// them takes less than 10 % of a processor's time; and [`MAX_PENDING_HANDSHAKES`] pass in 256 ms, within the
/// [`HANDSHAKE_TIMEOUT`] of the last.
pub(super) const HANDSHAKES_PER_SECOND: u32 = 250;

/// Connections, or handshakes, that are not delayed after a pause: processes that start at the same moment. The
/// directory's lock is held for so many, which takes a few milliseconds.
pub(super) const BURST: u32 = 16;

/// Connections that were accepted at a time at which [`accept`](rustix::net::accept) failed for lack of descriptors or
/// memory are tried again after this time.
pub(super) const ACCEPT_COOLDOWN: Duration = Duration::from_millis(10);

/// A limit on how often something is done: at most `per_second` times in the long run, and [`BURST`] times at once.
#[derive(Debug)]
pub(super) struct RateLimit {
    interval: Duration,
    /// When [`BURST`] are allowed at once again.
    full_at: Instant,
}

impl RateLimit {
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second,
            full_at: now,
        }
    }

    /// Returns when the next one is allowed.
    pub(super) fn ready_at(&self) -> Instant {
        let burst = self.interval * (BURST - 1);
        self.full_at.checked_sub(burst).unwrap_or(self.full_at)
    }

    /// Returns whether another one is allowed now.
    pub(super) fn is_ready(&self, now: Instant) -> bool {
        self.ready_at() <= now
    }

    /// Counts one that is done now.
    pub(super) fn count(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.interval;
    }
}

/// Returns whether a new descriptor shows that the program may soon need those that are left: the kernel gives the
/// lowest free number, and a quarter of the numbers is left to the program.
pub(super) fn is_short_of_descriptors(newest: &Descriptor) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::try_from(newest.as_raw_fd()).is_ok_and(|number| number >= limit / 4 * 3)
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
        assert_eq!(allowed(start), BURST);
        assert_eq!(allowed(start + Duration::from_millis(9)), 0);
        assert_eq!(allowed(start + Duration::from_millis(10)), 1);
        assert_eq!(allowed(start + Duration::from_millis(35)), 2);
        // A long pause saves up one burst and no more.
        assert_eq!(allowed(start + Duration::from_secs(60)), BURST);
    }

    #[test]
    fn the_next_one_is_allowed_when_it_is_said_to_be() {
        let start = Instant::now();
        let mut limit = RateLimit::new(1000, start);
        (0..BURST).for_each(|_| limit.count(start));
        let ready_at = limit.ready_at();
        assert!(ready_at > start && limit.is_ready(ready_at));
        assert!(!limit.is_ready(ready_at - Duration::from_nanos(1)));
    }
}
