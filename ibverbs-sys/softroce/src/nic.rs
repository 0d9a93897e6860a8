#![forbid(unsafe_code)]
//! The process's one NIC: what all objects of the device stand on.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::abi::{exit, fork};
use crate::completion::Deadlines;
use crate::config::{Config, Scheduled};
use crate::counters::Counters;
use crate::engine::{self, Alarm, Engine, Look, Sleeper, Timers};
use crate::fault::Faults;
use crate::net::{self, Delivery, Endpoints, Inbox, Network};
use crate::path::Way;
use crate::proto::{Arrival, Brief, Counter, Mtu, Path, Prospect, Step, Time};
use crate::queue_pair::{self, Neighbour, QueuePair, Sender};
use crate::same_host::{self, Link, Neighbourhood, Publication};
use crate::wire::Packet;
use crate::{memory, multicast, receive};

mod channel;
mod sockets;

use sockets::Sockets;

/// The port with its network, and the tables of the objects that packets reach.
pub(crate) struct Nic {
    /// Its way to the network.
    pub(crate) network: Network,
    /// The regions and windows.
    pub(crate) memory: memory::Registry,
    /// The queue pairs by their numbers.
    pub(crate) queue_pairs: queue_pair::Directory,
    /// The shared receive queues by their numbers.
    pub(crate) shared_queues: receive::Directory,
    /// The multicast groups.
    pub(crate) groups: multicast::Groups,
    /// The completion queues that hold events back.
    pub(crate) deadlines: Arc<Deadlines>,
    /// What it counts.
    pub(crate) counters: Arc<Counters>,
    /// Accidents.
    pub(crate) faults: Arc<Faults>,
    /// Messages may go without packets.
    direct: bool,
    /// The processes of the host that memory is shared with.
    neighbourhood: Option<Arc<Neighbourhood>>,
    timers: Arc<Timers>,
    deadlines_alarm: Arc<Alarm>,
    /// What is still to come of the configuration's schedule, the next at the end.
    schedule: Mutex<Vec<(Time, Scheduled)>>,
    schedule_alarm: Alarm,
    receiver: Mutex<Receiver>,
    /// The engine wanted to receive while another thread did.
    refused: AtomicBool,
    /// Answers are left to a later look.
    owes_answers: AtomicBool,
    /// Looks that found packets since timers are due.
    backlog: AtomicU32,
    /// When a program polled last; 0: never.
    polled: AtomicU64,
    /// How often a program polled.
    polls: AtomicU32,
    engine: OnceLock<Engine>,
}

/// What the one thread that receives has in hand.
struct Receiver {
    inbox: Inbox,
    /// The queue pairs that got packets of this batch, or of one before and have not answered yet.
    touched: Vec<Arc<QueuePair>>,
    /// Briefs since the last answers, and looks at which there were none.
    unanswered: (u32, u32),
    /// The peers of the host, as they are known here.
    neighbours: same_host::Known,
    sockets: Sockets,
}

/// The process's one.
static NIC: Mutex<Option<Arc<Nic>>> = Mutex::new(None);

/// Keys of timers that are not a queue pair's; those are below 2^24, and so is the network's one.
const DEADLINES: u32 = net::DELAY + 1;
const SCHEDULE: u32 = net::DELAY + 2;

/// Of so many looks by one who polls all but one are at shared memory only.
const GLANCES: u32 = 8;

/// How many timers run at a time.
const TIMERS: usize = 32;

/// Looks that find packets before timers that are due run all the same.
const BACKLOG: u32 = 256;

/// Briefs, and looks at which there are none, for which acknowledgements wait for what the program has to say.
const PATIENCE: (u32, u32) = (16, 4);

/// Packets of the sockets that come together at most for their acknowledgement to wait: where more are under way it shall not.
const FEW: usize = 4;

/// How long a process that ends waits for a thread that is receiving.
const FAREWELL: Duration = Duration::from_millis(10);

/// Batches that one who refused the engine fetches in its place.
const OWED: usize = 4;

impl Nic {
    /// The process's NIC, which is made at the first call that succeeds. It lives as long as the process.
    pub(crate) fn open() -> io::Result<Arc<Self>> {
        fork::watch();
        exit::watch();
        let mut nic = NIC.lock();
        if let Some(nic) = &*nic {
            return Ok(Arc::clone(nic));
        }
        let config = Config::of_process()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.clone()))?;
        let counters = Arc::clone(Counters::of_process());
        let faults = Arc::clone(Faults::of_process());
        let opened = Self::with(config, counters, faults)?;
        Ok(Arc::clone(nic.insert(opened)))
    }

    /// The process is about to end: answers that were left to a later look go now.
    pub(crate) fn farewell() {
        let nic = NIC.try_lock().and_then(|nic| nic.clone());
        if let Some(nic) = nic
            && nic.owes_answers.load(Ordering::Relaxed)
            && let Some(mut receiver) = nic.receiver.try_lock_for(FAREWELL)
        {
            nic.answer(nic.now(), &mut receiver.touched, false);
        }
    }

    /// The process's NIC if it was opened.
    pub(crate) fn opened() -> Option<Arc<Self>> {
        NIC.lock().clone()
    }

    /// A NIC of its own.
    pub(crate) fn with(
        config: &Config,
        counters: Arc<Counters>,
        faults: Arc<Faults>,
    ) -> io::Result<Arc<Self>> {
        let timers = Arc::new(Timers::new(Sleeper::new()?));
        let (of_network, faults_of_network) = (Arc::clone(&counters), Arc::clone(&faults));
        let network = Network::open(config, of_network, faults_of_network, Arc::clone(&timers))?;
        let now = timers.now();
        let mut schedule: Vec<(Time, Scheduled)> = config
            .schedule
            .iter()
            .map(|&(after, what)| (now + after, what))
            .collect();
        schedule.sort_by_key(|&(time, _)| std::cmp::Reverse(time));
        let (deadlines, deadlines_alarm) = (Arc::<Deadlines>::default(), Arc::new(Alarm::new()));
        let (of_deadlines, alarm) = (Arc::clone(&timers), Arc::clone(&deadlines_alarm));
        deadlines.tell(move |time| of_deadlines.note(DEADLINES, &alarm, time));
        let first_number = RandomState::new().build_hasher().finish() as u32;
        let memory = memory::Registry::new();
        // Now, so that no descriptor is opened later on; whoever asks again is told what became of it.
        memory.arena();
        let is_shared = Way::Shared.is_allowed(config.path) && !network.is_captured();
        let neighbourhood = is_shared
            .then(|| neighbourhood(config, &network, &memory, &timers, &counters))
            .flatten();
        if let Some(neighbourhood) = &neighbourhood {
            memory.tell(Arc::clone(neighbourhood));
            network.share(Arc::clone(neighbourhood));
        }
        let nic = Arc::new(Self {
            memory,
            neighbourhood,
            queue_pairs: queue_pair::Directory::new(network.slot(), first_number),
            shared_queues: receive::Directory::default(),
            groups: multicast::Groups::new(),
            deadlines,
            counters,
            faults,
            direct: Way::Direct.is_allowed(config.path) && !network.is_captured(),
            timers: Arc::clone(&timers),
            deadlines_alarm,
            schedule: Mutex::new(schedule),
            schedule_alarm: Alarm::new(),
            receiver: Mutex::new(Receiver {
                inbox: Inbox::new(),
                touched: Vec::new(),
                unanswered: (0, 0),
                neighbours: same_host::Known::nobody(),
                sockets: Sockets::default(),
            }),
            refused: AtomicBool::new(false),
            owes_answers: AtomicBool::new(false),
            backlog: AtomicU32::new(0),
            polled: AtomicU64::new(0),
            polls: AtomicU32::new(0),
            engine: OnceLock::new(),
            network,
        });
        nic.run_schedule(now);
        let engine = Engine::start(timers, Arc::downgrade(&nic))?;
        let _ = nic.engine.set(engine);
        Ok(nic)
    }

    /// The present.
    pub(crate) fn now(&self) -> Time {
        self.timers.now()
    }

    /// Looks after the network in place of the engine: takes one batch of packets from each socket, answers them, and
    /// runs the timers that are due. For one who polls and finds nothing. False: another thread is at it, nothing was
    /// done here.
    pub(crate) fn progress(&self) -> bool {
        if let Some(neighbourhood) = &self.neighbourhood {
            // Who polls at the same time counts the same poll.
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
            // Who is at it may have been kept from running in the middle; then polling keeps him from it.
            thread::yield_now();
        }
        looked
    }

    /// A program is about to sleep until a completion comes: packets wake the engine from now on. To be called
    /// where a completion queue is armed.
    pub(crate) fn watch(&self) {
        if let Some(engine) = self.engine.get() {
            engine.watch();
        }
    }

    /// Sends what was posted to a queue pair: directly if that can be, else by packets. Small messages to a peer that has
    /// much to answer may wait until it does.
    pub(crate) fn send(&self, mut sender: Sender<'_>) {
        let queue_pair = sender.queue_pair();
        if !sender.flush_said() && sender.carry() == Step::Packets && !sender.may_wait() {
            sender.transmit(|| self.now(), &mut self.network.outbox());
        }
        let timeout = sender.next_timeout();
        drop(sender);
        if let Some(timeout) = timeout {
            self.timers
                .note(queue_pair.number(), queue_pair.alarm(), timeout);
        }
    }

    /// A queue pair knows its peer from now on: if that is in another process of the host, memory may be shared with it.
    pub(crate) fn meet(&self, queue_pair: &QueuePair) {
        if let (Some(neighbourhood), Some((path, number))) =
            (&self.neighbourhood, queue_pair.peer())
            && let Some(address) = self.network.address(&path, number)
        {
            neighbourhood.meet(address);
        }
    }

    /// Sends what a queue pair has to send, after something was changed in it, and sees to its timers.
    pub(crate) fn transmit(&self, queue_pair: &QueuePair) {
        self.transmit_at(queue_pair, self.now());
    }

    /// Sends what a queue pair has to send before it goes away, also if there has to be room for it first: not for long.
    pub(crate) fn transmit_last(&self, queue_pair: &QueuePair) {
        let deadline = self.now() + LAST;
        loop {
            self.transmit(queue_pair);
            let links =
                (self.neighbourhood.as_ref()).and_then(|neighbourhood| neighbourhood.links());
            let mut links = links.iter().flat_map(|links| links.iter());
            if !links.any(|link| link.has_waiting(queue_pair.number())) || self.now() > deadline {
                return;
            }
            thread::yield_now();
            self.progress();
        }
    }

    /// A queue pair is going away, and its timers with it. What it sent and an accident holds back goes now: its peer
    /// may wait for that, and the process may be about to end.
    pub(crate) fn forget(&self, queue_pair: &QueuePair) {
        self.network.send_held();
        self.timers.cancel(queue_pair.number(), queue_pair.alarm());
    }

    /// The GID table.
    pub(crate) fn gids(&self) -> &[Ipv6Addr] {
        self.network.addresses()
    }

    /// The network interface of a GID; 0 if there is none.
    pub(crate) fn interface(&self, gid: usize) -> u32 {
        self.network.interface(gid)
    }

    /// The port's active MTU.
    pub(crate) fn mtu(&self) -> Mtu {
        self.network.mtu()
    }

    /// Whether the port is active.
    pub(crate) fn link_is_up(&self) -> bool {
        self.faults.link_is_up()
    }

    /// Fetches, and runs the timers that are due. What they wait for may have come while this process was kept from running,
    /// so they run when there is nothing more to be fetched, or after so much that a peer floods this side; and not where another
    /// thread has something in hand, which runs them itself. Until they ran the engine does not sleep.
    fn look_after(&self, now: Time, care: Care) -> Look {
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

    /// Receives, unless another thread does; and if the engine came meanwhile and was refused, somewhat more: what woke it does
    /// not wake it again. Who polls has other things to do, and the peer may be waiting for just those, so what is still left
    /// then is the engine's.
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
                // What woke an engine that was refused before this is there for the next look.
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
            // What did not go with what the program said goes now.
            receiver.touched.retain(|queue_pair| queue_pair.owes());
            self.answer(now, &mut receiver.touched, is_quiet);
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
        let received = if passes && care != Care::Engine {
            0
        } else {
            let received = self.network.receive(inbox, |packets| {
                let many = packets.count_together() > FEW;
                for (arrival, packet) in packets {
                    self.deliver(now, &arrival, &packet, touched);
                }
                // The next burst is looked at while the peer, which has its answer to this one, makes one more.
                if many {
                    self.answer(now, touched, is_quiet);
                }
            });
            if received > FEW || received > 0 && care != Care::Poll {
                self.answer(now, touched, is_quiet);
            } else if received > 0 {
                self.answer_later(now, touched);
            }
            sockets.looked(now, received);
            received
        };
        shared + received
    }

    /// Takes what came through shared memory, and has it answered; how much there was. Where the time is not known, it is looked
    /// for only if something came.
    fn receive_shared(&self, receiver: &mut Receiver, now: Option<Time>, care: Care) -> usize {
        let Receiver {
            touched,
            neighbours,
            unanswered: (briefs, looks),
            ..
        } = receiver;
        let is_quiet = care == Care::Wake;
        let mut present = now;
        let mut now = || *present.get_or_insert_with(|| self.now());
        let mut resumed = SmallVec::<[u32; 8]>::new();
        let mut is_urgent = false;
        let count = self.network.receive_shared(
            neighbours.links(),
            |arrival, delivery| match delivery {
                Delivery::Packet(packet) => {
                    is_urgent = true;
                    self.deliver(now(), arrival, packet, touched);
                }
                Delivery::Brief(brief) => {
                    let prospect = self.deliver_brief(now(), arrival, brief, touched);
                    is_urgent |= prospect == Prospect::Urgent;
                }
            },
            |queue_pair| resumed.push(queue_pair),
        );
        for number in resumed {
            is_urgent = true;
            if let Some(queue_pair) = self.queue_pairs.find(number) {
                touch(touched, queue_pair);
            }
        }
        if !touched.is_empty() {
            (*briefs, *looks) = match count as u32 {
                0 => (*briefs, *looks + 1),
                count => (*briefs + count, 0),
            };
            let is_patient = *briefs < PATIENCE.0 && *looks < PATIENCE.1;
            if is_urgent || care != Care::Poll || !is_patient || !self.may_answer_later() {
                (*briefs, *looks) = (0, 0);
                self.answer(now(), touched, is_quiet);
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
    fn answer(&self, now: Time, touched: &mut Vec<Arc<QueuePair>>, is_quiet: bool) {
        if self.owes_answers.load(Ordering::Relaxed) {
            self.owes_answers.store(false, Ordering::Relaxed);
        }
        for queue_pair in touched.drain(..) {
            let mut outbox = self.network.outbox().quiet(is_quiet);
            self.transmit_by(&queue_pair, now, &mut outbox);
        }
    }

    /// Leaves acknowledgements to a later look where that may be; what else there is to say is said.
    fn answer_later(&self, now: Time, touched: &mut Vec<Arc<QueuePair>>) {
        touched.retain(|queue_pair| {
            let rests = queue_pair.may_rest();
            if !rests {
                self.transmit_at(queue_pair, now);
            }
            rests
        });
        // Also where none is left: then nothing is owed any more.
        if touched.is_empty() || !self.may_answer_later() {
            self.answer(now, touched, false);
        }
    }

    /// Whether acknowledgements may be left to a later look: one who polls for a message and gets it looks at it at once, and
    /// what he has to say himself often follows, with which they go. If he does not look again, the engine does.
    fn may_answer_later(&self) -> bool {
        if !self.owes_answers.load(Ordering::Relaxed) {
            self.owes_answers.store(true, Ordering::Relaxed);
            // The engine says that it is not away, and then looks whether answers are owed.
            fence(Ordering::SeqCst);
        }
        self.engine.get().is_some_and(Engine::is_away)
    }

    /// Hands a packet to the queue pair that it is for, or to all of the group.
    fn deliver(
        &self,
        now: Time,
        arrival: &Arrival,
        packet: &Packet<'_>,
        touched: &mut Vec<Arc<QueuePair>>,
    ) {
        let number = packet.header.bth.destination;
        let to_group = multicast::canonical(arrival.destination).is_some();
        // The one goes with the other (IBTA 9.6.3).
        if to_group != (number == net::address::MULTICAST) {
            self.counters.count(Counter::Unaddressed, 1);
        } else if to_group {
            for member in self.groups.members(arrival.destination) {
                member.receive(now, arrival, packet);
                touch(touched, member);
            }
        } else if let Some(last) = touched.last().filter(|last| last.number() == number) {
            last.receive(now, arrival, packet);
        } else if let Some(found) = self.queue_pairs.find(number) {
            found.receive(now, arrival, packet);
            touch(touched, found);
        } else {
            self.counters.count(Counter::Unaddressed, 1);
        }
    }

    fn deliver_brief(
        &self,
        now: Time,
        arrival: &Arrival,
        brief: &Brief,
        touched: &mut Vec<Arc<QueuePair>>,
    ) -> Prospect {
        let number = brief.destination;
        if let Some(last) = touched.last().filter(|last| last.number() == number) {
            last.receive_brief(now, arrival, brief)
        } else if let Some(found) = self.queue_pairs.find(number) {
            let prospect = found.receive_brief(now, arrival, brief);
            if prospect != Prospect::Nothing {
                touch(touched, found);
            }
            prospect
        } else {
            self.counters.count(Counter::Unaddressed, 1);
            Prospect::Nothing
        }
    }

    fn transmit_at(&self, queue_pair: &QueuePair, now: Time) {
        self.transmit_by(queue_pair, now, &mut self.network.outbox());
    }

    fn transmit_by(&self, queue_pair: &QueuePair, now: Time, outbox: &mut net::Outbox<'_>) {
        if let Some(timeout) = queue_pair.transmit(now, outbox) {
            self.timers
                .note(queue_pair.number(), queue_pair.alarm(), timeout);
        }
    }

    fn run_timers(&self, now: Time) {
        let mut due = Vec::with_capacity(TIMERS);
        self.timers.take_due(now, &mut due);
        for (key, time) in due {
            match key {
                net::DELAY => self.network.send_delayed(now, time),
                DEADLINES => {
                    Timers::called(&self.deadlines_alarm, time);
                    self.deadlines.expire(now);
                    if let Some(next) = self.deadlines.next() {
                        self.timers.note(DEADLINES, &self.deadlines_alarm, next);
                    }
                }
                SCHEDULE => {
                    Timers::called(&self.schedule_alarm, time);
                    self.run_schedule(now);
                }
                number => {
                    if let Some(queue_pair) = self.queue_pairs.find(number) {
                        Timers::called(queue_pair.alarm(), time);
                        queue_pair.handle_timeout(now);
                        self.transmit_at(&queue_pair, now);
                    }
                }
            }
        }
    }

    fn run_schedule(&self, now: Time) {
        let next = || {
            let mut schedule = self.schedule.lock();
            schedule.pop_if(|(time, _)| *time <= now)
        };
        while let Some((_, what)) = next() {
            match what {
                Scheduled::Raise(kind) => self.faults.raise(kind),
                Scheduled::Link { up } => self.faults.set_link(up),
            }
        }
        let next = self.schedule.lock().last().map(|&(time, _)| time);
        if let Some(next) = next {
            self.timers.note(SCHEDULE, &self.schedule_alarm, next);
        }
    }
}

/// How long a peer may take to make room for the last that a queue pair has to say.
const LAST: Duration = Duration::from_millis(100);

/// For whom the network is looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    /// One who polls, and will do so again.
    Poll,
    /// One who was woken by a peer: he does what he was woken for, and answers with what is his own to send.
    Wake,
    /// The engine, for nobody else may do it.
    Engine,
}

/// Has other processes of the host find this one. None: the system does not let it.
fn neighbourhood(
    config: &Config,
    network: &Network,
    memory: &memory::Registry,
    timers: &Timers,
    counters: &Arc<Counters>,
) -> Option<Arc<Neighbourhood>> {
    let own = same_host::Own {
        addresses: network.own_addresses(),
        gids: network.addresses().to_vec(),
        key_base: memory.key_base(),
        publication: Arc::new(Publication::new().ok()?),
        arena: Arc::clone(memory.arena()?),
        bell: timers.sleeper().bell().ok()?,
        channels: same_host::Bells::new().ok()?,
        counters: Arc::clone(counters),
        // Where nothing else is allowed, queue pairs of the process go that way, too.
        is_peer: config.path == Some(Way::Shared),
    };
    Some(Arc::new(Neighbourhood::open(own).ok()?))
}

/// The device's GUID: of this process, on this host, since it was started.
pub(crate) fn guid() -> u64 {
    static HOST: OnceLock<u32> = OnceLock::new();
    let host = HOST.get_or_init(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // FNV-1a
        boot.iter().fold(0x811c_9dc5, |hash, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    });
    // An EUI-64 that is administered locally.
    0x0200_0000_0000_0000 | u64::from(host & 0x00ff_ffff) << 32 | u64::from(process::id())
}

fn touch(touched: &mut Vec<Arc<QueuePair>>, queue_pair: Arc<QueuePair>) {
    if !touched.iter().any(|known| Arc::ptr_eq(known, &queue_pair)) {
        touched.push(queue_pair);
    }
}

impl engine::Device for Nic {
    fn look(&self) -> Look {
        match self.look_after(self.now(), Care::Engine) {
            Look::Contended => {
                self.refused.store(true, Ordering::Relaxed);
                // Who has the lock sees that when he lets go of it, or this sees that he has.
                fence(Ordering::SeqCst);
                self.look_after(self.now(), Care::Engine)
            }
            done => done,
        }
    }

    fn polled(&self) -> Option<Time> {
        let polled = self.polled.load(Ordering::Relaxed);
        (polled != 0).then(|| Time::from_nanos(polled))
    }

    fn endpoints(&self) -> Arc<Endpoints> {
        self.network.endpoints()
    }

    fn attend(&self) {
        if let Some(neighbourhood) = &self.neighbourhood {
            neighbourhood.attend();
        }
    }

    fn heard(&self) -> Option<BorrowedFd<'_>> {
        Some(self.neighbourhood.as_ref()?.heard())
    }

    fn fall_asleep(&self) -> bool {
        (self.neighbourhood.as_ref()).is_none_or(|neighbourhood| neighbourhood.fall_asleep())
            && !self.owes_answers.load(Ordering::SeqCst)
    }

    fn wake_up(&self) {
        if let Some(neighbourhood) = &self.neighbourhood {
            neighbourhood.wake_up();
        }
    }
}

impl queue_pair::Device for Nic {
    fn memory(&self) -> &memory::Registry {
        &self.memory
    }

    fn shared_queues(&self) -> &receive::Directory {
        &self.shared_queues
    }

    fn mtu(&self) -> Mtu {
        self.network.mtu()
    }

    fn gid(&self, index: u8) -> Option<Ipv6Addr> {
        self.gids().get(usize::from(index)).copied()
    }

    fn reaches(&self, path: &Path) -> bool {
        self.network.reaches(path)
    }

    fn window(&self, mtu: Mtu) -> u32 {
        self.network.window(mtu)
    }

    fn now(&self) -> Time {
        self.timers.now()
    }

    fn count(&self, counter: Counter, by: u64) {
        self.counters.count(counter, by);
    }

    fn is_direct(&self) -> bool {
        self.direct && self.faults.spare_packets()
    }

    fn is_shared(&self) -> bool {
        self.faults.spare_packets()
    }

    fn partner(&self, path: &Path, number: u32) -> Option<Arc<Link>> {
        self.network.link(path, number)
    }

    fn neighbourhood(&self) -> Option<&Neighbourhood> {
        self.neighbourhood.as_deref()
    }

    fn neighbour(&self, path: &Path, number: u32) -> Option<Neighbour> {
        Some(Neighbour {
            local: self.network.neighbour(path, number)?,
            source: self.gid(path.source)?,
            queue_pair: self.queue_pairs.find(number)?,
        })
    }

    fn global_route(&self, path: &Path, number: u32, length: usize) -> [u8; 40] {
        let route = self.network.global_route(path, number, length);
        // A neighbour has one.
        route.unwrap_or([0; 40])
    }
}

impl queue_pair::Outgoing for net::Outbox<'_> {
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool {
        self.push(write)
    }

    fn flush(&mut self) {
        self.flush();
    }

    fn is_quiet(&self) -> bool {
        self.is_quiet()
    }

    fn through(&mut self, link: &Arc<Link>, tag: u16, queue_pair: u32) {
        self.through(link, tag, queue_pair);
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("gids", &self.gids())
            .field("queue_pairs", &self.queue_pairs)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
