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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::bells::{self, Bells};
use super::letter::{Letter, Word, has_room};
use super::link::{Link, Peer};
use super::process::{self, Probe};
use super::regions::{Publication, Tables};
use super::segment;
use crate::counters::Counters;
use crate::memory::Arena;

/// How long a peer may take to answer. It is its engine that does, which is there when nobody else is.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a peer that did not want to, or could not, is not asked again.
const RESPITE: Duration = Duration::from_secs(1);

/// When those are woken at the latest who were to be woken later, in nanoseconds.
const SOON: i64 = 500_000;

/// Those who knock and have not been let in yet, at most.
const GUESTS: usize = 64;

/// What this process hands over.
pub(crate) struct Own {
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
    pub(crate) bell: OwnedFd,
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
    listeners: Vec<OwnedFd>,
    /// All descriptors of which something may be heard.
    heard: OwnedFd,
    state: Mutex<State>,
    /// A peer became known, or was given up.
    changed: Condvar,
    /// How many were ever given access to memory here.
    welcomed: AtomicU64,
    /// Ends soon after somebody was to be woken later.
    reminder: OwnedFd,
    is_reminded: AtomicBool,
}

#[derive(Default)]
struct State {
    known: HashMap<SocketAddr, Known>,
    links: Vec<Arc<Link>>,
    guests: Vec<Guest>,
    /// One that has ended is still a link, for what it has said before.
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

/// One who knocked.
struct Guest {
    socket: OwnedFd,
    since: Instant,
    /// It was welcomed, and has to say whether it comes.
    welcomed: Option<Welcomed>,
}

struct Welcomed {
    link: Arc<Link>,
    probe: Probe,
}

impl State {
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
        let heard = epoll::create(CreateFlags::CLOEXEC)?;
        let mut listeners = Vec::new();
        for address in &own.addresses {
            let socket = socket()?;
            bind(&socket, &name(*address)?)?;
            listen(&socket, GUESTS as i32)?;
            hear(&heard, socket.as_fd())?;
            listeners.push(socket);
        }
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let reminder = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        hear(&heard, reminder.as_fd())?;
        Ok(Self {
            reminder,
            is_reminded: AtomicBool::new(false),
            own,
            listeners,
            heard,
            state: Mutex::default(),
            changed: Condvar::new(),
            welcomed: AtomicU64::new(0),
        })
    }

    /// The link to the process with this address, if there is one, or if there can be one: it is asked, unless it
    /// declined a short while ago.
    pub(crate) fn link(&self, address: SocketAddr) -> Option<Arc<Link>> {
        if self.is_own(address) && !self.own.is_peer {
            return None;
        }
        let mut state = self.state.lock();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match state.known.get(&address) {
                Some(Known::Linked(link)) if !link.is_dead() => return Some(Arc::clone(link)),
                Some(Known::Declined(when)) if when.elapsed() < RESPITE => return None,
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

    /// All links by which peers may already copy: also of those who were welcomed and have not said yet that they come.
    pub(crate) fn visitors(&self) -> Vec<Arc<Link>> {
        // Who is welcomed later sees all that was taken back before this.
        fence(Ordering::SeqCst);
        if self.welcomed.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let state = self.state.lock();
        let guests = state.guests.iter();
        let welcomed = guests.filter_map(|guest| Some(&guest.welcomed.as_ref()?.link));
        state.links.iter().chain(welcomed).cloned().collect()
    }

    /// Hears those who knock, those who were welcomed, and those whose end has come. Whether a link came or went.
    pub(crate) fn attend(&self) -> bool {
        let mut events = [MaybeUninit::uninit(); 16];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let heard = epoll::wait(&self.heard, &mut events, Some(&now));
        let is_silent = heard.is_ok_and(|(heard, _)| heard.is_empty());
        if !is_silent && self.is_reminded.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::read(&self.reminder, &mut [0; 8]);
            let owing = self
                .everyone()
                .into_iter()
                .filter(|link| link.owes_waking());
            owing.for_each(|link| link.flush());
        }
        if is_silent {
            let state = self.state.lock();
            if state.guests.is_empty() && !state.has_legacy {
                return false;
            }
        }
        self.let_in();
        let mut state = self.state.lock();
        let before = state.changes;
        for mut guest in std::mem::take(&mut state.guests) {
            if self.greet(&mut state, &mut guest) && guest.since.elapsed() < PATIENCE {
                state.guests.push(guest);
            } else {
                // Who waited for it has it, or asks.
                self.changed.notify_all();
            }
        }
        // What a peer has said before its end is heard first, as it is of one that is on a network; and who waits for it to make
        // room goes on.
        let (present, dead): (Vec<_>, Vec<_>) = (state.links.drain(..))
            .partition(|link| link.check() || link.may_have_messages() || link.owes_news());
        state.links = present;
        state.has_legacy = state.links.iter().any(|link| link.is_dead());
        if state.has_legacy {
            // Of an end nobody is told twice.
            self.ring();
        }
        if !dead.is_empty() {
            let is_dead = |known: &Known| matches!(known, Known::Linked(link) if link.is_dead());
            state.known.retain(|_, known| !is_dead(known));
            for watched in dead.iter().flat_map(|link| link.watched()) {
                let _ = epoll::delete(&self.heard, watched);
            }
            state.changes += 1;
        }
        state.changes != before
    }

    /// Has [`attend`](Self::attend) wake those who were to be woken later, unless that is done before.
    pub(crate) fn remind(&self) {
        if self.is_reminded.load(Ordering::Relaxed) || self.is_reminded.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: SOON,
        };
        let once = Itimerspec {
            it_interval: never,
            it_value: soon,
        };
        // A timer that is there can be set.
        let _ = timerfd_settime(&self.reminder, TimerfdTimerFlags::empty(), &once);
    }

    /// What is readable when there is something to [`attend`](Self::attend) to.
    pub(crate) fn heard(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }

    /// Wakes this process's own engine.
    pub(crate) fn ring(&self) {
        // It fails only where the counter is full, and then the bell is ringing anyway.
        let _ = rustix::io::write(&self.own.bell, &1_u64.to_ne_bytes());
    }

    /// Asks a process.
    fn ask(&self, address: SocketAddr) -> io::Result<Outcome> {
        let socket = socket()?;
        connect(&socket, &name(address)?)?;
        let Some(process) = process::owner(socket.as_fd()) else {
            return Ok(Outcome::Declined);
        };
        let handle = handle(process);
        let (file, side) = segment::make()?;
        let probe = new_probe();
        let hello = self.letter(Word::Hello, &probe);
        self.welcomed.fetch_add(1, Ordering::SeqCst);
        hello.send(socket.as_fd(), &self.descriptors(Some(file.as_fd())))?;
        let deadline = Instant::now() + PATIENCE;
        if !wait(socket.as_fd(), deadline)? {
            return Ok(Outcome::Declined);
        }
        let (letter, descriptors) = Letter::receive(socket.as_fd())?;
        match letter.word {
            Word::Welcome => {}
            Word::Later => return Ok(Outcome::Waits),
            _ => return Ok(Outcome::Declined),
        }
        let reaches = process::probe(process, letter.probe) && probe.is_answered();
        let peer = self.peer(letter, descriptors, process, socket, handle)?;
        if !reaches || !peer.addresses.contains(&address) {
            return Ok(Outcome::Declined);
        }
        Letter::only(Word::Ready).send(peer.socket.as_fd(), &[])?;
        Ok(Outcome::Linked(Link::new(
            peer,
            side,
            Arc::clone(&self.own.counters),
        )))
    }

    fn let_in(&self) {
        for listener in &self.listeners {
            while let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) {
                let mut state = self.state.lock();
                if state.guests.len() < GUESTS && hear(&self.heard, socket.as_fd()).is_ok() {
                    state.guests.push(Guest {
                        socket,
                        since: Instant::now(),
                        welcomed: None,
                    });
                }
            }
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
                    guest.welcomed = Some(welcomed);
                    true
                }
                Err(word) => {
                    let _ = Letter::only(word).send(guest.socket.as_fd(), &[]);
                    false
                }
            },
            (Word::Ready, Some(welcomed)) if welcomed.probe.is_answered() => {
                self.add(state, &welcomed.link);
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
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Welcomed, Word> {
        const NO: Word = Word::Sorry;
        let asks = |address| matches!(state.known.get(address), Some(Known::Asked));
        let process = process::owner(guest.socket.as_fd()).ok_or(NO)?;
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
        if descriptors.is_empty() {
            return Err(NO);
        }
        let file = descriptors.remove(0);
        let side = segment::take(file.as_fd()).map_err(|_| NO)?;
        let handle = handle(process);
        if !process::probe(process, letter.probe) {
            return Err(NO);
        }
        let socket = guest.socket.try_clone().map_err(|_| NO)?;
        let peer = self
            .peer(letter, descriptors, process, socket, handle)
            .map_err(|_| NO)?;
        let probe = new_probe();
        self.welcomed.fetch_add(1, Ordering::SeqCst);
        self.letter(Word::Welcome, &probe)
            .send(guest.socket.as_fd(), &self.descriptors(None))
            .map_err(|_| NO)?;
        let link = Link::new(peer, side, Arc::clone(&self.own.counters));
        Ok(Welcomed { link, probe })
    }

    fn letter(&self, word: Word, probe: &Probe) -> Letter {
        Letter {
            word,
            probe: probe.address(),
            key_base: self.own.key_base,
            addresses: self.own.addresses.clone(),
            gids: self.own.gids.clone(),
        }
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
    fn peer(
        &self,
        letter: Letter,
        mut descriptors: Vec<OwnedFd>,
        process: Pid,
        socket: OwnedFd,
        handle: Option<OwnedFd>,
    ) -> io::Result<Peer> {
        if descriptors.len() != 3 + bells::COUNT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let channels = descriptors.split_off(3);
        let wrong = |_| io::Error::from(io::ErrorKind::InvalidData);
        let [tables, arena, bell] = <[OwnedFd; 3]>::try_from(descriptors).map_err(wrong)?;
        // A write to something else could wait.
        if !channels
            .iter()
            .chain([&bell])
            .all(|bell| bells::is_bell(bell.as_fd()))
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Peer {
            addresses: letter.addresses,
            gids: letter.gids,
            key_base: letter.key_base,
            process,
            tables: Tables::map(tables.as_fd())?,
            arena,
            bell,
            channels,
            socket,
            handle,
        })
    }

    fn is_own(&self, address: SocketAddr) -> bool {
        self.own.addresses.contains(&address)
    }

    /// A link is there: in the place of another one that the peer does not know any more.
    fn add(&self, state: &mut State, link: &Arc<Link>) {
        for watched in link.watched() {
            // Who does not hear the end of a peer notices it when something is waited for.
            let _ = hear(&self.heard, watched);
        }
        for &address in link.addresses() {
            let before = state.known.insert(address, Known::Linked(Arc::clone(link)));
            match before {
                // The other end of the same memory.
                Some(Known::Linked(_)) if self.is_own(address) => {}
                Some(Known::Linked(before)) => before.end(),
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

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// The name of the process that has an address. It is no file, and ends with the process; and like the address
/// it is the network namespace's.
fn name(address: SocketAddr) -> io::Result<SocketAddrUnix> {
    let name = format!("softroce/{address}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// Has a descriptor heard: once for each thing that happens to it.
fn hear(heard: &OwnedFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    match epoll::add(heard, descriptor, EventData::new_u64(0), events) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// What tells the end of a process, even if others hold its end of the connection. None: the system cannot.
fn handle(process: Pid) -> Option<OwnedFd> {
    pidfd_open(process, PidfdFlags::empty()).ok()
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
