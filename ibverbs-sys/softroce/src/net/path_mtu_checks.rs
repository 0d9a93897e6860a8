#![forbid(unsafe_code)]
//! Checks of packet sizes: detection of paths to other hosts that lose long packets.
//!
//! A network between two hosts may have a smaller MTU than their interfaces. The packets of this
//! crate and of kernel drivers must not be fragmented (the IP headers forbid fragmentation), so
//! such a network drops long packets, and a connection with long messages never receives an answer.
//! A check sends two [questions](super::trial): first a long question, with the length of the
//! longest packet, and then a short question. If only the short question is answered, the check is
//! repeated immediately. After several such answers, a message on standard error reports the path.
//!
//! A path is checked when a connection is made, and when packets of a connection are not
//! acknowledged. The peer may not be open yet when the connection is made. A question of the peer
//! then repeats the check. Other implementations do not answer questions, so paths to other
//! implementations are not checked.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::bind::report;
use super::network::Network;
use super::trial::number_of;
use crate::number;
use crate::proto::{Mtu, Path, Time};
use crate::random;

/// Number of payload bytes by which the long packet of a path MTU check exceeds the path MTU. The
/// check must test the length of the longest packet of a connection. That packet has a 16-byte RETH
/// and 4 bytes of immediate data. The long packet has an 8-byte DETH instead.
const EXTRA_PAYLOAD: usize = 16 + 4 - 8;

/// Time to wait for the answers to the first path MTU check of a route. The time doubles with each
/// check that is not answered, because the peer may not support checks.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);

/// Time after which a path is checked again for the loss of long packets, because the route to the
/// peer can change. Also the maximum time between two checks of a peer that does not answer.
const RENEWAL: Duration = Duration::from_secs(60);

/// Number of consecutive lost long packets after which the user gets a message about the path. A
/// path MTU check sends a long and a short packet. The long packet counts as lost if only the short
/// packet is answered. A few long packets can be lost for other reasons than their length.
const LOSSES_BEFORE_REPORT: u32 = 4;

/// Maximum number of routes whose checks are remembered, which bounds the memory. A route is a pair
/// of a local and a peer's IP address. When the table is full, a new route replaces the route whose
/// next check is due first.
const MAX_ROUTES: usize = 4096;

/// The local IP address and the peer's IP address, between which packets of the full path MTU are
/// tested.
type Route = (IpAddr, IpAddr);

/// Path to a peer, and the queue pair number to which packets that request an answer are sent. The
/// number identifies the peer's UDP port.
pub(super) type Target = (Path, u32);

/// State of the path MTU checks of each route (pair of a local and a peer's IP address). A check
/// sends a long and a short packet to the peer, to detect that only short packets arrive.
#[derive(Debug, Default)]
pub(super) struct PathMtuChecks(Mutex<HashMap<Route, PathMtuCheck>>);

#[derive(Debug)]
struct PathMtuCheck {
    to: Target,
    /// Path MTU of the check, which determines the length of the long question.
    mtu: Mtu,
    /// Sequence number of the long question, which is odd. The sequence number of the short
    /// question is higher by 2.
    sequence: u32,
    state: State,
    /// Number of consecutive unanswered checks, which determines the time to wait for the next
    /// answer.
    unanswered: u32,
    /// Time from which the path may be checked again.
    due: Time,
    /// Set once the path was reported, so that the user gets one message only.
    is_reported: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No question was answered. `is_repeated` is set if the check was repeated because of a
    /// question of the peer.
    Unanswered { is_repeated: bool },
    /// Only short questions were answered, in this number of consecutive checks.
    Lossy(u32),
    /// The check has ended: the long question was answered, or the path was reported.
    Done,
}

/// Action that the caller of this module must perform for a path MTU check: to send packets, to
/// report a lossy path, or nothing. The action is determined after each event of the check, such as
/// an answer of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckAction {
    /// Send the long and the short question for this path MTU to this peer. The number is the
    /// sequence number of the long question.
    Ask(Target, Mtu, u32),
    /// Report to the user that the path loses packets of this path MTU.
    Report(Mtu),
    Nothing,
}

impl PathMtuCheck {
    fn ask(&mut self, state: State) -> CheckAction {
        self.state = state;
        // Unpredictable, so that no third host can answer.
        let [word] = random::words();
        self.sequence = word as u32 & 0xff_fffc | 1;
        CheckAction::Ask(self.to, self.mtu, self.sequence)
    }
}

impl PathMtuChecks {
    /// Begins a check of `route` (pair of a local and a peer's IP address), and returns the action
    /// that the caller must perform. The check finds out if packets of the path MTU `mtu` reach the
    /// peer. The action is to send the packets of the check to `to`, a path and a queue pair
    /// number. The action is nothing if `route` was checked recently with at least this path MTU.
    fn begin(&self, route: Route, to: Target, mtu: Mtu, now: Time) -> CheckAction {
        let mut checks = self.0.lock();
        if !checks.contains_key(&route) && checks.len() >= MAX_ROUTES {
            let oldest = checks.iter().min_by_key(|(_, check)| check.due);
            if let Some((&oldest, _)) = oldest {
                checks.remove(&oldest);
            }
        }
        let check = checks.entry(route).or_insert(PathMtuCheck {
            to,
            mtu,
            sequence: 0,
            state: State::Done,
            unanswered: 0,
            due: now,
            is_reported: false,
        });
        if now < check.due && mtu <= check.mtu {
            return CheckAction::Nothing;
        }
        check.unanswered = match check.state {
            State::Unanswered { .. } => check.unanswered.saturating_add(1),
            State::Lossy(_) | State::Done => 0,
        };
        (check.to, check.mtu) = (to, mtu);
        check.due = now
            + ANSWER_TIMEOUT
                .saturating_mul(1 << check.unanswered.min(16))
                .min(RENEWAL);
        check.ask(State::Unanswered { is_repeated: false })
    }

    /// Handles a packet by which the peer of `route` requests an answer. The packet shows that the
    /// peer's device is open. Returns the action that the caller must perform. If the peer has not
    /// answered the last path MTU check, the action is to repeat the check, but only once.
    /// Otherwise, the action is nothing.
    pub(super) fn handle_question(&self, route: Route) -> CheckAction {
        match self.0.lock().get_mut(&route) {
            Some(check) if check.state == (State::Unanswered { is_repeated: false }) => {
                check.ask(State::Unanswered { is_repeated: true })
            }
            _ => CheckAction::Nothing,
        }
    }

    /// Handles the peer's answer to the packet `sequence` of a path MTU check (a long and a short
    /// packet). Returns the action that the caller must perform. The answer to the long packet ends
    /// the check. If only the short packet is answered, the long packet was lost. The action is
    /// then to repeat the check or, after several losses, to inform the user once that the path of
    /// `route` loses long packets.
    pub(super) fn handle_answer(&self, route: Route, sequence: u32, now: Time) -> CheckAction {
        let mut checks = self.0.lock();
        let Some(check) = checks.get_mut(&route) else {
            return CheckAction::Nothing;
        };
        if sequence == check.sequence {
            check.state = State::Done;
            check.due = now + RENEWAL;
            return CheckAction::Nothing;
        }
        let losses = match check.state {
            _ if sequence != check.sequence + 2 => return CheckAction::Nothing,
            State::Done => return CheckAction::Nothing,
            State::Unanswered { .. } => 1,
            State::Lossy(losses) => losses + 1,
        };
        if losses < LOSSES_BEFORE_REPORT {
            return check.ask(State::Lossy(losses));
        }
        check.state = State::Done;
        check.due = now + RENEWAL;
        match std::mem::replace(&mut check.is_reported, true) {
            true => CheckAction::Nothing,
            false => CheckAction::Report(check.mtu),
        }
    }
}

impl Network {
    /// Begins a check that finds out if packets of the path MTU `mtu` arrive at the peer at the end
    /// of `path`. Does nothing if the peer is on this host. If the packets do not arrive, a message
    /// on standard error informs the user. `destination` is the number of the peer's queue pair.
    /// Called when a connection is made, and when its packets are not acknowledged.
    pub(crate) fn check_path_mtu(&self, path: &Path, destination: u32, mtu: Mtu) {
        let Some(local_address) = self.local_address(path.source.into()) else {
            return;
        };
        let route = (local_address.local.ip(), path.destination.to_canonical());
        if route.0.is_loopback() || route.1.is_loopback() || !self.can_send_on(path) {
            return;
        }
        let to = (*path, number_of(number::slot(destination)));
        let step = self
            .path_mtu_checks
            .begin(route, to, mtu, self.timers.now());
        self.continue_check(route, step);
    }

    /// Performs `step`, the next action in a check of the path between the IP addresses `local` and
    /// `peer`. The action is to send the long and the short packet of the check, to report on
    /// standard error that the path loses long packets, or nothing.
    pub(super) fn continue_check(&self, (local, peer): Route, step: CheckAction) {
        match step {
            CheckAction::Ask(to, mtu, sequence) => {
                // Sent separately: a virtual interface passes on a burst whatever the length of its
                // packets.
                let long = mtu.bytes() + EXTRA_PAYLOAD;
                self.ask(&mut self.outbox(), to, sequence, long);
                self.ask(&mut self.outbox(), to, sequence + 2, 0);
            }
            CheckAction::Report(mtu) => report(format_args!(
                "long packets from {local}, with a path MTU of {} bytes, do not arrive at {peer}, but short packets do: the \
                 network between the hosts has a smaller MTU than the interface. Set a smaller MTU of the interfaces, or a smaller \
                 path MTU of the queue pairs",
                mtu.bytes()
            )),
            CheckAction::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ROUTE: Route = (
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    );

    fn begin(sizes: &PathMtuChecks, mtu: Mtu, millis: u64) -> CheckAction {
        let path = Path {
            source: 2,
            destination: Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped(),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        sizes.begin(ROUTE, (path, 1), mtu, at(millis))
    }

    fn at(millis: u64) -> Time {
        Time::default() + Duration::from_millis(millis)
    }

    fn sequence_of(step: CheckAction) -> u32 {
        match step {
            CheckAction::Ask(_, _, sequence) => sequence,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_path_that_loses_long_packets_is_reported_once() {
        let sizes = PathMtuChecks::default();
        for (millis, expected) in [
            (0, CheckAction::Report(Mtu::Mtu4096)),
            (60_000, CheckAction::Nothing),
        ] {
            let mut step = begin(&sizes, Mtu::Mtu4096, millis);
            for _ in 1..LOSSES_BEFORE_REPORT {
                let short = sequence_of(step) + 2;
                step = sizes.handle_answer(ROUTE, short, at(millis));
                // A repeated answer is not a further loss.
                assert_eq!(
                    sizes.handle_answer(ROUTE, short, at(millis)),
                    CheckAction::Nothing
                );
            }
            let short = sequence_of(step) + 2;
            assert_eq!(sizes.handle_answer(ROUTE, short, at(millis)), expected);
            let again = begin(&sizes, Mtu::Mtu4096, millis + 59_999);
            assert_eq!(again, CheckAction::Nothing);
        }
    }

    #[test]
    fn one_lost_long_packet_is_not_reported() {
        let sizes = PathMtuChecks::default();
        let mut step = begin(&sizes, Mtu::Mtu1024, 0);
        for _ in 1..LOSSES_BEFORE_REPORT {
            step = sizes.handle_answer(ROUTE, sequence_of(step) + 2, at(0));
        }
        let last = sequence_of(step);
        assert_eq!(
            sizes.handle_answer(ROUTE, last, at(0)),
            CheckAction::Nothing
        );
        assert_eq!(
            sizes.handle_answer(ROUTE, last + 2, at(0)),
            CheckAction::Nothing
        );
    }

    #[test]
    fn a_path_is_checked_again_after_a_minute_or_for_longer_packets() {
        let sizes = PathMtuChecks::default();
        let ask = |mtu, millis| begin(&sizes, mtu, millis);
        let answer = |step, millis| sizes.handle_answer(ROUTE, sequence_of(step), at(millis));
        answer(ask(Mtu::Mtu1024, 0), 0);
        assert_eq!(ask(Mtu::Mtu256, 59_999), CheckAction::Nothing);
        answer(ask(Mtu::Mtu4096, 2), 3);
        assert_eq!(ask(Mtu::Mtu4096, 60_002), CheckAction::Nothing);
        sequence_of(ask(Mtu::Mtu1024, 60_003));
    }

    #[test]
    fn a_question_of_the_peer_repeats_a_check_once() {
        let sizes = PathMtuChecks::default();
        assert_eq!(sizes.handle_question(ROUTE), CheckAction::Nothing);
        let first = sequence_of(begin(&sizes, Mtu::Mtu1024, 0));
        let second = sequence_of(sizes.handle_question(ROUTE));
        assert_eq!(sizes.handle_question(ROUTE), CheckAction::Nothing);
        assert_eq!(
            sizes.handle_answer(ROUTE, first, at(1)),
            CheckAction::Nothing
        );
        sizes.handle_answer(ROUTE, second, at(1));
        assert_eq!(begin(&sizes, Mtu::Mtu1024, 60_000), CheckAction::Nothing);
    }

    #[test]
    fn a_peer_that_never_answers_gets_few_questions() {
        let sizes = PathMtuChecks::default();
        let hour = (0..3_600_000).step_by(10);
        let asked = hour.filter(|&now| begin(&sizes, Mtu::Mtu1024, now) != CheckAction::Nothing);
        assert!((60..80).contains(&asked.count()));
    }
}
