#![forbid(unsafe_code)]
//! The way to another process of the same host.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Pid;

use super::backlog::Backlog;
use super::brief;
use super::epoch::{Lanes, Occupied};
use super::process;
use super::regions::{FilePlace, Tables};
use super::ring::{self, Broken, CHUNK, PushError};
use super::segment::{Receiver, Sender, Side};
use super::shared::{Map, One, Part, Rights};
use super::wake::{Sleep, Sleeper};
use crate::counters::Counters;
use crate::proto::{self, Brief, Counter};
use crate::spin;

/// What a peer says of itself, and what it hands over.
#[derive(Debug)]
pub(super) struct Peer {
    /// The addresses of its sockets.
    pub(super) addresses: Vec<SocketAddr>,
    /// Its GID table.
    pub(super) gids: Vec<Ipv6Addr>,
    /// What the first slot of its table of regions is counted as in keys.
    pub(super) key_base: u32,
    pub(super) process: Pid,
    pub(super) tables: Tables,
    pub(super) arena: OwnedFd,
    pub(super) bell: OwnedFd,
    /// Those of its program's threads.
    pub(super) channels: Vec<OwnedFd>,
    /// The connection that ends with the process, or when it becomes another program.
    pub(super) socket: OwnedFd,
    /// The process itself. None: the system cannot tell.
    pub(super) handle: Option<OwnedFd>,
}

/// The way to another process of the same host: what both have mapped.
pub struct Link {
    peer: Peer,
    side: Shared,
    inbound: spin::Mutex<Inbound>,
    /// The slot that the next message comes in.
    next: AtomicU32,
    pub(super) backlog: Backlog,
    owes_waking: AtomicBool,
    maps: RwLock<Vec<(Range<u64>, Arc<Map>)>>,
    is_dead: AtomicBool,
    start: Instant,
    /// When the peer was last seen to be there, in nanoseconds after the start.
    seen: AtomicU64,
    counters: Arc<Counters>,
}

/// What one thread at a time receives with.
struct Inbound {
    receiver: Receiver,
    /// Where a message is copied to that is longer than a slot.
    bytes: Box<[u8]>,
    /// What the peer wrote makes no sense: there is nothing more to be received.
    is_broken: bool,
}

/// What of a [`Side`] all threads use at once.
#[derive(Debug)]
struct Shared {
    sender: Sender,
    slots: Part<ring::Slot>,
    own_sleep: One<ring::Line>,
    peer_sleep: One<ring::Line>,
    own_lanes: Part<ring::Line>,
    peer_lanes: Part<ring::Line>,
}

/// A message that came by a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Said<'a> {
    Packet(&'a [u8]),
    Brief(&'a Brief<'a>),
}

/// Why something could not be done by a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no room at present.
    Full,
    /// The peer is gone.
    Dead,
}

/// Nanoseconds in which a process's number is not used again: it takes as many new processes as there are
/// numbers.
const FRESH: u64 = 1_000_000;

/// How long to wait without a pause for a peer to finish a copy.
const HASTE: Duration = Duration::from_millis(1);

/// How long a peer that is stopped is waited for in all.
const PATIENCE_STOPPED: Duration = Duration::from_secs(1);

/// How long any peer is: one that is not stopped is done in a moment, unless it is frozen.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest message.
pub(crate) const LONGEST: usize = 4096 + 256;

/// The bit of a slot's tag that says that it is a brief.
const BRIEF: u16 = 1 << 15;

/// Bytes that fit into a slot beside the first word.
const SHORT: usize = 8 * (ring::WORDS - 1);

impl Link {
    pub(super) fn new(peer: Peer, side: Side, counters: Arc<Counters>) -> Arc<Self> {
        let Side {
            sender,
            receiver,
            slots,
            own_sleep,
            peer_sleep,
            own_lanes,
            peer_lanes,
        } = side;
        // Whoever is to look may be asleep and not know of the link.
        Sleep(&own_sleep.0).declare(Sleeper::Engine);
        Arc::new(Self {
            peer,
            side: Shared {
                sender,
                slots,
                own_sleep,
                peer_sleep,
                own_lanes,
                peer_lanes,
            },
            inbound: spin::Mutex::new(Inbound {
                receiver,
                bytes: vec![0; LONGEST].into(),
                is_broken: false,
            }),
            next: AtomicU32::new(0),
            backlog: Backlog::default(),
            owes_waking: AtomicBool::new(false),
            maps: RwLock::default(),
            is_dead: AtomicBool::new(false),
            start: Instant::now(),
            seen: AtomicU64::new(0),
            counters,
        })
    }

    /// The addresses of the peer's sockets.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.peer.addresses
    }

    /// The peer's GID table.
    pub(crate) fn gids(&self) -> &[Ipv6Addr] {
        &self.peer.gids
    }

    /// Whether the peer is known to be gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Asks the system whether the peer is there. Once it is not, its link is dead for ever.
    pub(crate) fn check(&self) -> bool {
        if !self.is_dead() && is_gone(&self.peer.socket, self.peer.handle.as_ref()) {
            self.end();
        }
        !self.is_dead()
    }

    /// Whether the peer was there a moment ago: so shortly that nobody else can have got its number.
    pub(super) fn is_fresh(&self) -> bool {
        let now = self.start.elapsed().as_nanos() as u64;
        if now.saturating_sub(self.seen.load(Ordering::Relaxed)) > FRESH {
            if !self.check() {
                return false;
            }
            self.seen.store(now, Ordering::Relaxed);
        }
        !self.is_dead()
    }

    pub(super) fn sender(&self) -> &Sender {
        &self.side.sender
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.peer.tables
    }

    pub(super) fn key_base(&self) -> u32 {
        self.peer.key_base
    }

    pub(super) fn process(&self) -> Pid {
        self.peer.process
    }

    pub(super) fn own_lanes(&self) -> &[ring::Line] {
        &self.side.own_lanes
    }

    /// The link is no longer used.
    pub(crate) fn end(&self) {
        self.is_dead.store(true, Ordering::Release);
    }

    /// Sends a packet, with a number of 15 bits that is not 0. The peer is told of it by [`flush`](Self::flush).
    pub(crate) fn send(&self, tag: u16, bytes: &[u8]) -> Result<(), Failure> {
        debug_assert!(bytes.len() <= LONGEST);
        let mut words = [0; ring::WORDS];
        words[0] = bytes.len() as u64;
        let chunks = if bytes.len() <= SHORT {
            for (word, bytes) in words[1..].iter_mut().zip(bytes.chunks(8)) {
                let mut value = [0; 8];
                value[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(value);
            }
            0
        } else {
            bytes.len().div_ceil(CHUNK) as u16
        };
        self.push(tag, &words, chunks, bytes)
    }

    /// Sends a brief, as [`send`](Self::send) sends packets.
    #[inline]
    pub(crate) fn send_brief(&self, tag: u16, brief: &Brief<'_>) -> Result<(), Failure> {
        self.send_words(tag, &brief::encode(brief))
    }

    /// Sends what [encoding](brief::encode) a brief has given.
    #[inline]
    pub(super) fn send_words(&self, tag: u16, words: &[u64; ring::WORDS]) -> Result<(), Failure> {
        self.push(tag | BRIEF, words, 0, &[])
    }

    #[inline]
    fn push(
        &self,
        tag: u16,
        words: &[u64; ring::WORDS],
        chunks: u16,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        if self.is_dead() {
            return Err(Failure::Dead);
        }
        let fill = |room: ring::Room<'_>| {
            room.write(bytes);
            Ok::<(), ()>(())
        };
        match self.side.sender.push(tag, words, chunks, fill) {
            Ok(()) => Ok(()),
            Err(PushError::Full | PushError::Content(())) => Err(Failure::Full),
            Err(PushError::Broken) => {
                self.end();
                Err(Failure::Dead)
            }
        }
    }

    /// Wakes the peer if it sleeps, for what was sent before.
    pub(crate) fn flush(&self) {
        if self.owes_waking.load(Ordering::Relaxed) {
            self.owes_waking.store(false, Ordering::Relaxed);
        }
        let Some(sleeper) = Sleep(&self.side.peer_sleep.0).interrupt() else {
            return;
        };
        self.counters.count(Counter::SharedWakings, 1);
        let channel = match sleeper {
            Sleeper::Engine => None,
            Sleeper::Channel(number) => self.peer.channels.get(number),
        };
        if channel.is_some() {
            self.counters.count(Counter::SharedChannelWakings, 1);
        }
        // It fails where the counter is full, and then the bell is ringing anyway; or where it is no bell, which is
        // the peer's own loss.
        let bell = channel.unwrap_or(&self.peer.bell);
        let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
    }

    /// The same, but later: something else may go soon for which the peer has to be woken.
    pub(crate) fn flush_later(&self) {
        self.owes_waking.store(true, Ordering::Relaxed);
    }

    /// Whether something was sent for which nobody was woken yet.
    pub(crate) fn owes_waking(&self) -> bool {
        self.owes_waking.load(Ordering::Relaxed)
    }

    /// Whether there is nothing to be done at present: for one who looks again soon.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        !ring::has_come(&self.side.slots, next) && !self.has_backlog() && !self.owes_waking()
    }

    /// Takes at most `limit` messages; how many there were. None: another thread is at it.
    pub(crate) fn receive(
        &self,
        limit: usize,
        mut take: impl FnMut(u16, Said<'_>),
    ) -> Option<usize> {
        let mut inbound = self.inbound.try_lock()?;
        let Inbound {
            receiver,
            bytes,
            is_broken,
        } = &mut *inbound;
        let mut count = 0;
        while count < limit && !*is_broken {
            let popped = receiver.pop(|message| {
                if message.tag & BRIEF != 0 {
                    let mut room = [0; proto::brief::SHORT];
                    let brief = brief::decode(&message.words, &mut room).ok_or(Broken)?;
                    take(message.tag & !BRIEF, Said::Brief(&brief));
                    return Ok(());
                }
                let length = usize::try_from(message.words[0]).unwrap_or(usize::MAX);
                if length <= SHORT {
                    let mut short = [0; SHORT];
                    for (bytes, word) in short.chunks_exact_mut(8).zip(&message.words[1..]) {
                        bytes.copy_from_slice(&word.to_ne_bytes());
                    }
                    take(message.tag, Said::Packet(&short[..length]));
                    return Ok(());
                }
                let bytes = bytes.get_mut(..length).ok_or(Broken)?;
                if length > message.room.length() {
                    return Err(Broken);
                }
                message.room.read(0, bytes);
                take(message.tag, Said::Packet(bytes));
                Ok(())
            });
            match popped {
                Ok(Some(Ok(()))) => count += 1,
                Ok(None) => break,
                Ok(Some(Err(Broken))) | Err(Broken) => {
                    *is_broken = true;
                    self.end();
                }
            }
        }
        self.next.store(receiver.next_slot(), Ordering::Relaxed);
        if receiver.owes_waking() {
            drop(inbound);
            self.flush();
        }
        Some(count)
    }

    /// Whether there is something to do for who is about to sleep.
    pub(super) fn is_waiting(&self) -> bool {
        self.may_have_messages() || self.can_resume()
    }

    /// Whether there is a message, or another thread takes them and may have looked before there was one.
    pub(super) fn may_have_messages(&self) -> bool {
        let inbound = self.inbound.try_lock();
        inbound.is_none_or(|inbound| !inbound.is_broken && !inbound.receiver.is_empty())
    }

    /// Somebody of the process is about to sleep; afterwards he has to look whether there is something.
    pub(super) fn fall_asleep(&self, sleeper: Sleeper) {
        Sleep(&self.side.own_sleep.0).declare(sleeper);
    }

    /// He is awake.
    pub(super) fn wake_up(&self, sleeper: Sleeper) {
        Sleep(&self.side.own_sleep.0).end(sleeper);
    }

    /// Copies of the peer from and to memory of this process that are under way. To be asked after what they may
    /// have gone by was taken back.
    pub(crate) fn visitors(&self) -> Visitors<'_> {
        Visitors {
            link: self,
            occupied: Lanes(&self.side.peer_lanes).occupied(),
        }
    }

    /// What ends when the peer does.
    pub(crate) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let handle = self.peer.handle.as_ref().map(AsFd::as_fd);
        [Some(self.peer.socket.as_fd()), handle]
            .into_iter()
            .flatten()
    }

    /// The part of an arena's file that bytes are in, mapped, and where in it they are.
    pub(super) fn map(
        &self,
        place: &FilePlace,
        offset: u64,
        length: u64,
    ) -> Option<(Arc<Map>, usize)> {
        let start = place.offset.checked_add(offset)?;
        let end = start.checked_add(length)?;
        let find = |maps: &[(Range<u64>, Arc<Map>)]| {
            let (range, map) = maps
                .iter()
                .find(|(range, _)| range.start <= start && end <= range.end)?;
            Some((Arc::clone(map), (start - range.start) as usize))
        };
        if let Some(found) = find(&self.maps.read()) {
            return Some(found);
        }
        if start < place.segment.start || end > place.segment.end {
            return None;
        }
        let mut maps = self.maps.write();
        if let Some(found) = find(&maps) {
            return Some(found);
        }
        let segment = place.segment.clone();
        let map = Map::of(self.peer.arena.as_fd(), segment.clone(), Rights::Write).ok()?;
        let map = Arc::new(map);
        maps.push((segment, Arc::clone(&map)));
        Some((map, (start - place.segment.start) as usize))
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("addresses", &self.peer.addresses)
            .field("process", &self.peer.process)
            .field("is_dead", &self.is_dead())
            .finish_non_exhaustive()
    }
}

/// Copies of a peer that were under way at a moment.
#[derive(Debug)]
pub(crate) struct Visitors<'a> {
    link: &'a Link,
    occupied: Occupied,
}

impl Visitors<'_> {
    /// Waits until they are over, or the peer is gone. False: one is not over, and may not be for long: the peer
    /// was stopped in the middle of it.
    pub(crate) fn wait(mut self) -> bool {
        let lanes = Lanes(&self.link.side.peer_lanes);
        let begin = Instant::now();
        let (mut stopped, mut is_gone) = (None, false);
        let are_left = self.occupied.wait(lanes, || {
            is_gone = !self.link.check();
            if is_gone {
                return true;
            }
            if begin.elapsed() > HASTE {
                // It does not run, or there is too much else that does.
                thread::sleep(HASTE);
            }
            stopped = if process::is_stopped(self.link.process()) {
                stopped.or_else(|| Some(Instant::now()))
            } else {
                None
            };
            let for_long = |since: Instant| since.elapsed() > PATIENCE_STOPPED;
            stopped.is_some_and(for_long) || begin.elapsed() > PATIENCE
        });
        are_left || is_gone
    }
}

/// Whether a connection has ended, or a process.
fn is_gone(socket: &OwnedFd, handle: Option<&OwnedFd>) -> bool {
    let mut descriptors: Vec<_> = [
        Some((socket, PollFlags::RDHUP)),
        handle.map(|handle| (handle, PollFlags::IN)),
    ]
    .into_iter()
    .flatten()
    .map(|(descriptor, flags)| PollFd::new(descriptor, flags))
    .collect();
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let polled = rustix::event::poll(&mut descriptors, Some(&now));
    polled.is_ok()
        && descriptors
            .iter()
            .any(|descriptor| !descriptor.revents().is_empty())
}
