#![forbid(unsafe_code)]
//! How processes of a host find each other, and agree to share memory.
//!
//! Each listens at a name that says the address of its socket; whoever has that address in the same network has
//! the name, too. Who asks says what it has and hands it over, the other one does the same. Both look whether the kernel
//! lets them copy from and to each other's memory; where it does not, or where the other one is of another user,
//! nothing is shared, and packets go as they would to any host.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::admission::{
    self, ACCEPT_COOLDOWN, CONNECTIONS_PER_SECOND, Guest, HANDSHAKE_TIMEOUT, HANDSHAKES_PER_SECOND,
    MAX_LINKS, MAX_LINKS_PER_PROCESS, MAX_PENDING_HANDSHAKES, MAX_PENDING_PER_PROCESS,
    MAX_WELCOMED, Pending, RETRY_COOLDOWN, RateLimit,
};
use super::admitted::Admitted;
use super::bells::{self, Bells};
use super::letter::{Letter, Word, has_room};
use super::link::{Failures, Link, Peer};
use super::process::{self, Probe};
use super::regions::{Publication, Tables};
use super::segment::{self, Side};
use super::visitor::{Process, Visitor};
use crate::counters::Counters;
use crate::descriptor::{self, Descriptor};
use crate::memory::Arena;
use crate::net::address::slot_of_sender;

/// The longest delay of a wakeup that was deferred: much longer than a program takes to post what it answers to a message.
const MAX_WAKE_DELAY: Duration = Duration::from_micros(500);

/// The number that events of links have, in the set of descriptors that are watched.
const LINK_EVENT: u64 = 1;

/// The number that all other events have.
const OTHER_EVENT: u64 = 0;

/// What this process hands over.
pub(crate) struct Own {
    /// The UDP port of the first slot.
    pub(crate) base_port: u16,
    /// The addresses of its sockets.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Its GID table.
    pub(crate) gids: Vec<Ipv6Addr>,
    /// What the first slot of its table of regions is counted as in keys.
    pub(crate) key_base: u32,
    /// Its tables.
    pub(crate) publication: Arc<Publication>,
    /// Its memory for regions.
    pub(crate) arena: Arc<Arena>,
    /// What wakes its engine.
    pub(crate) bell: Arc<Descriptor>,
    /// What wakes threads of the program.
    pub(crate) channels: Arc<Bells>,
    /// Where it is counted how often others are woken.
    pub(crate) counters: Arc<Counters>,
    /// It is a peer of its own, and shares memory with itself.
    pub(crate) is_peer: bool,
}

/// The peers of a process on its host.
pub(crate) struct Directory {
    own: Own,
    listeners: Vec<Descriptor>,
    /// All descriptors of which something may be heard.
    heard: Descriptor,
    state: Mutex<State>,
    /// A peer became known, or was given up.
    changed: Condvar,
    /// Peers that may copy from and to memory of this process.
    admitted: Admitted<Arc<Visitor>>,
    /// The engine's thread. None: it has not looked yet.
    engine: OnceLock<Pid>,
    /// Ends soon after somebody was to be woken later.
    reminder: Descriptor,
    is_reminded: AtomicBool,
    /// Expires when there is something to do for pending handshakes.
    handshake_timer: Descriptor,
    failures: Arc<Failures>,
}

struct State {
    known: HashMap<SocketAddr, Known>,
    links: Vec<Arc<Link>>,
    guests: Vec<Guest>,
    connections: RateLimit,
    handshakes: RateLimit,
    /// When to accept connections again that are waiting. `None`: none are.
    accept_at: Option<Instant>,
    /// When the timer for handshakes expires. `None`: it is not set.
    timer: Option<Instant>,
    /// One that has ended is still a link, for what it has said before; or because nobody has looked since.
    has_legacy: bool,
    /// How often a link came or went.
    changes: u64,
}

enum Known {
    /// Somebody is asking.
    Asked,
    Linked(Arc<Link>),
    Declined(Instant),
}

/// The state of a handshake after this process has welcomed the peer.
pub(super) struct Welcomed {
    link: Arc<Link>,
    probe: Probe,
}

impl State {
    fn new(now: Instant) -> Self {
        Self {
            known: HashMap::new(),
            links: Vec::new(),
            guests: Vec::new(),
            connections: RateLimit::new(CONNECTIONS_PER_SECOND, now),
            handshakes: RateLimit::new(HANDSHAKES_PER_SECOND, now),
            accept_at: None,
            timer: None,
            has_legacy: false,
            changes: 0,
        }
    }

    /// Makes room for another pending handshake, in the place of the oldest one that has said nothing. False: there is
    /// no such one.
    fn make_room_for_guest(&mut self) -> bool {
        if self.guests.len() < MAX_PENDING_HANDSHAKES {
            return true;
        }
        let silent = self.guests.iter().enumerate();
        let oldest = silent
            .filter(|(_, guest)| guest.is_silent())
            .min_by_key(|(_, guest)| guest.since);
        let Some(index) = oldest.map(|(index, _)| index) else {
            return false;
        };
        self.guests.remove(index);
        true
    }

    /// Makes room for another handshake that is answered, in the place of the oldest one.
    fn make_room_for_welcomed(&mut self) {
        let welcomed = || {
            let guests = self.guests.iter().enumerate();
            guests.filter(|(_, guest)| guest.welcomed.is_some())
        };
        if welcomed().count() < MAX_WELCOMED {
            return;
        }
        if let Some((index, _)) = welcomed().min_by_key(|(_, guest)| guest.since) {
            give_up(self.guests.remove(index));
        }
    }

    /// Returns whether another process than this one has a link and one of these addresses.
    fn is_taken(&self, addresses: &[SocketAddr], process: Pid) -> bool {
        addresses
            .iter()
            .any(|address| match self.known.get(address) {
                Some(Known::Linked(link)) => link.process() != process && link.check(),
                _ => false,
            })
    }

    /// Returns when something is to be done for pending handshakes even if nothing comes.
    fn next_handshake(&self) -> Option<Instant> {
        let unread = self.guests.iter().any(|guest| guest.has_letter);
        let unread = unread.then(|| self.handshakes.ready_at());
        let deadlines = self.guests.iter().map(Guest::deadline);
        deadlines.chain(unread).chain(self.accept_at).min()
    }

    /// Whether the process with this address has asked, and has to say only that it comes.
    fn is_welcomed(&self, address: SocketAddr) -> bool {
        let welcomed = self
            .guests
            .iter()
            .filter_map(|guest| guest.welcomed.as_ref());
        let mut addresses = welcomed.flat_map(|welcomed| welcomed.link.addresses());
        addresses.any(|known| *known == address)
    }
}

/// What becomes of a question.
enum Outcome {
    Linked(Arc<Link>),
    Declined,
    /// The peer asks itself, and that counts.
    Waits,
}

impl Directory {
    /// Listens at the names of this process's addresses.
    pub(crate) fn open(own: Own) -> io::Result<Self> {
        if own.addresses.is_empty() || !has_room(&own.addresses, &own.gids) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let heard = Descriptor::open(|| epoll::create(CreateFlags::CLOEXEC))?;
        let mut listeners = Vec::new();
        for address in &own.addresses {
            let socket = socket(SocketFlags::NONBLOCK)?;
            bind(&socket, &name(*address)?)?;
            listen(&socket, MAX_PENDING_HANDSHAKES as i32)?;
            hear(&heard, socket.as_fd(), OTHER_EVENT)?;
            listeners.push(socket);
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = || -> io::Result<Descriptor> {
            let timer = Descriptor::open(|| timerfd_create(TimerfdClockId::Monotonic, flags))?;
            hear(&heard, timer.as_fd(), OTHER_EVENT)?;
            Ok(timer)
        };
        Ok(Self {
            reminder: timer()?,
            handshake_timer: timer()?,
            failures: Failures::new(Arc::clone(&own.bell)),
            is_reminded: AtomicBool::new(false),
            own,
            listeners,
            heard,
            state: Mutex::new(State::new(Instant::now())),
            changed: Condvar::new(),
            admitted: Admitted::new(),
            engine: OnceLock::new(),
        })
    }

    /// The link to the process with this address, if there is one, or if there can be one: it is asked, unless it
    /// declined a short while ago.
    pub(crate) fn link(&self, address: SocketAddr) -> Option<Arc<Link>> {
        if self.is_own(address) && !self.own.is_peer {
            return None;
        }
        let mut state = self.state.lock();
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        loop {
            match state.known.get(&address) {
                Some(Known::Linked(link)) if !link.is_dead() => return Some(Arc::clone(link)),
                Some(Known::Declined(when)) if when.elapsed() < RETRY_COOLDOWN => return None,
                Some(Known::Asked) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return None;
                    }
                    continue;
                }
                // It is about to come by itself; there is to be one link and not two.
                _ if state.is_welcomed(address) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return None;
                    }
                    continue;
                }
                _ => {}
            }
            state.known.insert(address, Known::Asked);
            let outcome = MutexGuard::unlocked(&mut state, || self.ask(address));
            match outcome {
                Ok(Outcome::Linked(link)) => {
                    self.add(&mut state, &link);
                    return Some(link);
                }
                // It becomes known by the peer's own question.
                Ok(Outcome::Waits) => {
                    let is_asked =
                        |state: &mut State| matches!(state.known.get(&address), Some(Known::Asked));
                    let waited = self
                        .changed
                        .wait_while_until(&mut state, is_asked, deadline);
                    if !waited.timed_out() {
                        continue;
                    }
                }
                Ok(Outcome::Declined) | Err(_) => {}
            }
            // Unless the peer has come meanwhile by itself.
            if let Some(Known::Asked) = state.known.get(&address) {
                state.known.insert(address, Known::Declined(Instant::now()));
                self.changed.notify_all();
            }
            return match state.known.get(&address) {
                Some(Known::Linked(link)) if !link.is_dead() => Some(Arc::clone(link)),
                _ => None,
            };
        }
    }

    /// All links.
    pub(crate) fn everyone(&self) -> Vec<Arc<Link>> {
        self.state.lock().links.clone()
    }

    /// All who may copy from and to memory here. To be asked after something was taken back.
    pub(crate) fn visitors(&self) -> Vec<Arc<Visitor>> {
        self.admitted.all()
    }

    /// Hears those who knock, those who were welcomed, and those whose end has come. Whether a link came or went.
    /// To be called by the engine's thread.
    pub(crate) fn attend(&self) -> bool {
        if self.engine.get().is_none() {
            let state = self.state.lock();
            let _ = self.engine.set(rustix::thread::gettid());
            self.changed.notify_all();
            drop(state);
        }
        let mut events = [MaybeUninit::uninit(); 16];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let (is_silent, is_link) = match epoll::wait(&self.heard, &mut events, Some(&now)) {
            Ok((heard, _)) => {
                let mut numbers = heard.iter().map(|event| event.data.u64());
                (heard.is_empty(), numbers.any(|number| number == LINK_EVENT))
            }
            Err(_) => (false, true),
        };
        if !is_silent && self.is_reminded.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::read(&self.reminder, &mut [0; 8]);
            let owing = self
                .everyone()
                .into_iter()
                .filter(|link| link.owes_waking());
            owing.for_each(|link| link.flush());
        }
        let has_failed = self.failures.take();
        let mut state = self.state.lock();
        if is_silent && !has_failed && !state.has_legacy {
            return false;
        }
        let before = state.changes;
        let now = Instant::now();
        self.let_in(&mut state, now);
        self.hear_guests(&mut state, now);
        if is_link || has_failed || state.has_legacy {
            self.remove_ended(&mut state);
        }
        self.set_handshake_timer(&mut state, now);
        state.changes != before
    }

    /// Removes links that have ended.
    fn remove_ended(&self, state: &mut State) {
        // What a peer has said before its end is heard first, as it is of one that is on a network; and who waits for it to make
        // room goes on.
        let (present, ended): (Vec<_>, Vec<_>) = (state.links.drain(..))
            .partition(|link| link.check() || link.may_have_messages() || link.owes_news());
        state.links = present;
        state.has_legacy = state.links.iter().any(|link| link.is_dead());
        if state.has_legacy {
            // Of an end nobody is told twice.
            self.ring();
        }
        if !ended.is_empty() {
            let is_dead = |known: &Known| matches!(known, Known::Linked(link) if link.is_dead());
            state.known.retain(|_, known| !is_dead(known));
            state.changes += 1;
        }
        self.dismiss();
    }

    /// Has [`heard`](Self::heard) tell when something is to be done for pending handshakes.
    fn set_handshake_timer(&self, state: &mut State, now: Instant) {
        let next = state.next_handshake();
        // One that has expired is set anew.
        state.timer = state.timer.filter(|&timer| timer > now);
        if next == state.timer {
            return;
        }
        state.timer = next;
        // Zero would mean never.
        let after = next.map(|next| {
            next.saturating_duration_since(now)
                .max(Duration::from_nanos(1))
        });
        set_timer(&self.handshake_timer, after.unwrap_or_default());
    }

    /// Has [`attend`](Self::attend) wake those who were to be woken later, unless that is done before.
    pub(crate) fn remind(&self) {
        if self.is_reminded.load(Ordering::Relaxed) || self.is_reminded.swap(true, Ordering::AcqRel)
        {
            return;
        }
        set_timer(&self.reminder, MAX_WAKE_DELAY);
    }

    /// What is readable when there is something to [`attend`](Self::attend) to.
    pub(crate) fn heard(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }

    /// Allows as many connections and handshakes as after a pause.
    #[cfg(any(test, fuzzing))]
    pub(super) fn reset_limits(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.connections = RateLimit::new(CONNECTIONS_PER_SECOND, now);
        state.handshakes = RateLimit::new(HANDSHAKES_PER_SECOND, now);
    }

    /// Panics if there are more handshakes or links than there may be.
    #[cfg(any(test, fuzzing))]
    pub(super) fn check_limits(&self) {
        let state = self.state.lock();
        assert!(state.guests.len() <= MAX_PENDING_HANDSHAKES);
        for guest in &state.guests {
            let same = |other: &&Guest| other.process == guest.process;
            assert!(state.guests.iter().filter(same).count() <= MAX_PENDING_PER_PROCESS);
            assert!(self.links_with(guest.process) <= MAX_LINKS_PER_PROCESS);
        }
        let welcomed = state.guests.iter().filter(|guest| guest.welcomed.is_some());
        assert!(welcomed.count() <= MAX_WELCOMED);
    }

    /// Returns whether it has no link and no pending handshake.
    #[cfg(any(test, fuzzing))]
    pub(super) fn is_alone(&self) -> bool {
        let state = self.state.lock();
        state.guests.is_empty() && state.links.is_empty() && self.admitted.count(|_| true) == 0
    }

    /// Returns the descriptor that is readable when the engine is to be woken.
    #[cfg(all(test, not(loom)))]
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.own.bell.as_fd()
    }

    /// Wakes this process's own engine.
    pub(crate) fn ring(&self) {
        descriptor::count_up(self.own.bell.as_fd());
    }

    /// Asks a process.
    fn ask(&self, address: SocketAddr) -> io::Result<Outcome> {
        // Numbers that are no longer the device's must not be handed over.
        if !descriptor::check_all() {
            return Ok(Outcome::Declined);
        }
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let socket = connect_to(address)?;
        let Some(process) = process::owner(socket.as_fd()) else {
            return Ok(Outcome::Declined);
        };
        let handle = handle(process);
        let (file, side) = segment::make()?;
        let probe = new_probe();
        self.wait_for_engine(deadline);
        let Some(hello) = self.describe(Word::Hello, &probe) else {
            return Ok(Outcome::Declined);
        };
        hello.send(socket.as_fd(), &self.descriptors(Some(file.as_fd())))?;
        if !wait(socket.as_fd(), deadline)? {
            return Ok(Outcome::Declined);
        }
        let (letter, descriptors) = Letter::receive(socket.as_fd())?;
        match letter.word {
            Word::Welcome => {}
            Word::Later => return Ok(Outcome::Waits),
            _ => return Ok(Outcome::Declined),
        }
        let thread = process::reach(process, letter.thread, letter.probe);
        let Some(thread) = thread.filter(|_| probe.is_answered()) else {
            return Ok(Outcome::Declined);
        };
        let peer = self.peer(letter, descriptors)?;
        if !peer.addresses.contains(&address) {
            return Ok(Outcome::Declined);
        }
        let process = Process {
            number: process,
            thread,
            socket,
            handle,
        };
        let link = self.new_link(peer, process, side);
        self.admit(&link, &Letter::only(Word::Ready), &[])?;
        Ok(Outcome::Linked(link))
    }

    /// Returns the number of links with a process that this process has, and of those that have ended here and may not
    /// have ended there.
    fn links_with(&self, process: Pid) -> usize {
        self.admitted
            .count(|visitor| visitor.process.number == process && !visitor.is_gone())
    }

    fn new_link(&self, peer: Peer, process: Process, side: Side) -> Arc<Link> {
        let counters = Arc::clone(&self.own.counters);
        Link::new(peer, process, side, counters, Arc::clone(&self.failures))
    }

    /// Sends a peer the letter by which it may copy.
    fn admit(
        &self,
        link: &Link,
        letter: &Letter,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let visitor = link.visitor();
        for watched in visitor.watched() {
            // Who does not hear the end of a peer notices it when something is waited for.
            let _ = hear(&self.heard, watched, LINK_EVENT);
        }
        let socket = visitor.process.socket.as_fd();
        (self.admitted).admit(Arc::clone(visitor), || letter.send(socket, descriptors))
    }

    /// Forgets those who cannot copy any more.
    fn dismiss(&self) {
        self.admitted.retain(|visitor| {
            let is_gone = visitor.is_gone();
            if is_gone {
                for watched in visitor.watched() {
                    let _ = epoll::delete(&self.heard, watched);
                }
            }
            !is_gone
        });
    }

    /// Accepts connections, as many as the limits allow.
    fn let_in(&self, state: &mut State, now: Instant) {
        state.accept_at = None;
        for listener in &self.listeners {
            loop {
                if !state.connections.is_ready(now) {
                    state.accept_at = Some(state.connections.ready_at());
                    return;
                }
                if !state.make_room_for_guest() {
                    state.accept_at = Some(now + ACCEPT_COOLDOWN);
                    return;
                }
                match Descriptor::open(|| accept_with(listener, SocketFlags::CLOEXEC)) {
                    Ok(socket) => {
                        state.connections.count(now);
                        self.accept(state, socket, now);
                    }
                    Err(error) if admission::is_drained(error) => break,
                    Err(_) => {
                        state.accept_at = Some(now + ACCEPT_COOLDOWN);
                        break;
                    }
                }
            }
        }
    }

    /// Begins a handshake with the process that has connected, if it may have one.
    fn accept(&self, state: &mut State, socket: Descriptor, now: Instant) {
        let Some(process) = process::owner(socket.as_fd()) else {
            return;
        };
        let pending = state.guests.iter();
        let pending = pending.filter(|guest| guest.process == process).count();
        if pending < MAX_PENDING_PER_PROCESS
            && hear(&self.heard, socket.as_fd(), OTHER_EVENT).is_ok()
        {
            state.guests.push(Guest {
                socket,
                process,
                since: now,
                has_letter: false,
                welcomed: None,
            });
        }
    }

    /// Goes on with all pending handshakes, and gives up those that take too long.
    fn hear_guests(&self, state: &mut State, now: Instant) {
        let (welcomed, others): (Vec<_>, Vec<_>) = std::mem::take(&mut state.guests)
            .into_iter()
            .partition(|guest| guest.welcomed.is_some());
        let before = welcomed.len() + others.len();
        for mut guest in welcomed {
            if self.greet(state, &mut guest) {
                state.guests.push(guest);
            }
        }
        for mut guest in others {
            let stays = match guest.pending() {
                Pending::Nothing => true,
                Pending::End => false,
                Pending::Letter if state.handshakes.is_ready(now) => {
                    state.handshakes.count(now);
                    guest.has_letter = false;
                    self.greet(state, &mut guest)
                }
                Pending::Letter => {
                    guest.has_letter = true;
                    true
                }
            };
            if stays {
                state.guests.push(guest);
            }
        }
        while let Some(late) = state
            .guests
            .iter()
            .position(|guest| guest.deadline() <= now)
        {
            give_up(state.guests.remove(late));
        }
        if state.guests.len() < before {
            // Who waited for it has it, or asks.
            self.changed.notify_all();
        }
    }

    /// Hears what a guest says; whether it stays one.
    fn greet(&self, state: &mut State, guest: &mut Guest) -> bool {
        let (letter, descriptors) = match Letter::receive(guest.socket.as_fd()) {
            Ok(came) => came,
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        match (letter.word, guest.welcomed.take()) {
            (Word::Hello, None) => match self.welcome(state, guest, letter, descriptors) {
                Ok(welcomed) => {
                    state.make_room_for_welcomed();
                    guest.welcomed = Some(welcomed);
                    true
                }
                Err(word) => {
                    let _ = Letter::only(word).send(guest.socket.as_fd(), &[]);
                    false
                }
            },
            (Word::Ready, Some(Welcomed { link, probe }))
                if probe.is_answered() && !state.is_taken(link.addresses(), guest.process) =>
            {
                self.add(state, &link);
                false
            }
            _ => false,
        }
    }

    /// Answers a question with a yes, or says what else is to be answered.
    fn welcome(
        &self,
        state: &State,
        guest: &Guest,
        letter: Letter,
        mut descriptors: Vec<Descriptor>,
    ) -> Result<Welcomed, Word> {
        const NO: Word = Word::Sorry;
        // As in `ask`.
        if !descriptor::check_all() {
            return Err(NO);
        }
        let asks = |address| matches!(state.known.get(address), Some(Known::Asked));
        let process = guest.process;
        let first = letter.addresses.first().ok_or(NO)?;
        // It has not heard yet that there is a link.
        if let Some(Known::Linked(link)) = state.known.get(first)
            && link.process() == process
            && link.check()
        {
            return Err(Word::Later);
        }
        // Both have to come to the same answer.
        if letter.addresses.iter().any(asks) && self.own.addresses.first() < Some(first) {
            return Err(Word::Later);
        }
        let mut welcomed = state.guests.iter().filter(|guest| guest.welcomed.is_some());
        if welcomed.any(|guest| guest.process == process) {
            return Err(Word::Later);
        }
        if self.admitted.count(|_| true) >= MAX_LINKS
            || self.links_with(process) >= MAX_LINKS_PER_PROCESS
            || state.is_taken(&letter.addresses, process)
            || admission::is_short_of_descriptors(&guest.socket)
            || descriptors.is_empty()
        {
            return Err(NO);
        }
        let file = descriptors.remove(0);
        let side = segment::take(file.as_fd()).map_err(|_| NO)?;
        let handle = handle(process);
        let thread = process::reach(process, letter.thread, letter.probe).ok_or(NO)?;
        let process = Process {
            number: process,
            thread,
            socket: guest.socket.try_clone().map_err(|_| NO)?,
            handle,
        };
        let peer = self.peer(letter, descriptors).map_err(|_| NO)?;
        let probe = new_probe();
        let answer = self.describe(Word::Welcome, &probe).ok_or(NO)?;
        let link = self.new_link(peer, process, side);
        self.admit(&link, &answer, &self.descriptors(None))
            .map_err(|_| NO)?;
        Ok(Welcomed { link, probe })
    }

    /// A letter that says what this process is. None: its engine has not begun.
    fn describe(&self, word: Word, probe: &Probe) -> Option<Letter> {
        Some(Letter {
            word,
            probe: probe.address(),
            thread: self.engine.get()?.as_raw_pid(),
            key_base: self.own.key_base,
            addresses: self.own.addresses.clone(),
            gids: self.own.gids.clone(),
        })
    }

    /// Waits until the engine has begun.
    fn wait_for_engine(&self, deadline: Instant) {
        let mut state = self.state.lock();
        let is_missing = |_: &mut State| self.engine.get().is_none();
        self.changed
            .wait_while_until(&mut state, is_missing, deadline);
    }

    /// What goes with a letter: the shared memory of who makes it, the tables, the arena and the bells.
    fn descriptors<'a>(&'a self, segment: Option<BorrowedFd<'a>>) -> Vec<BorrowedFd<'a>> {
        let own = [
            self.own.publication.as_fd(),
            self.own.arena.as_fd(),
            self.own.bell.as_fd(),
        ];
        let own = own.into_iter().chain(self.own.channels.all());
        segment.into_iter().chain(own).collect()
    }

    /// What a peer said and handed over, with the memory of it that is to be read.
    fn peer(&self, letter: Letter, mut descriptors: Vec<Descriptor>) -> io::Result<Peer> {
        if descriptors.len() != 3 + bells::COUNT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let channels = descriptors.split_off(3);
        let wrong = |_| io::Error::from(io::ErrorKind::InvalidData);
        let [tables, arena, bell] = <[Descriptor; 3]>::try_from(descriptors).map_err(wrong)?;
        // A write to something else could wait.
        if !channels
            .iter()
            .chain([&bell])
            .all(|bell| bells::is_bell(bell.as_fd()))
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut slots = letter.addresses.iter().filter_map(|&address| {
            let slot = slot_of_sender(self.own.base_port, address);
            slot.ok().flatten()
        });
        Ok(Peer {
            slot: slots.next(),
            addresses: letter.addresses,
            gids: letter.gids,
            key_base: letter.key_base,
            tables: Tables::map(tables.as_fd())?,
            arena,
            bell,
            channels,
        })
    }

    fn is_own(&self, address: SocketAddr) -> bool {
        self.own.addresses.contains(&address)
    }

    /// A link is there: in the place of another one that the peer does not know any more.
    fn add(&self, state: &mut State, link: &Arc<Link>) {
        for &address in link.addresses() {
            let before = state.known.insert(address, Known::Linked(Arc::clone(link)));
            match before {
                // The other end of the same memory.
                Some(Known::Linked(_)) if self.is_own(address) => {}
                Some(Known::Linked(before)) => {
                    before.end();
                    state.has_legacy = true;
                }
                _ => {}
            }
        }
        state.links.push(Arc::clone(link));
        state.changes += 1;
        self.changed.notify_all();
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("addresses", &self.own.addresses)
            .field("links", &self.state.lock().links)
            .finish_non_exhaustive()
    }
}

/// Connects to the process that has an address. Where many others do so at the same time, this waits for its turn, which
/// the kernel gives in the order of asking.
fn connect_to(address: SocketAddr) -> io::Result<Descriptor> {
    let socket = socket(SocketFlags::empty())?;
    set_socket_timeout(&socket, Timeout::Send, Some(HANDSHAKE_TIMEOUT))?;
    connect(&socket, &name(address)?)?;
    Ok(socket)
}

fn socket(flags: SocketFlags) -> io::Result<Descriptor> {
    let flags = flags | SocketFlags::CLOEXEC;
    let open = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    Ok(Descriptor::open(open)?)
}

/// The name of the process that has an address. It is no file, and ends with the process; and like the address
/// it is the network namespace's.
fn name(address: SocketAddr) -> io::Result<SocketAddrUnix> {
    let name = format!("softroce/{address}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Has a descriptor heard: once for each thing that happens to it.
fn hear(heard: &Descriptor, descriptor: BorrowedFd<'_>, number: u64) -> io::Result<()> {
    let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    match epoll::add(heard, descriptor, EventData::new_u64(number), events) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// Ends a handshake that was not finished in time. The peer may copy until it has closed its end.
fn give_up(guest: Guest) {
    if let Some(Welcomed { link, .. }) = guest.welcomed {
        link.break_off();
    }
}

/// Sets a timer, or unsets it if `after` is zero.
fn set_timer(timer: &Descriptor, after: Duration) {
    let timespec = |duration: Duration| Timespec {
        tv_sec: duration.as_secs() as _,
        tv_nsec: duration.subsec_nanos().into(),
    };
    let once = Itimerspec {
        it_interval: timespec(Duration::ZERO),
        it_value: timespec(after),
    };
    // A timer that is there can be set.
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &once);
}

/// What tells the end of a process, even if others hold its end of the connection. None: the system cannot.
fn handle(process: Pid) -> Option<Descriptor> {
    Descriptor::open(|| pidfd_open(process, PidfdFlags::empty())).ok()
}

fn new_probe() -> Probe {
    Probe::new(RandomState::new().hash_one(0_u8))
}

/// Waits until something can be read; whether it can.
fn wait(socket: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut descriptors = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}
