//! Receiving: who polls does it, or who was woken by a peer, or the engine.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use smallvec::SmallVec;

use super::Nic;
use super::sockets::Sockets;
use super::unanswered::Unanswered;
use crate::address;
use crate::counters::{Counters, Tally};
use crate::descriptor;
use crate::engine::{Engine, Look};
use crate::memory::Piece;
use crate::multicast;
use crate::net::{Delivery, Inbox};
use crate::proto::{Arrival, Counter, Prospect, Time};
use crate::queue_pair::{QueuePair, Recent};
use crate::same_host::{self, Neighbourhood};
use crate::spin;
use crate::transfer::Brief;
use crate::wire::Run;

/// State of the one thread that is receiving.
pub(super) struct Receiver {
    inbox: Inbox,
    /// The queue pairs that got packets of this batch, or of one before and have not answered yet.
    pub(super) touched: Vec<Arc<QueuePair>>,
    unanswered: Unanswered,
    /// The queue pair that the last brief was for.
    recent: Recent,
    /// The peers of the host, as they are known here.
    neighbours: same_host::Known,
    sockets: Sockets,
    /// Counters of messages from peers of the host.
    tally: Tally,
}

impl Receiver {
    pub(super) fn new(counters: &Arc<Counters>) -> Self {
        Self {
            inbox: Inbox::new(),
            touched: Vec::new(),
            unanswered: Unanswered::default(),
            recent: Recent::default(),
            neighbours: same_host::Known::nobody(),
            sockets: Sockets::default(),
            tally: counters.tally(),
        }
    }
}

/// For whom the network is looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Care {
    /// A thread that polls, and will poll again.
    Poll,
    /// A thread that a peer woke: it does the work that it was woken for, and sends the answers itself.
    Wake,
    /// The engine, for nobody else may do it.
    Engine,
}

/// Of so many looks by one who polls all but one are at shared memory only.
const GLANCES: u32 = 8;

/// Looks that find packets before timers that are due run all the same.
const BACKLOG: u32 = 256;

/// Packets of the sockets that come together at most for their acknowledgement to wait: where more are under way it shall not.
const FEW: usize = 4;

/// After the burst with which so many packets of a batch have come they are answered, however many follow: a peer whose window is
/// not much larger has none left to send by then.
const ENOUGH: usize = 32;

/// Time to wait for a thread that is receiving, where something ends.
const PATIENCE: Duration = Duration::from_millis(10);

/// Batches that one who refused the engine fetches in its place.
pub(super) const OWED: usize = 4;

impl Nic {
    /// Looks after the network in place of the engine: takes one batch of packets from each socket, answers them, and
    /// runs the timers that are due. For one who polls and finds nothing. False: another thread is at it, nothing was
    /// done here.
    pub(crate) fn progress(&self) -> bool {
        if let Some(neighbourhood) = &self.neighbourhood {
            // Threads that poll at the same time may count as one poll.
            let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
            self.polls.store(polls, Ordering::Relaxed);
            if !polls.is_multiple_of(GLANCES) && self.glance(neighbourhood) {
                return true;
            }
        }
        let now = self.now();
        self.polled.store(now.as_nanos().max(1), Ordering::Relaxed);
        let looked = self.look_after(now, Care::Poll) != Look::Contended;
        if !looked {
            // The thread that is receiving may have lost its processor in the middle of it; polling on would keep it
            // off the processor.
            thread::yield_now();
        }
        looked
    }

    /// Fetches packets, and runs the timers that are due. The packets that the timers wait for may have come while this
    /// process was kept from running. So timers run when there are no more packets to fetch, or after so many that a
    /// peer floods this side. They do not run if another thread is fetching, which runs them itself. The engine does
    /// not sleep before they ran.
    pub(super) fn look_after(&self, now: Time, care: Care) -> Look {
        let is_due = (self.timers.earliest()).is_some_and(|earliest| earliest <= now);
        let look = self.fetch(now, if is_due { Care::Engine } else { care });
        if let Look::Done { fetched } = look
            && is_due
        {
            let looks = self.backlog.fetch_add(1, Ordering::Relaxed);
            if fetched == 0 || looks >= BACKLOG {
                self.backlog.store(0, Ordering::Relaxed);
                self.run_timers(now);
            }
        }
        look
    }

    /// Looks at shared memory, and nothing else. False: that is not enough.
    fn glance(&self, neighbourhood: &Neighbourhood) -> bool {
        let Some(mut receiver) = self.receiver.try_lock() else {
            return false;
        };
        neighbourhood.refresh_links(&mut receiver.neighbours);
        let links = receiver.neighbours.links();
        if links.is_empty() {
            return false;
        }
        if !receiver.touched.is_empty() || !links.iter().all(|link| link.is_quiet()) {
            self.receive_shared(&mut receiver, None, Care::Poll);
        }
        drop(receiver);
        // As in `fetch`.
        fence(Ordering::SeqCst);
        !self.refused.load(Ordering::Relaxed)
    }

    /// Receives, unless another thread does. If the engine came meanwhile and was refused, receives some more, because
    /// the packet that woke the engine does not wake it again. A thread that polls has other things to do, and the peer
    /// may be waiting for just those, so the engine receives the packets that are left then.
    fn fetch(&self, now: Time, mut care: Care) -> Look {
        let (mut fetched, mut batches, mut owed) = (0, 0, false);
        loop {
            let Some(mut receiver) = self.receiver.try_lock() else {
                return Look::Contended;
            };
            let received = self.receive(&mut receiver, now, care);
            drop(receiver);
            fetched += received;
            batches += 1;
            // The engine stores and then tries the lock; this is the same the other way around.
            fence(Ordering::SeqCst);
            let refused = self.refused.load(Ordering::Relaxed);
            if refused {
                self.refused.store(false, Ordering::Relaxed);
                // Packets that woke an engine which was refused before this are visible to the next look.
                fence(Ordering::SeqCst);
                (owed, care) = (true, Care::Engine);
            }
            if !owed || received == 0 && !refused {
                return Look::Done { fetched };
            }
            if batches > OWED {
                self.timers.sleeper().ring();
                return Look::Done { fetched };
            }
        }
    }

    fn receive(&self, receiver: &mut Receiver, now: Time, care: Care) -> usize {
        let is_quiet = care == Care::Wake;
        if let Some(neighbourhood) = &self.neighbourhood {
            neighbourhood.refresh_links(&mut receiver.neighbours);
        }
        if receiver.neighbours.links().is_empty() {
            // Acknowledgements that did not go with messages of the program go now.
            receiver.touched.retain(|queue_pair| queue_pair.owes());
            self.answer(|| now, &mut receiver.touched, is_quiet);
        }
        let shared = self.receive_shared(receiver, Some(now), care);
        let Receiver {
            inbox,
            touched,
            neighbours,
            sockets,
            ..
        } = receiver;
        let passes = !neighbours.links().is_empty() && sockets.rest(now, shared > 0);
        let received = if passes && care != Care::Engine || descriptor::has_lost() {
            0
        } else {
            let mut waiting = 0;
            let received = self.network.receive(inbox, |packets| {
                waiting += packets.count_together();
                for (arrival, run) in packets {
                    self.deliver(now, &arrival, &run, touched);
                }
                // The next burst is looked at while the peer, which has its answer to these, makes one more.
                if waiting >= ENOUGH {
                    waiting = 0;
                    self.answer(|| now, touched, is_quiet);
                }
            });
            if received > FEW || received > 0 && care != Care::Poll {
                self.answer(|| now, touched, is_quiet);
            } else if received > 0 {
                self.answer_later(now, touched);
            }
            sockets.looked(now, received);
            received
        };
        shared + received
    }

    /// Takes what came through shared memory, and has it answered; how much there was. Where the time is not known, it is looked
    /// for only if a packet came or goes: what briefs are waited for may take somewhat longer.
    fn receive_shared(&self, receiver: &mut Receiver, now: Option<Time>, care: Care) -> usize {
        let Receiver {
            touched,
            neighbours,
            unanswered,
            recent,
            tally,
            ..
        } = receiver;
        let is_quiet = care == Care::Wake;
        let (mut present, mut about) = (now, now);
        let mut now = || *present.get_or_insert_with(|| self.now());
        let mut coarse = || *about.get_or_insert_with(|| self.timers.coarse_now());
        let mut resumed = SmallVec::<[u32; 8]>::new();
        let mut is_urgent = false;
        let count = self.network.receive_shared(
            neighbours.links(),
            tally,
            |arrival, delivery| match delivery {
                Delivery::Packet(packet) => {
                    is_urgent = true;
                    self.deliver(now(), arrival, &Run::alone(*packet), touched);
                }
                Delivery::Brief(brief, chunks) => {
                    let said = (*brief, *chunks);
                    let prospect = self.deliver_brief(&mut coarse, arrival, said, touched, recent);
                    is_urgent |= prospect == Prospect::Urgent;
                }
            },
            |queue_pair| resumed.push(queue_pair),
        );
        for number in resumed {
            is_urgent = true;
            if let Some(queue_pair) = self.queue_pairs.find(number) {
                queue_pair.room_came();
                touch(touched, queue_pair);
            }
        }
        if is_urgent && care == Care::Poll {
            // A copy of a long message may have taken longer than the engine waits for a thread that polls.
            self.polled
                .store(self.now().as_nanos().max(1), Ordering::Relaxed);
        }
        if !touched.is_empty() {
            unanswered.looked(count);
            let may_wait = !is_urgent && care == Care::Poll && unanswered.may_wait();
            if !may_wait || !self.may_answer_later() {
                unanswered.answered();
                self.answer(now, touched, is_quiet);
            }
        }
        if !is_quiet {
            for link in neighbours.links().iter().filter(|link| link.owes_waking()) {
                link.flush();
            }
        }
        count
    }

    /// Lets queue pairs answer: once for all that came together.
    fn answer(
        &self,
        mut now: impl FnMut() -> Time,
        touched: &mut Vec<Arc<QueuePair>>,
        is_quiet: bool,
    ) {
        if self.owes_answers.load(Ordering::Relaxed) {
            self.owes_answers.store(false, Ordering::Relaxed);
        }
        for queue_pair in touched.drain(..) {
            let mut outbox = self.network.outbox().quiet(is_quiet);
            self.transmit_by(&queue_pair, &mut now, &mut outbox);
        }
    }

    /// Leaves acknowledgements to a later look where that may be; what else there is to say is said.
    pub(super) fn answer_later(&self, now: Time, touched: &mut Vec<Arc<QueuePair>>) {
        touched.retain(|queue_pair| {
            let rests = queue_pair.may_rest();
            if !rests {
                self.transmit_at(queue_pair, now);
            }
            rests
        });
        // Also where none is left: then nothing is owed any more.
        if touched.is_empty() || !self.may_answer_later() {
            self.answer(|| now, touched, false);
        }
    }

    /// Returns whether acknowledgements may be left to a later look. A thread that polls for a message looks at it at
    /// once, and often sends a message itself, which takes the acknowledgement along. If the thread does not look
    /// again, the engine does.
    fn may_answer_later(&self) -> bool {
        if !self.owes_answers.load(Ordering::Relaxed) {
            self.owes_answers.store(true, Ordering::Relaxed);
            // The engine says that it is not away, and then looks whether answers are owed.
            fence(Ordering::SeqCst);
        }
        self.engine.get().is_some_and(Engine::is_away)
    }

    /// Hands packets to the queue pair that they are for, or to all of the group.
    fn deliver(
        &self,
        now: Time,
        arrival: &Arrival,
        run: &Run<'_>,
        touched: &mut Vec<Arc<QueuePair>>,
    ) {
        let number = run.first().header.bth.destination;
        let to_group = multicast::canonical(arrival.destination).is_some();
        // The one goes with the other (IBTA 9.6.3).
        if to_group != (number == address::MULTICAST) {
            self.counters
                .count(Counter::Unaddressed, run.count() as u64);
        } else if to_group {
            for member in self.groups.members(arrival.destination) {
                member.receive(now, arrival, run);
                touch(touched, member);
            }
        } else if let Some(last) = touched.last().filter(|last| last.number() == number) {
            last.receive(now, arrival, run);
        } else if let Some(found) = self.queue_pairs.find(number) {
            found.receive(now, arrival, run);
            touch(touched, found);
        } else {
            self.counters
                .count(Counter::Unaddressed, run.count() as u64);
        }
    }

    fn deliver_brief(
        &self,
        now: impl FnOnce() -> Time,
        arrival: &Arrival,
        (brief, chunks): (&Brief<'_>, &[Piece<'_>]),
        touched: &mut Vec<Arc<QueuePair>>,
        recent: &mut Recent,
    ) -> Prospect {
        let number = brief.destination;
        if let Some(found) = self.queue_pairs.find_again(number, recent) {
            let prospect = found.receive_brief(now, arrival, brief, chunks);
            if prospect != Prospect::Nothing
                && !touched.iter().any(|known| Arc::ptr_eq(known, found))
            {
                touched.push(Arc::clone(found));
            }
            prospect
        } else {
            self.counters.count(Counter::Unaddressed, 1);
            Prospect::Nothing
        }
    }

    /// Answers all that is not answered yet, unless another thread receives for long.
    pub(super) fn answer_all(&self) {
        if let Some(mut receiver) = self.receiver_soon() {
            self.answer(|| self.now(), &mut receiver.touched, false);
        }
    }

    /// Forgets what it remembers of queue pairs, of which one is going away.
    pub(super) fn forget_recent(&self) {
        if let Some(mut receiver) = self.receiver_soon() {
            receiver.recent = Recent::default();
        }
    }

    /// Returns the receiver, unless another thread keeps it for long.
    fn receiver_soon(&self) -> Option<spin::MutexGuard<'_, Receiver>> {
        let deadline = self.now() + PATIENCE;
        loop {
            let receiver = self.receiver.try_lock();
            if receiver.is_some() || self.now() > deadline {
                return receiver;
            }
            thread::yield_now();
        }
    }
}

fn touch(touched: &mut Vec<Arc<QueuePair>>, queue_pair: Arc<QueuePair>) {
    if !touched.iter().any(|known| Arc::ptr_eq(known, &queue_pair)) {
        touched.push(queue_pair);
    }
}
