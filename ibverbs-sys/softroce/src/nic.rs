#![forbid(unsafe_code)]
//! The NIC of the process, to which all verbs objects of the device belong.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::completion::{Deadlines, WakeEventfds};
use crate::config::{Config, Scheduled, Way};
use crate::counters::Counters;
use crate::descriptor;
use crate::engine::Engine;
use crate::fault::Faults;
use crate::net::{self, Network};
use crate::per_process::PerProcess;
use crate::proto::{Mtu, SendProgress, Time};
use crate::queue_pair::{self, QueuePair, Sender};
use crate::same_host::{self, HostPeers, Publication};
use crate::timers::{Alarm, Sleeper, Timers};
use crate::{memory, multicast, receive, spin};

mod channel;
mod device;
mod fatal;
mod faults;
mod receiver;
mod socket_schedule;
mod unacknowledged;

pub use faults::faults;
use receiver::{Receiver, ReceivingThread};

/// The NIC of a process: its port with sockets and addresses, and the tables of the objects that
/// packets can address.
pub(crate) struct Nic {
    /// Sockets and addresses by which the port sends and receives packets.
    pub(crate) network: Network,
    /// Memory regions and windows, found by their keys.
    pub(crate) memory: memory::Registry,
    /// Queue pairs of this process, found by number.
    pub(crate) queue_pairs: queue_pair::QueuePairDirectory,
    /// Shared receive queues of this process, found by number.
    pub(crate) shared_queues: receive::SharedQueueDirectory,
    /// Multicast groups, each with the queue pairs that are attached to it.
    pub(crate) groups: multicast::Groups<QueuePair>,
    /// Completion queues whose events are delayed by moderation, each with the time at which its
    /// event is due.
    pub(crate) deadlines: Arc<Deadlines>,
    /// Statistics counters of the device, such as the number of sent packets.
    pub(crate) counters: Arc<Counters>,
    /// Injector of faults, such as lost packets, for tests.
    pub(crate) faults: Arc<Faults>,
    /// Set if messages between queue pairs of this process may be transferred directly, without
    /// packets. Not set if the configuration forbids this path or packets are captured.
    direct: bool,
    /// Other processes of the host with which this process shares memory. `None` if memory cannot
    /// be shared.
    host_peers: Option<Arc<HostPeers>>,
    timers: Arc<Timers>,
    deadlines_alarm: Arc<Alarm>,
    /// Configured events and link changes that have not happened yet, in reverse order of time: the
    /// last entry is the next change.
    schedule: Mutex<Vec<(Time, Scheduled)>>,
    schedule_alarm: Alarm,
    receiver: spin::Mutex<Receiver>,
    /// Set if the engine (background thread) could not receive packets because another thread was
    /// receiving. The other thread then receives once more in place of the engine.
    refused: AtomicBool,
    /// Set while responses to received packets are delayed until a later receive attempt. The
    /// engine (background thread) must then not sleep, because it sends the responses if no other
    /// thread does.
    owes_answers: AtomicBool,
    /// Number of consecutive receive attempts that found packets while timers were due. The timers
    /// run when no packets are left, or when this number is too high.
    backlog: AtomicU32,
    /// Time in nanoseconds at which a thread of the program last polled a completion queue. 0 if
    /// none has polled.
    polled: AtomicU64,
    /// Number of polls by threads of the program. Each poll decides by this number if it checks the
    /// sockets, because only one of several polls does.
    polls: AtomicU32,
    engine: OnceLock<Engine>,
    this: Weak<Self>,
}

/// The NIC that all verbs of this process use, or `None` before the NIC is opened. A child of
/// `fork` has another NIC.
static NIC: PerProcess<Mutex<Option<Arc<Nic>>>> = PerProcess::new(Mutex::default);

/// Discards the parent's NIC and fault injector in a child of `fork`, without dropping them. The
/// next use of the device in the child creates new ones.
pub(crate) fn reset_in_child() {
    NIC.reset_in_child();
    faults::reset_in_child();
}

/// Key of the timer that raises delayed completion events. Completion moderation
/// (`ibv_modify_cq(3)`) delays the events, so that one event reports several completions. The key
/// differs from the keys of queue pairs' timers, which are queue pair numbers (below 2^24).
const MODERATION_TIMER: u32 = net::DELAY_TIMER + 1;
/// Key of the timer for the events that the configuration schedules for tests, such as the port
/// going down. The key differs from the keys of all other timers.
const SCHEDULE: u32 = net::DELAY_TIMER + 2;

/// Maximum number of due timers that run after one receive attempt. Further due timers run after
/// the next attempt, so that packets do not wait for all timers.
const MAX_TIMERS_PER_RECEIVE: usize = 32;

impl Nic {
    /// Returns the process's NIC. The first successful call creates the NIC, which then exists
    /// until the process ends.
    pub(crate) fn open() -> io::Result<Arc<Self>> {
        descriptor::set_loss_handler(Self::fail_opened);
        let mut nic = NIC.get().lock();
        if let Some(nic) = &*nic {
            return Ok(Arc::clone(nic));
        }
        let config = Config::of_process()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.clone()))?;
        let counters = Arc::clone(Counters::of_process());
        let faults = Arc::clone(faults::of_process());
        let opened = Self::with(config, counters, faults)?;
        Ok(Arc::clone(nic.insert(opened)))
    }

    /// Sends all delayed responses, such as acknowledgements. (Responses are delayed to save
    /// packets.) Called when the process is about to end.
    pub(crate) fn send_delayed_responses() {
        let nic = NIC.get().try_lock().and_then(|nic| nic.clone());
        if let Some(nic) = nic
            && nic.owes_answers.load(Ordering::Relaxed)
        {
            nic.send_all_responses();
        }
    }

    /// Makes the process's NIC fail permanently for the reason `reason`. Called when the program
    /// has closed a file of the device. Does nothing if the NIC is not open, or while the NIC is
    /// being opened. In the second case, the engine (background thread) detects the failure itself.
    pub(crate) fn fail_opened(reason: &str) {
        if let Some(nic) = NIC.get().try_lock().and_then(|nic| nic.clone()) {
            nic.fail_permanently(reason);
        }
    }

    /// Returns the process's NIC, or `None` if it was not opened yet.
    pub(crate) fn opened() -> Option<Arc<Self>> {
        NIC.get().lock().clone()
    }

    /// Creates a NIC with the given configuration, counters and fault injector. The NIC is
    /// independent of all other NICs in the process. Tests create several NICs.
    pub(crate) fn with(
        config: &Config,
        counters: Arc<Counters>,
        faults: Arc<Faults>,
    ) -> io::Result<Arc<Self>> {
        let timers = Arc::new(Timers::new(Sleeper::new()?));
        let (of_network, faults_of_network) = (Arc::clone(&counters), Arc::clone(&faults));
        let network = Network::open(config, of_network, faults_of_network, Arc::clone(&timers))?;
        if !network.has_address() {
            faults.set_link(false);
        }
        let now = timers.now();
        let mut schedule: Vec<(Time, Scheduled)> = config
            .schedule
            .iter()
            .map(|&(after, what)| (now + after, what))
            .collect();
        schedule.sort_by_key(|&(time, _)| std::cmp::Reverse(time));
        let (deadlines, deadlines_alarm) = (Arc::<Deadlines>::default(), Arc::new(Alarm::new()));
        let (of_deadlines, alarm) = (Arc::clone(&timers), Arc::clone(&deadlines_alarm));
        deadlines.set_callback(move |time| of_deadlines.schedule(MODERATION_TIMER, &alarm, time));
        let memory = memory::Registry::new();
        // The arena is created now, so that later calls of `arena` open no descriptor.
        memory.arena();
        let is_shared = Way::Shared.is_allowed(config.path) && !network.is_captured();
        let host_peers = is_shared
            .then(|| host_peers(config, &network, &memory, &timers, &counters))
            .flatten();
        if let Some(host_peers) = &host_peers {
            memory.set_peers(Arc::clone(host_peers));
            network.share(Arc::clone(host_peers));
        }
        let nic = Arc::new_cyclic(|this| Self {
            memory,
            host_peers,
            queue_pairs: queue_pair::QueuePairDirectory::new(network.slot()),
            shared_queues: receive::SharedQueueDirectory::default(),
            groups: multicast::Groups::new(),
            deadlines,
            receiver: spin::Mutex::new(Receiver::new(&counters)),
            counters,
            faults,
            direct: Way::Direct.is_allowed(config.path) && !network.is_captured(),
            timers: Arc::clone(&timers),
            deadlines_alarm,
            schedule: Mutex::new(schedule),
            schedule_alarm: Alarm::new(),
            refused: AtomicBool::new(false),
            owes_answers: AtomicBool::new(false),
            backlog: AtomicU32::new(0),
            polled: AtomicU64::new(0),
            polls: AtomicU32::new(0),
            engine: OnceLock::new(),
            this: Weak::clone(this),
            network,
        });
        nic.run_schedule(now);
        let engine = Engine::start(timers, Arc::downgrade(&nic))?;
        let _ = nic.engine.set(engine);
        Ok(nic)
    }

    /// Returns the present time of the NIC's clock.
    pub(crate) fn now(&self) -> Time {
        self.timers.now()
    }

    /// Makes arriving packets wake the engine (background thread) from now on. Must be called when
    /// a completion queue is armed, because the program is about to sleep until a completion
    /// arrives.
    pub(crate) fn watch(&self) {
        if let Some(engine) = self.engine.get() {
            engine.watch();
        }
    }

    /// Posts requests to `queue_pair` by calling `post` with the locked send queue. Returns the
    /// result of `post`. Then transfers the requests, without packets where possible, and otherwise
    /// as packets. While many packets are unacknowledged, messages of one packet can be held until
    /// the peer's next acknowledgement. Such messages are then sent together with later messages.
    #[inline]
    pub(crate) fn post<T>(
        &self,
        queue_pair: &QueuePair,
        post: impl FnOnce(&mut Sender<'_>) -> T,
    ) -> T {
        let mut unknown = None;
        let (answer, timeout) = {
            // Used in place: a move would load the fields in other sizes than they were stored in,
            // so store forwarding would fail. Such loads wait until all earlier stores have reached
            // memory, which may include cache lines that the peer holds.
            let mut sender = queue_pair.sender();
            #[cfg(any(test, feature = "sim"))]
            crate::fault::panics::pass(crate::fault::panics::PanicPoint::Post);
            let answer = post(&mut sender);
            if sender.is_idle() {
                return answer;
            }
            let now = || self.timers.coarse_now();
            let timeout = if sender.flush_ring_messages() {
                sender.answer_timeout(now)
            } else {
                unknown = self.send(&mut sender);
                sender.next_timeout(now)
            };
            (answer, timeout)
        };
        if let (Some(address), Some(host_peers)) = (unknown, &self.host_peers) {
            // The handshake takes a while, so it begins after the queue pair is unlocked.
            host_peers.establish_link(address);
        }
        if let Some(timeout) = timeout {
            self.timers
                .schedule(queue_pair.number(), queue_pair.alarm(), timeout);
        }
        answer
    }

    /// Transfers the queued requests of the queue pair that `sender` has locked. Returns the
    /// address of another process of the host if datagrams to that process were sent by a socket.
    /// The caller can then request shared memory with that process. Otherwise returns `None`.
    fn send(&self, sender: &mut Sender<'_>) -> Option<SocketAddr> {
        if sender.execute_all_queued() != SendProgress::PacketsOnly || sender.may_wait() {
            return None;
        }
        let mut outbox = self.network.outbox();
        sender.transmit(|| self.now(), &mut outbox);
        outbox.take_unlinked_peer()
    }

    /// Begins a handshake with the process of the peer of `queue_pair`, if the peer is on the same
    /// host. After the handshake, the two processes share memory.
    pub(crate) fn begin_handshake(&self, queue_pair: &QueuePair) {
        if let (Some(host_peers), Some((path, number))) = (&self.host_peers, queue_pair.peer())
            && let Some(address) = self.network.address(&path, number)
        {
            host_peers.establish_link(address);
        }
    }

    /// Transmits all packets that `queue_pair` may send now, and sets its timer for the next
    /// timeout.
    pub(crate) fn transmit(&self, queue_pair: &QueuePair) {
        self.transmit_at(queue_pair, self.now());
    }

    /// Sends the last packets of `queue_pair` before the queue pair is destroyed. If the shared
    /// memory from which the peer receives has no free space, waits for free space for a limited
    /// time.
    pub(crate) fn transmit_last(&self, queue_pair: &QueuePair) {
        let deadline = self.now() + LAST_TRANSMIT_TIMEOUT;
        loop {
            self.transmit(queue_pair);
            let links = (self.host_peers.as_ref()).and_then(|host_peers| host_peers.links());
            let mut links = links.iter().flat_map(|links| links.iter());
            if !links.any(|link| link.has_waiting(queue_pair.number())) || self.now() > deadline {
                return;
            }
            thread::yield_now();
            self.progress();
        }
    }

    /// Removes `queue_pair`, which is being destroyed, from the NIC's timers and from the receiving
    /// thread's cache. Also sends the packets that an injected delay holds back. The peer is
    /// perhaps waiting for these packets, and the process can end soon.
    pub(crate) fn remove(&self, queue_pair: &QueuePair) {
        self.network.send_held();
        self.clear_recent();
        self.cancel_timer(queue_pair);
    }

    /// Cancels the timer of `queue_pair`, which is being reset or destroyed. A timer that stays set
    /// would delay the first timeout of the next connection.
    pub(crate) fn cancel_timer(&self, queue_pair: &QueuePair) {
        self.timers.cancel(queue_pair.number(), queue_pair.alarm());
    }

    /// Returns the GIDs of the port, with their indices in the GID table.
    pub(crate) fn gids(&self) -> impl Iterator<Item = (u8, Ipv6Addr)> {
        self.network.gids()
    }

    /// Returns the GID with the index `index` in the port's GID table, or `None` if the entry is
    /// empty or does not exist.
    pub(crate) fn gid(&self, index: usize) -> Option<Ipv6Addr> {
        self.network.gid(index)
    }

    /// Returns the index of the network interface whose address is the GID at index `gid`, or 0 if
    /// no interface has this address.
    pub(crate) fn interface(&self, gid: usize) -> u32 {
        self.network.interface(gid)
    }

    /// Returns the name of the network interface whose address is the GID with the index `gid`.
    /// Returns `None` if no interface has this address.
    pub(crate) fn interface_name(&self, gid: usize) -> Option<String> {
        self.network.interface_name(gid)
    }

    /// Returns the port's active MTU.
    pub(crate) fn mtu(&self) -> Mtu {
        self.network.mtu()
    }

    /// Returns whether the port is active.
    pub(crate) fn link_is_up(&self) -> bool {
        self.faults.link_is_up()
    }

    fn transmit_at(&self, queue_pair: &QueuePair, now: Time) {
        self.transmit_by(queue_pair, || now, &mut self.network.outbox());
    }

    fn transmit_by(
        &self,
        queue_pair: &QueuePair,
        now: impl FnOnce() -> Time,
        outbox: &mut net::Outbox<'_>,
    ) {
        if let Some(timeout) = queue_pair.transmit(now, outbox) {
            self.timers
                .schedule(queue_pair.number(), queue_pair.alarm(), timeout);
        }
    }

    fn run_timers(&self, now: Time) {
        let mut due = Vec::with_capacity(MAX_TIMERS_PER_RECEIVE);
        self.timers.take_due(now, &mut due);
        for (key, time) in due {
            match key {
                net::DELAY_TIMER => self.network.send_delayed(now, time),
                MODERATION_TIMER => {
                    Timers::clear(&self.deadlines_alarm, time);
                    self.deadlines.expire(now);
                    if let Some(next) = self.deadlines.next() {
                        self.timers
                            .schedule(MODERATION_TIMER, &self.deadlines_alarm, next);
                    }
                }
                SCHEDULE => {
                    Timers::clear(&self.schedule_alarm, time);
                    self.run_schedule(now);
                }
                number => {
                    if let Some(queue_pair) = self.queue_pairs.find(number) {
                        Timers::clear(queue_pair.alarm(), time);
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
        while let Some((_, event)) = next() {
            match event {
                Scheduled::Raise(kind) => self.faults.raise(kind),
                Scheduled::Link { up } => self.faults.set_link(up),
            }
        }
        let next = self.schedule.lock().last().map(|&(time, _)| time);
        if let Some(next) = next {
            self.timers.schedule(SCHEDULE, &self.schedule_alarm, next);
        }
    }
}

/// Maximum time that the destruction of a queue pair with unsent packets waits for free space in
/// the peer's ring (queue in shared memory). After this time, the packets are discarded, because
/// the peer process has perhaps stopped receiving.
const LAST_TRANSMIT_TIMEOUT: Duration = Duration::from_millis(100);

/// Prepares this process to share memory with other processes of the host: opens a socket at which
/// other processes can request shared memory. Returns `None` if the kernel does not allow this.
fn host_peers(
    config: &Config,
    network: &Network,
    memory: &memory::Registry,
    timers: &Timers,
    counters: &Arc<Counters>,
) -> Option<Arc<HostPeers>> {
    let resources = same_host::ProcessResources {
        base_port: config.port,
        addresses: network
            .own_addresses()
            .take(same_host::MAX_LIST)
            .map(same_host::without_interface)
            .collect(),
        open: network.open_addresses(),
        gids: network.first_gids(same_host::MAX_LIST),
        publication: Arc::new(Publication::new(memory.key_base()).ok()?),
        arena: Arc::clone(memory.arena()?),
        wake_eventfd: Arc::new(timers.sleeper().wake_eventfd().ok()?),
        channels: WakeEventfds::new().ok()?,
        counters: Arc::clone(counters),
        // If only shared memory is allowed as a path, queue pairs of the same process use it, too.
        is_peer: config.path == Some(Way::Shared),
    };
    Some(Arc::new(HostPeers::open(resources).ok()?))
}

/// Returns the device's GUID. The GUID is derived from the host, its last boot, and the process, so
/// that the devices of different processes differ.
pub(crate) fn guid() -> u64 {
    static HOST: PerProcess<u32> = PerProcess::new(|| {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // FNV-1a
        boot.iter().fold(0x811c_9dc5, |hash: u32, &byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        })
    });
    let host = HOST.get();
    // A locally administered EUI-64.
    0x0200_0000_0000_0000 | u64::from(host & 0x00ff_ffff) << 32 | u64::from(process::id())
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("gids", &self.gids().collect::<Vec<_>>())
            .field("queue_pairs", &self.queue_pairs)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
