use std::time::Duration;

use crate::proto::endpoint::{Endpoint, MULTICAST};
use crate::proto::timer::Pacer;
use crate::proto::{Path, Sequence, Time, receipt};
use crate::wire::{Deth, Operation};

/// How much of an unreliable service may go: as much as the peer is known to have taken from its socket and a window
/// more, if it is of those that [tell](crate::proto::receipt); else bursts with pauses.
#[derive(Debug)]
pub(super) struct Flow {
    /// All before it is taken, or nothing is known of it any more.
    taken: Sequence,
    /// The number after the newest packet.
    next: Sequence,
    /// Packets since the last question.
    unasked: u32,
    /// A question follows the next packet.
    asks_soon: bool,
    /// A question that is to go.
    question: Option<Question>,
    /// What the last question was about.
    asked: Option<Sequence>,
    /// When an answer is waited for no longer.
    patience: Option<Time>,
    /// Questions in a row that were waited for in vain.
    misses: u32,
    pacer: Pacer,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    path: Path,
    destination: u32,
    sequence: Sequence,
}

/// The time that a packet has to a peer that tells nothing.
const INTERVAL: Duration = Duration::from_micros(2);

/// How long to wait for an answer: a program may not run for so long on a busy machine.
const PATIENCE: Duration = Duration::from_millis(50);

/// A peer that does not answer so often is none of ours.
const MISSES: u32 = 3;

/// Windows after which such a peer is asked again.
const SELDOM: u32 = 16;

impl Flow {
    /// Before the packet `sequence`.
    pub(super) fn new(sequence: Sequence) -> Self {
        Self {
            taken: sequence,
            next: sequence,
            unasked: 0,
            asks_soon: false,
            question: None,
            asked: None,
            patience: None,
            misses: 0,
            pacer: Pacer::default(),
        }
    }

    fn tells(&self) -> bool {
        self.misses < MISSES
    }

    /// Whether a packet may go to `destination` now.
    pub(super) fn may_send(&mut self, destination: u32, window: u32, now: Time) -> bool {
        if self.tells() && destination != MULTICAST {
            self.pacer.forget();
            let on_the_way = self.next.distance(self.taken).max(0) as u32;
            if on_the_way < window || !self.is_asked() {
                self.patience = None;
                return true;
            }
            if now < *self.patience.get_or_insert(now + PATIENCE) {
                return false;
            }
            self.misses += 1;
            self.taken = self.next;
            self.patience = None;
            if self.tells() {
                return true;
            }
        }
        self.pacer.take(now, window, INTERVAL)
    }

    /// A packet went.
    pub(super) fn sent(&mut self, sequence: Sequence, path: Path, destination: u32, window: u32) {
        self.next = sequence.next();
        self.unasked += 1;
        let every = if self.tells() {
            window / 2
        } else {
            window.saturating_mul(SELDOM)
        };
        if (self.unasked >= every || self.asks_soon) && destination != MULTICAST {
            self.unasked = 0;
            self.asks_soon = false;
            self.question = Some(Question {
                path,
                destination,
                sequence,
            });
        }
    }

    /// A packet's number was used up without a packet.
    pub(super) fn skipped(&mut self, sequence: Sequence) {
        if self.taken == self.next {
            self.taken = sequence.next();
        }
        self.next = sequence.next();
    }

    /// Returns whether nothing is on the way, as far as is known.
    pub(super) fn is_settled(&self) -> bool {
        self.taken == self.next
    }

    /// Makes a question follow the next packet, unless an answer is waited for.
    pub(super) fn ask_soon(&mut self) {
        self.asks_soon = !self.is_asked();
    }

    /// Returns whether an answer is waited for.
    fn is_asked(&self) -> bool {
        (self.asked).is_some_and(|asked| asked.distance(self.taken) >= 0)
    }

    /// Whether a question is due.
    pub(super) fn asks(&self) -> bool {
        self.question.is_some()
    }

    /// Appends a question that is due.
    pub(super) fn poll_transmit(&mut self, endpoint: &Endpoint, out: &mut Vec<u8>) -> Option<Path> {
        let question = self.question.take()?;
        self.asked = Some(question.sequence);
        let mut header = receipt::header(endpoint, Operation::SendOnly, question.sequence);
        header.bth.destination = question.destination;
        header.deth = Some(Deth {
            queue_key: endpoint.attributes.queue_key,
            source: endpoint.number,
        });
        header.emit(out);
        Some(question.path)
    }

    /// The peer has taken all up to `sequence`.
    pub(super) fn receipt(&mut self, sequence: Sequence) {
        let old = sequence.distance(self.taken) < 0;
        if old || sequence.distance(self.next) >= 0 {
            return;
        }
        // To a peer that did not tell more went than a window.
        self.taken = if self.tells() {
            sequence.next()
        } else {
            self.next
        };
        self.misses = 0;
        self.patience = None;
        self.pacer.forget();
    }

    /// When to go on at the latest.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let times = [self.patience, self.pacer.again()];
        times.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::{Flow, MISSES, PATIENCE};
    use crate::proto::testing::path;
    use crate::proto::{Sequence, Time};

    const WINDOW: u32 = 8;

    /// Sends as much as may go.
    fn send(flow: &mut Flow, now: Time) -> u32 {
        let mut sent = 0;
        while sent < 1000 && flow.may_send(2, WINDOW, now) {
            let sequence = flow.next;
            flow.sent(sequence, path(), 2, WINDOW);
            if let Some(question) = flow.question.take() {
                flow.asked = Some(question.sequence);
            }
            sent += 1;
        }
        sent
    }

    #[test]
    fn a_window_goes_and_what_was_taken() {
        let mut flow = Flow::new(Sequence::new(0xff_fffe));
        let now = Time::default();
        assert_eq!(send(&mut flow, now), 8);
        assert_eq!(flow.asked, Some(Sequence::new(5)));
        flow.receipt(Sequence::new(1));
        assert_eq!(send(&mut flow, now), 4);
        // Old, and from the future.
        flow.receipt(Sequence::new(1));
        flow.receipt(Sequence::new(100));
        assert_eq!(send(&mut flow, now), 0);
    }

    #[test]
    fn a_peer_that_never_tells_gets_bursts() {
        let mut flow = Flow::new(Sequence::new(0));
        let mut now = Time::default();
        assert_eq!(send(&mut flow, now), 8);
        for _ in 1..MISSES {
            let due = flow.next_timeout().unwrap();
            assert_eq!(due, now + PATIENCE);
            now = due;
            assert_eq!(send(&mut flow, now), 8);
        }
        now = flow.next_timeout().unwrap();
        let begin = now;
        let mut sent = 0;
        while now - begin < PATIENCE {
            sent += send(&mut flow, now);
            now = flow.next_timeout().unwrap();
        }
        assert!(sent > 20_000, "{sent}");
        // It tells after all.
        flow.receipt(Sequence::new(200));
        assert_eq!(send(&mut flow, now), 8);
        assert_eq!(flow.misses, 0);
    }
}
