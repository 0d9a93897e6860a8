//! Receiving of packets, and of messages through shared memory. The thread that receives is one
//! that polls, one that a peer process has woken, or the engine.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::Duration;

use smallvec::SmallVec;

use super::Nic;
use super::socket_schedule::SocketSchedule;
use super::unacknowledged::UnacknowledgedMessages;
use crate::address;
use crate::counters::{Counters, Tally};
use crate::descriptor;
use crate::engine::{Engine, ReceiveAttempt};
use crate::memory::Piece;
use crate::multicast;
use crate::net::{Delivery, Inbox};
use crate::proto::{Arrival, Counter, Service, Time, TransmitUrgency};
use crate::queue_pair::{QueuePair, Recent};
use crate::same_host::{self, HostPeers};
use crate::spin;
use crate::transfer::RingMessage;
use crate::wire::Run;

/// State that a thread needs to receive packets and messages: buffers, caches for the lookup of
/// queue pairs and peers, and the queue pairs that must respond. The lock around this value ensures
/// that only one thread receives at a time.
pub(super) struct Receiver {
    inbox: Inbox,
    /// Queue pairs that have received packets and not sent the responses yet.
    pub(super) responders: Vec<Arc<QueuePair>>,
    unanswered: UnacknowledgedMessages,
    /// Cache of the queue pairs that received the last messages through shared memory. While a
    /// queue pair is in the cache, delivering a message to the queue pair needs no lookup under a
    /// lock.
    recent: Recent,
    /// Cached list of the links (shared memory) to peer processes on the same host.
    host_peers: same_host::CachedLinks,
    sockets: SocketSchedule,
    /// Counters of the messages that arrive through shared memory, which the device's counters
    /// include.
    tally: Tally,
}

impl Receiver {
    pub(super) fn new(counters: &Arc<Counters>) -> Self {
        Self {
            inbox: Inbox::new(),
            responders: Vec::new(),
            unanswered: UnacknowledgedMessages::default(),
            recent: Recent::default(),
            host_peers: same_host::CachedLinks::empty(),
            sockets: SocketSchedule::default(),
            tally: counters.tally(),
        }
    }
}

/// Kind of the thread that receives packets: a polling thread, a thread that a peer has woken, or
/// the engine (background thread). The kind determines which responses the thread may delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivingThread {
    /// A thread of the program that polls a completion queue, and is expected to poll again.
    Poll,
    /// A thread of the program that waited for a completion event until a peer woke it. The thread
    /// receives the messages for which it was woken, and sends the responses itself.
    Wake,
    /// The engine (background thread of the device). No other thread can be relied on to receive.
    Engine,
}

/// Number of polls from one check of the sockets by a polling thread to the next. The other polls
/// check only shared memory, which needs no system call. With a larger number, packets would wait
/// longer. With a smaller number, polls would take longer.
const CHECK_INTERVAL: u32 = 8;

/// Maximum number of consecutive receive attempts that find packets while due timers wait. After
/// this number, the timers run even if more packets are waiting. So a peer that sends without end
/// cannot delay the timers forever.
const MAX_BACKLOG: u32 = 256;

/// Maximum number of packets that a thread may receive from sockets in one call and still delay the
/// acknowledgement. If more packets arrive together, the peer is probably sending many packets in a
/// sequence, so the acknowledgement is sent immediately.
const MAX_DELAYED: usize = 4;

/// Number of received packets after which responses are sent, even if more packets follow. A peer
/// whose window (limit of packets in flight) is small may be waiting for an acknowledgement.
const RESPONSE_BATCH: usize = 32;

/// Maximum time to wait until another thread stops receiving, when an object is destroyed or the
/// process ends. The other thread can take long because the scheduler has interrupted it. After
/// this time, the caller omits the work for which receiving must stop.
const LOCK_TIMEOUT: Duration = Duration::from_millis(10);

/// Maximum number of batches of packets that a polling thread receives on behalf of the engine
/// (background thread). The limit keeps the poll short, and the engine receives the rest.
pub(super) const MAX_BATCHES_FOR_ENGINE: usize = 4;

/// Maximum time for which a queue pair that enters the error state waits for acknowledgements. A
/// peer that disconnects at the same time sends its last acknowledgements within this time. A peer
/// that has ended sends no acknowledgements. So a longer time would only delay the program, once
/// for each queue pair.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_micros(200);

impl Nic {
    /// Receives one batch of packets, sends the responses, and runs due timers. When a poll finds
    /// no completion, the polling thread of the program calls this function, in place of the engine
    /// (background thread). Does nothing and returns `false` if another thread is receiving.
    pub(crate) fn progress(&self) -> bool {
        if let Some(host_peers) = &self.host_peers {
            // A lost increment is harmless: two threads that poll at the same time may count as
            // one.
            let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
            self.polls.store(polls, Ordering::Relaxed);
            if !polls.is_multiple_of(CHECK_INTERVAL) && self.receive_shared_only(host_peers) {
                return true;
            }
        }
        let now = self.now();
        self.polled.store(now.as_nanos().max(1), Ordering::Relaxed);
        let looked =
            self.receive_and_run_timers(now, ReceivingThread::Poll) != ReceiveAttempt::Contended;
        if !looked {
            // The thread that is receiving may have been descheduled; further polling would keep it
            // off the processor.
            thread::yield_now();
        }
        looked
    }

    /// Receives packets until all requests of the connected queue pair `queue_pair` have completed,
    /// for at most [`ACKNOWLEDGEMENT_TIMEOUT`]. Called before the queue pair flushes its requests.
    /// So a request that the peer has already executed completes with success. A NIC has the same
    /// result, because it acknowledges a request on arrival.
    pub(crate) fn await_acknowledgements(&self, queue_pair: &QueuePair) {
        if queue_pair.service() != Service::ReliableConnection {
            return;
        }
        let deadline = self.now() + ACKNOWLEDGEMENT_TIMEOUT;
        while queue_pair.has_outstanding_requests() && self.now() < deadline {
            self.progress();
        }
    }

    /// Receives packets, and then runs due timers. `care` is the kind of the calling thread. If
    /// another thread is receiving, returns immediately, because that thread runs the timers.
    ///
    /// Timers run only if no packet was received, because an unread packet may make a timeout
    /// unnecessary. After [`MAX_BACKLOG`] attempts that received packets, the timers run in any
    /// case.
    pub(super) fn receive_and_run_timers(
        &self,
        now: Time,
        care: ReceivingThread,
    ) -> ReceiveAttempt {
        let is_due = (self.timers.earliest()).is_some_and(|earliest| earliest <= now);
        let look = self.fetch(
            now,
            if is_due {
                ReceivingThread::Engine
            } else {
                care
            },
        );
        if let ReceiveAttempt::Done { fetched } = look
            && is_due
        {
            let looks = self.backlog.fetch_add(1, Ordering::Relaxed);
            if fetched == 0 || looks >= MAX_BACKLOG {
                self.backlog.store(0, Ordering::Relaxed);
                self.run_timers(now);
            }
        }
        look
    }

    /// Receives messages and packets from shared memory only, without a system call. Polling
    /// threads call this function for most polls, and check the sockets only in some polls. Returns
    /// `false` if the caller must receive from the sockets as well.
    fn receive_shared_only(&self, host_peers: &HostPeers) -> bool {
        let Some(mut receiver) = self.receiver.try_lock() else {
            return false;
        };
        host_peers.refresh_links(&mut receiver.host_peers);
        let links = receiver.host_peers.links();
        if links.is_empty() {
            return false;
        }
        if !receiver.responders.is_empty() || !links.iter().all(|link| link.is_idle()) {
            self.receive_shared(&mut receiver, None, ReceivingThread::Poll);
        }
        drop(receiver);
        // This fence pairs with the engine's store of `refused`, as in `fetch`.
        fence(Ordering::SeqCst);
        !self.refused.load(Ordering::Relaxed)
    }

    /// Receives one batch of packets. Returns [`ReceiveAttempt::Contended`] if another thread is
    /// receiving. `care` is the kind of the calling thread, or [`ReceivingThread::Engine`] if
    /// timers are due. With [`ReceivingThread::Engine`], all sockets are checked, and no response
    /// is delayed.
    ///
    /// If a packet wakes the engine (background thread) during this call, the engine cannot receive
    /// the packet, and is not woken for the packet again. This thread then receives up to
    /// [`MAX_BATCHES_FOR_ENGINE`] more batches in place of the engine. If more packets are perhaps
    /// left, wakes the engine to receive them.
    fn fetch(&self, now: Time, mut care: ReceivingThread) -> ReceiveAttempt {
        let (mut fetched, mut batches, mut owed) = (0, 0, false);
        loop {
            let Some(mut receiver) = self.receiver.try_lock() else {
                return ReceiveAttempt::Contended;
            };
            let received = self.receive(&mut receiver, now, care);
            drop(receiver);
            fetched += received;
            batches += 1;
            // The engine stores `refused` and then tries the lock. Here the order is reversed, so
            // one of the two threads sees the other.
            fence(Ordering::SeqCst);
            let refused = self.refused.load(Ordering::Relaxed);
            if refused {
                self.refused.store(false, Ordering::Relaxed);
                // Packets that arrived before this fence, and that woke the engine in vain, are
                // visible in the next iteration.
                fence(Ordering::SeqCst);
                (owed, care) = (true, ReceivingThread::Engine);
            }
            if !owed || received == 0 && !refused {
                return ReceiveAttempt::Done { fetched };
            }
            if batches > MAX_BATCHES_FOR_ENGINE {
                self.timers.sleeper().signal();
                return ReceiveAttempt::Done { fetched };
            }
        }
    }

    fn receive(&self, receiver: &mut Receiver, now: Time, care: ReceivingThread) -> usize {
        let is_quiet = care == ReceivingThread::Wake;
        if let Some(host_peers) = &self.host_peers {
            host_peers.refresh_links(&mut receiver.host_peers);
        }
        if receiver.host_peers.links().is_empty() {
            // Acknowledgements that were delayed are sent now, unless a message of the program has
            // carried them.
            receiver.responders.retain(|pair| pair.must_acknowledge());
            self.send_responses(|| now, &mut receiver.responders, is_quiet);
        }
        let shared = self.receive_shared(receiver, Some(now), care);
        let Receiver {
            inbox,
            responders,
            host_peers,
            sockets,
            ..
        } = receiver;
        let passes = !host_peers.links().is_empty() && sockets.may_omit(now, shared > 0);
        let received = if passes && care != ReceivingThread::Engine || descriptor::has_lost() {
            0
        } else {
            let (mut now, mut waiting) = (now, 0);
            let is_thorough = care == ReceivingThread::Engine;
            let received = self.network.receive(inbox, is_thorough, |packets| {
                // This thread may have been preempted since the time was read. A round trip that
                // ends too early would count as the shortest one for seconds.
                now = self.now();
                waiting += packets.datagrams();
                for (arrival, run) in packets {
                    self.deliver(now, &arrival, &run, responders);
                }
                // The responses to this burst are sent while the peer sends more packets.
                if waiting >= RESPONSE_BATCH {
                    waiting = 0;
                    self.send_responses(|| now, responders, is_quiet);
                }
            });
            if received > MAX_DELAYED || received > 0 && care != ReceivingThread::Poll {
                self.send_responses(|| now, responders, is_quiet);
            } else if received > 0 {
                self.send_undelayed_responses(now, responders);
            }
            sockets.record_check(now, received);
            received
        };
        shared + received
    }

    /// Receives packets and messages from shared memory, and returns their number. Sends the
    /// responses. A polling thread can delay acknowledgements, so that messages of the program can
    /// include them. `care` is the kind of the calling thread. `receiver` is the state of the
    /// thread that receives, which the caller must have locked.
    ///
    /// `now` is the present time, or `None` if the caller has not read the clock. Without `now`,
    /// the exact time is read for packets. For messages without packet headers, the coarse time is
    /// read, which is cheaper.
    fn receive_shared(
        &self,
        receiver: &mut Receiver,
        now: Option<Time>,
        care: ReceivingThread,
    ) -> usize {
        let Receiver {
            responders,
            host_peers,
            unanswered,
            recent,
            tally,
            ..
        } = receiver;
        let is_quiet = care == ReceivingThread::Wake;
        let (mut present, mut about) = (now, now);
        let mut now = || *present.get_or_insert_with(|| self.now());
        let mut coarse = || *about.get_or_insert_with(|| self.timers.coarse_now());
        let mut resumed = SmallVec::<[u32; 8]>::new();
        let mut is_urgent = false;
        let count = self.network.receive_shared(
            host_peers.links(),
            tally,
            |arrival, delivery| match delivery {
                Delivery::Packet(packet) => {
                    is_urgent = true;
                    self.deliver(now(), arrival, &Run::of_packet(*packet), responders);
                }
                Delivery::RingMessage(ring_message, chunks) => {
                    let said = (*ring_message, *chunks);
                    let transmit_urgency =
                        self.deliver_ring_message(&mut coarse, arrival, said, responders, recent);
                    is_urgent |= transmit_urgency == TransmitUrgency::Urgent;
                }
            },
            |queue_pair| resumed.push(queue_pair),
        );
        for number in resumed {
            is_urgent = true;
            if let Some(queue_pair) = self.queue_pairs.find(number) {
                queue_pair.space_available();
                add_responder(responders, queue_pair);
            }
        }
        if is_urgent && care == ReceivingThread::Poll {
            // Copying a long message may have taken so long that the engine would assume that no
            // thread polls.
            self.polled
                .store(self.now().as_nanos().max(1), Ordering::Relaxed);
        }
        if !responders.is_empty() {
            unanswered.attempted(count);
            let may_wait = !is_urgent
                && care == ReceivingThread::Poll
                && unanswered.may_wait(responders.len());
            if !may_wait || !self.may_delay_responses() {
                unanswered.acknowledged();
                self.send_responses(now, responders, is_quiet);
            }
        }
        if !is_quiet {
            for link in host_peers.links().iter().filter(|link| link.must_wake()) {
                link.flush();
            }
        }
        count
    }

    /// Sends the responses of the queue pairs `responders`: one response for all packets that a
    /// queue pair received. `now` returns the present time. If `is_quiet` is set, peer processes
    /// that share memory are not woken yet.
    fn send_responses(
        &self,
        mut now: impl FnMut() -> Time,
        responders: &mut Vec<Arc<QueuePair>>,
        is_quiet: bool,
    ) {
        if self.owes_answers.load(Ordering::Relaxed) {
            self.owes_answers.store(false, Ordering::Relaxed);
        }
        for queue_pair in responders.drain(..) {
            let mut outbox = self.network.outbox().deferring_wakeups(is_quiet);
            self.transmit_by(&queue_pair, &mut now, &mut outbox);
        }
    }

    /// Sends the responses of the queue pairs `responders`, and removes these queue pairs from the
    /// list. If the only response of a queue pair is an acknowledgement, the response can be
    /// delayed: the queue pair stays in the list, and a later receive attempt sends the response.
    /// Sends all responses if no acknowledgement may be delayed at present. `now` is the present
    /// time.
    pub(super) fn send_undelayed_responses(&self, now: Time, responders: &mut Vec<Arc<QueuePair>>) {
        responders.retain(|queue_pair| {
            let rests = queue_pair.may_delay_transmission();
            if !rests {
                self.transmit_at(queue_pair, now);
            }
            rests
        });
        // This must also happen if no queue pair is left, so that no response is recorded as
        // delayed.
        if responders.is_empty() || !self.may_delay_responses() {
            self.send_responses(|| now, responders, false);
        }
    }

    /// Returns whether acknowledgements may be delayed to a later receive attempt. A polling
    /// program handles a message immediately, and often sends a message itself, which then includes
    /// the acknowledgement. If no thread polls again, the engine (background thread) sends the
    /// delayed acknowledgements.
    fn may_delay_responses(&self) -> bool {
        if !self.owes_answers.load(Ordering::Relaxed) {
            self.owes_answers.store(true, Ordering::Relaxed);
            // The engine first publishes that packets wake it, and then checks whether responses
            // are delayed.
            fence(Ordering::SeqCst);
        }
        self.engine.get().is_some_and(Engine::is_unwatched)
    }

    /// Passes the received packets `run` to the queue pair with their destination number, or to all
    /// queue pairs of their multicast group. `arrival` describes the sender and the destination.
    /// Adds the queue pairs that must send a response to `responders`.
    fn deliver(
        &self,
        now: Time,
        arrival: &Arrival,
        run: &Run<'_>,
        responders: &mut Vec<Arc<QueuePair>>,
    ) {
        let number = run.first().header.bth.destination;
        let to_group = multicast::canonical(arrival.destination).is_some();
        // The multicast address and the multicast queue pair number must occur together (IBTA
        // 9.6.3).
        if to_group != (number == address::MULTICAST) {
            self.counters
                .count(Counter::Unaddressed, run.count() as u64);
        } else if to_group {
            for member in self.groups.members(arrival.destination) {
                member.receive(now, arrival, run);
                add_responder(responders, member);
            }
        } else if let Some(last) = responders.last().filter(|last| last.number() == number) {
            last.receive(now, arrival, run);
        } else if let Some(found) = self.queue_pairs.find(number) {
            found.receive(now, arrival, run);
            add_responder(responders, found);
        } else {
            self.counters
                .count(Counter::Unaddressed, run.count() as u64);
        }
    }

    fn deliver_ring_message(
        &self,
        now: impl FnOnce() -> Time,
        arrival: &Arrival,
        (ring_message, chunks): (&RingMessage<'_>, &[Piece<'_>]),
        responders: &mut Vec<Arc<QueuePair>>,
        recent: &mut Recent,
    ) -> TransmitUrgency {
        let number = ring_message.destination;
        if let Some(found) = self.queue_pairs.find_again(number, recent) {
            let transmit_urgency = found.receive_ring_message(now, arrival, ring_message, chunks);
            if transmit_urgency != TransmitUrgency::Nothing
                && !responders.iter().any(|known| Arc::ptr_eq(known, found))
            {
                responders.push(Arc::clone(found));
            }
            transmit_urgency
        } else {
            self.counters.count(Counter::Unaddressed, 1);
            TransmitUrgency::Nothing
        }
    }

    /// Sends all delayed responses, for example before the process ends. Waits at most
    /// [`LOCK_TIMEOUT`] for another thread that is receiving, and then returns without sending.
    pub(super) fn send_all_responses(&self) {
        if let Some(mut receiver) = self.try_lock_receiver() {
            self.send_responses(|| self.now(), &mut receiver.responders, false);
        }
    }

    /// Clears the cache of the queue pairs that have recently received messages. Called before a
    /// queue pair is destroyed, so that the cache does not keep the queue pair.
    pub(super) fn clear_recent(&self) {
        if let Some(mut receiver) = self.try_lock_receiver() {
            receiver.recent = Recent::default();
        }
    }

    /// Takes the lock that each thread holds while receiving. Returns `None` if another thread
    /// holds the lock for longer than [`LOCK_TIMEOUT`].
    fn try_lock_receiver(&self) -> Option<spin::MutexGuard<'_, Receiver>> {
        let deadline = self.now() + LOCK_TIMEOUT;
        loop {
            let receiver = self.receiver.try_lock();
            if receiver.is_some() || self.now() > deadline {
                return receiver;
            }
            thread::yield_now();
        }
    }
}

fn add_responder(responders: &mut Vec<Arc<QueuePair>>, queue_pair: Arc<QueuePair>) {
    if !responders
        .iter()
        .any(|known| Arc::ptr_eq(known, &queue_pair))
    {
        responders.push(queue_pair);
    }
}
