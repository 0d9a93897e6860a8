#![forbid(unsafe_code)]
//! Trials of bursts: the proof, for each peer, that the packets of a burst arrive with a valid
//! ICRC.
//!
//! The kernel or the network card splits a burst into datagrams and numbers them in the
//! identification of their IPv4 headers. The ICRC covers this field. The sender computes the ICRC
//! for the numbers that Linux assigns, but a network card that splits bursts may assign other
//! numbers. A peer of this crate accepts a packet whose ICRC is valid for any identification,
//! because a UDP socket does not report the field. Kernel drivers and network cards check the
//! field.
//!
//! So bursts are sent over IPv4 to other hosts only after a trial: a burst of two packets whose
//! opcode is reserved for manufacturers. A peer of this crate answers the second packet, which
//! shows that it received the packet with an ICRC that it accepts. Other implementations drop both
//! packets (IBTA 9.2.1, 9.7.2). A trial is repeated after a change of the host's routes, and at
//! intervals, because the route may also change elsewhere.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;

use super::network::Network;
use super::outbox::{Batch, Outbox};
use super::route::{Batching, gid_of};
use crate::address;
use crate::config::Segmentation;
use crate::number;
use crate::proto::{Arrival, Path, Time};
use crate::random;
use crate::wire::{Aeth, Bth, Deth, Header, Opcode, Operation, Syndrome, Transport};

/// Lower bits of the queue pair number from which and to which test packets are sent. The higher
/// bits identify the UDP port of the device. A program's queue pair never has such a number: the
/// value 1 is reserved for the general services interface. So test packets never reach a program.
const TRIAL_QUEUE_PAIR: u32 = 1;

/// Opcode of a packet by which a device requests an answer from another device. The answer shows
/// that the packet has arrived, in trials (test bursts) and in [checks of the path
/// MTU](super::path_mtu_checks).
const QUESTION: Opcode = Opcode::new(Transport::Manufacturer, Operation::SendOnly);

/// Opcode of the packet by which a peer answers a [`QUESTION`] packet. The answer shows that the
/// [`QUESTION`] packet has arrived, and has the same sequence number.
const ANSWER: Opcode = Opcode::new(Transport::Manufacturer, Operation::Acknowledge);

/// A burst of two test packets that must be sent now. A burst is a message that the kernel splits
/// into datagrams. Packets are sent to a peer in bursts only after the peer has answered such a
/// test.
pub(super) struct DueTrial {
    path: Path,
    /// Queue pair number to which the trial's packets are sent.
    destination: u32,
    /// Sequence number of the first packet.
    sequence: u32,
}

/// Local IP address and IP address of the peer: the key by which the state of trials is stored. A
/// trial tests whether the peer accepts bursts.
type Route = (IpAddr, IpAddr);

/// Results and times of the [trials](self) for each pair of a local and a peer's IP address. A
/// trial is a burst of two test packets, which shows whether the peer accepts bursts (messages that
/// the kernel splits into datagrams).
#[derive(Debug, Default)]
pub(super) struct Trials(Mutex<HashMap<Route, Trial>>);

#[derive(Debug)]
struct Trial {
    /// Set if a trial (test burst) was answered recently, so that bursts may be sent on the route.
    is_proven: bool,
    /// Sequence number of the first packet of the last trial (test burst), which is even. The
    /// second packet has the next number.
    sequence: u32,
    /// Number of trials since the last answer. After too many unanswered trials, no bursts are
    /// sent.
    unanswered: u32,
    /// Time from which the next trial may be sent.
    due: Time,
}

/// Time to wait for the answer to the first trial (burst of test packets). The time doubles with
/// each unanswered trial, because a peer that is not a softroce device never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(20);

/// Maximum time between two trials to a peer that does not answer. A trial tests whether the peer
/// accepts bursts. If such a peer begins to answer, this is detected after this time at most.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Time after which a peer must be tested again before the peer gets further bursts (messages that
/// the kernel splits into datagrams). Tests are repeated because the path to the peer can change,
/// and the new path can lose bursts.
const RENEWAL: Duration = Duration::from_secs(1);

/// Number of unanswered trials (bursts of test packets) after which packets are no longer sent to
/// the peer in bursts. Bursts are used again after a trial that the peer answers. The number is
/// more than 1, because a single trial or answer can be lost for other reasons.
const MAX_MISSES: u32 = 3;

/// Maximum number of routes whose trials are remembered, which bounds the memory. A route is a pair
/// of a local and a peer's IP address. When the table is full, a new route replaces the route whose
/// next trial is due first.
const MAX_ROUTES: usize = 4096;

impl Trials {
    /// Returns whether bursts (messages that the kernel splits into datagrams) may be sent from the
    /// address `local` to `peer`. The peer must have answered a test burst, which shows that the
    /// burst arrived with a valid checksum.
    pub(super) fn is_proven(&self, local: IpAddr, peer: IpAddr) -> bool {
        let trials = self.0.lock();
        (trials.get(&(local, peer))).is_some_and(|trial| trial.is_proven)
    }

    /// Forgets all trials (test bursts), so that bursts are sent only after a new trial has
    /// succeeded. Answers to earlier trials are ignored. Called when the host's routes have
    /// changed.
    pub(super) fn forget_all(&self) {
        self.0.lock().clear();
    }

    /// Begins a trial, if one is due at `now`: a test whether `peer` accepts bursts from the
    /// address `local`. Returns the sequence number of the first of the two packets that the caller
    /// must send. Returns `None` if no trial is due.
    pub(super) fn begin(&self, local: IpAddr, peer: IpAddr, now: Time) -> Option<u32> {
        let route = (local, peer);
        let mut trials = self.0.lock();
        if !trials.contains_key(&route) && trials.len() >= MAX_ROUTES {
            let oldest = trials.iter().min_by_key(|(_, trial)| trial.due);
            if let Some((&oldest, _)) = oldest {
                trials.remove(&oldest);
            }
        }
        let trial = trials.entry(route).or_insert(Trial {
            is_proven: false,
            sequence: 0,
            unanswered: 0,
            due: now,
        });
        if now < trial.due {
            return None;
        }
        trial.is_proven &= trial.unanswered < MAX_MISSES;
        let wait = ANSWER_TIMEOUT.saturating_mul(1 << trial.unanswered.min(16));
        trial.due = now + wait.min(MAX_WAIT);
        trial.unanswered = trial.unanswered.saturating_add(1);
        // Unpredictable, so that no third host can answer.
        let [word] = random::words();
        trial.sequence = word as u32 & 0xff_fffe;
        Some(trial.sequence)
    }

    /// Records that `peer` has answered the packet `sequence` of a test burst, so that bursts may
    /// be sent to `peer`. Ignores an answer unless it is to the second packet of the last test
    /// burst. The kernel gives a number to each datagram of a burst, and the checksum (ICRC)
    /// depends on this number. Only the second packet proves that the peer accepts the checksum of
    /// later datagrams.
    pub(super) fn record_answer(&self, local: IpAddr, peer: IpAddr, sequence: u32, now: Time) {
        if let Some(trial) = self.0.lock().get_mut(&(local, peer))
            && trial.unanswered > 0
            && sequence == trial.sequence + 1
        {
            trial.is_proven = true;
            trial.unanswered = 0;
            trial.due = now + RENEWAL;
        }
    }
}

impl Network {
    /// Returns the test burst that the caller must send after `batch`, to the destination of the
    /// first packet of `batch`. A burst is a message that the kernel splits into datagrams. Returns
    /// `None` if no test is due. Also returns `None` if packets of `batch` would not be sent as a
    /// burst even after a successful test.
    pub(super) fn due_trial(&self, batch: &Batch) -> Option<DueTrial> {
        if self.segmentation != Segmentation::Peers {
            return None;
        }
        let parameters = batch.first_of_several()?;
        let local_address = self.local_address(parameters.endpoint)?;
        if parameters.batching != Batching::Numbered || !local_address.socket()?.sends_bursts() {
            return None;
        }
        let (local, peer) = (local_address.local.ip(), parameters.to.ip());
        let sequence = self.trials.begin(local, peer, self.timers.now())?;
        Some(DueTrial {
            path: path(parameters.endpoint as u8, gid_of(peer)),
            destination: number_of(address::slot_of_port(self.base, parameters.to.port())?),
            sequence,
        })
    }

    /// Sends the two packets of `trial`, a test whether a peer accepts bursts, as a burst (message
    /// that the kernel splits into datagrams). A peer that accepts packets of bursts then sends an
    /// answer.
    pub(super) fn send_trial(&self, trial: &DueTrial) {
        let mut outbox = self.outbox();
        for sequence in [trial.sequence, trial.sequence + 1] {
            self.ask(&mut outbox, (trial.path, trial.destination), sequence, 0);
        }
        outbox.make_trial();
    }

    /// Adds a test packet to the outbox. A test packet with an odd sequence number requests an
    /// answer, which shows that the packet has arrived. The packet has `padding` payload bytes, and
    /// is sent on `path` to the queue pair number `destination`.
    pub(super) fn ask(
        &self,
        outbox: &mut Outbox<'_>,
        (path, destination): (Path, u32),
        sequence: u32,
        padding: usize,
    ) {
        let mut header = Header::new(Bth::new(QUESTION, destination, sequence));
        header.deth = Some(Deth {
            queue_key: 0,
            source: number_of(self.slot()),
        });
        outbox.push(|out| {
            header.emit(out);
            out.resize(out.len() + padding, 0);
            Some(path)
        });
    }

    /// Handles a received test packet: answers a test packet of the peer, or records the peer's
    /// answer. The tests are those of [bursts](self) and of the [path MTU](super::path_mtu_checks).
    /// `local` is the IP address at which the packet arrived. Returns `false` for any other packet,
    /// which belongs to a queue pair.
    pub(super) fn receive_trial(&self, local: IpAddr, arrival: &Arrival, header: &Header) -> bool {
        let Bth {
            opcode,
            destination,
            sequence,
            ..
        } = header.bth;
        if opcode.transport != Transport::Manufacturer || destination != number_of(self.slot()) {
            return false;
        }
        if opcode == QUESTION
            && sequence % 2 == 1
            && let Some(deth) = header.deth
        {
            let mut answer = Header::new(Bth::new(ANSWER, deth.source, sequence));
            answer.aeth = Some(Aeth {
                syndrome: Syndrome::Ack { credits: 31 },
                message_sequence: 0,
            });
            self.outbox().push(|out| {
                answer.emit(out);
                Some(path(arrival.local, arrival.source))
            });
            let route = (local, arrival.source.to_canonical());
            self.continue_check(route, self.path_mtu_checks.handle_question(route));
        } else if opcode == ANSWER {
            let (peer, now) = (arrival.source.to_canonical(), self.timers.now());
            self.trials.record_answer(local, peer, sequence, now);
            let route = (local, peer);
            self.continue_check(
                route,
                self.path_mtu_checks.handle_answer(route, sequence, now),
            );
        }
        true
    }
}

/// Returns the queue pair number to which test packets (trials) for a device are sent. The number
/// identifies the device by its slot (index of its UDP port). No queue pair of a program has this
/// number.
pub(super) fn number_of(slot: u8) -> u32 {
    u32::from(slot) << number::BITS | TRIAL_QUEUE_PAIR
}

fn path(source: u8, destination: Ipv6Addr) -> Path {
    Path {
        source,
        destination,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn at(millis: u64) -> Time {
        Time::default() + Duration::from_millis(millis)
    }

    #[test]
    fn the_second_packet_proves_a_route_until_trials_are_unanswered() {
        let trials = Trials::default();
        let first = trials.begin(LOCAL, PEER, at(0)).unwrap();
        assert!(trials.begin(LOCAL, PEER, at(19)).is_none());
        // The first packet is numbered like a packet that is sent alone.
        trials.record_answer(LOCAL, PEER, first, at(1));
        assert!(!trials.is_proven(LOCAL, PEER));
        trials.record_answer(PEER, LOCAL, first + 1, at(1));
        assert!(!trials.is_proven(LOCAL, PEER));
        trials.record_answer(LOCAL, PEER, first + 1, at(1));
        assert!(trials.is_proven(LOCAL, PEER));

        assert!(trials.begin(LOCAL, PEER, at(1000)).is_none());
        let mut sent = Vec::new();
        for now in 1001..10_000 {
            if trials.begin(LOCAL, PEER, at(now)).is_some() {
                sent.push(now);
            }
            let expected = sent.len() <= MAX_MISSES as usize;
            assert_eq!(trials.is_proven(LOCAL, PEER), expected);
        }
        assert_eq!(sent[..5], [1001, 1021, 1061, 1141, 1301]);
        // An old answer proves nothing.
        trials.record_answer(LOCAL, PEER, first + 1, at(10_000));
        assert!(!trials.is_proven(LOCAL, PEER));
    }

    #[test]
    fn a_forgotten_trial_proves_nothing_and_the_next_is_due_at_once() {
        let trials = Trials::default();
        let first = trials.begin(LOCAL, PEER, at(0)).unwrap();
        trials.record_answer(LOCAL, PEER, first + 1, at(1));
        assert!(trials.is_proven(LOCAL, PEER));
        trials.forget_all();
        assert!(!trials.is_proven(LOCAL, PEER));
        trials.record_answer(LOCAL, PEER, first + 1, at(2));
        assert!(!trials.is_proven(LOCAL, PEER));
        assert!(trials.begin(LOCAL, PEER, at(2)).is_some());
    }

    #[test]
    fn a_peer_that_never_answers_gets_few_trials() {
        let trials = Trials::default();
        let hour = (0..3_600_000).step_by(10);
        let sent = hour.filter(|&now| trials.begin(LOCAL, PEER, at(now)).is_some());
        assert!((60..80).contains(&sent.count()));
    }

    #[test]
    fn the_number_of_routes_is_bounded() {
        let trials = Trials::default();
        for host in 0..2 * MAX_ROUTES as u32 {
            trials.begin(LOCAL, Ipv4Addr::from(host).into(), at(host.into()));
        }
        assert_eq!(trials.0.lock().len(), MAX_ROUTES);
    }
}
