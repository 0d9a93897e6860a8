#![forbid(unsafe_code)]
//! The way to another process of the same host.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use rustix::process::Pid;

use super::backlog::Backlog;
use super::brief;
use super::regions::{FilePlace, Tables};
use super::ring::{self, Broken, CHUNK, PushError};
use super::segment::{Receiver, Sender, Side};
use super::shared::{Map, One, Part, Rights};
use super::visitor::{Process, Visitor};
use super::wake::{Sleep, Sleeper};
use crate::counters::Counters;
use crate::descriptor::{self, Descriptor};
use crate::proto::{self, Brief, Counter};
use crate::spin;

/// What a peer says of itself, and what it hands over.
#[derive(Debug)]
pub(super) struct Peer {
    /// The slot of their port, which is in the numbers of its queue pairs. None: they may have any numbers.
    pub(super) slot: Option<u8>,
    /// The addresses of its sockets.
    pub(super) addresses: Vec<SocketAddr>,
    /// Its GID table.
    pub(super) gids: Vec<Ipv6Addr>,
    /// What the first slot of its table of regions is counted as in keys.
    pub(super) key_base: u32,
    pub(super) tables: Tables,
    pub(super) arena: Descriptor,
    pub(super) bell: Descriptor,
    /// Those of its program's threads.
    pub(super) channels: Vec<Descriptor>,
}

/// The way to another process of the same host: what both have mapped.
pub struct Link {
    peer: Peer,
    visitor: Arc<Visitor>,
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
    failures: Arc<Failures>,
}

/// Tells this process's engine of links that have failed.
#[derive(Debug)]
pub(super) struct Failures {
    /// The eventfd that wakes the engine.
    bell: Arc<Descriptor>,
    has_failed: AtomicBool,
}

impl Failures {
    pub(super) fn new(bell: Arc<Descriptor>) -> Arc<Self> {
        Arc::new(Self {
            bell,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Returns whether a link has failed since this was asked last.
    pub(super) fn take(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed) && self.has_failed.swap(false, Ordering::Acquire)
    }

    fn tell(&self) {
        self.has_failed.store(true, Ordering::Release);
        descriptor::count_up(self.bell.as_fd());
    }
}

/// What one thread at a time receives with.
struct Inbound {
    receiver: Receiver,
    /// Where a message is copied to that is longer than a slot.
    bytes: Box<[u8]>,
    /// What the peer wrote makes no sense: there is nothing more to be received.
    is_broken: bool,
    /// The number of the first slot that is not received any more, once the link has ended.
    end: Option<u32>,
}

impl Inbound {
    /// Sets the end of what is received to what has come by now, after the link has ended.
    #[cold]
    fn close(&mut self) {
        if self.end.is_none() {
            self.end = Some(self.receiver.end());
        }
    }

    /// Returns how many slots are still to be received.
    fn left(&self) -> usize {
        let next = self.receiver.next_slot();
        match self.end {
            _ if self.is_broken => 0,
            Some(end) => end.wrapping_sub(next).cast_signed().max(0) as usize,
            None => usize::MAX,
        }
    }
}

/// What of a [`Side`] all threads use at once.
#[derive(Debug)]
struct Shared {
    sender: Sender,
    slots: Part<ring::Slot>,
    own_sleep: One<ring::Line>,
    peer_sleep: One<ring::Line>,
    own_lanes: Part<ring::Line>,
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

/// Parts of a peer's arena that are mapped at the same time: a peer may name different ones without end, and a process has
/// 65,530 mappings in all. An arena has one part for each 64 MiB, so this is enough for 64 GiB; what is beyond goes by
/// packets.
const MAX_MAPS: usize = 1024;

/// The longest message.
pub(crate) const LONGEST: usize = 4096 + 256;

/// The bit of a slot's tag that says that it is a brief.
const BRIEF: u16 = 1 << 15;

/// Bytes that fit into a slot beside the first word.
const SHORT: usize = 8 * (ring::WORDS - 1);

impl Link {
    pub(super) fn new(
        peer: Peer,
        process: Process,
        side: Side,
        counters: Arc<Counters>,
        failures: Arc<Failures>,
    ) -> Arc<Self> {
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
            visitor: Arc::new(Visitor::new(process, peer_lanes)),
            side: Shared {
                sender,
                slots,
                own_sleep,
                peer_sleep,
                own_lanes,
            },
            inbound: spin::Mutex::new(Inbound {
                receiver,
                bytes: vec![0; LONGEST].into(),
                is_broken: false,
                end: None,
            }),
            next: AtomicU32::new(0),
            backlog: Backlog::default(),
            owes_waking: AtomicBool::new(false),
            maps: RwLock::default(),
            is_dead: AtomicBool::new(false),
            start: Instant::now(),
            seen: AtomicU64::new(0),
            counters,
            failures,
        })
    }

    /// The addresses of the peer's sockets.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.peer.addresses
    }

    /// The slot in the numbers of the peer's queue pairs, if it is known.
    pub(crate) fn slot(&self) -> Option<u8> {
        self.peer.slot
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
        if !self.is_dead() && self.visitor.is_gone() {
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

    /// The peer as one that copies.
    pub(super) fn visitor(&self) -> &Arc<Visitor> {
        &self.visitor
    }

    pub(super) fn process(&self) -> Pid {
        self.visitor.process.number
    }

    /// The thread by which the peer's memory is reached.
    pub(super) fn thread(&self) -> Pid {
        self.visitor.process.thread
    }

    pub(super) fn own_lanes(&self) -> &[ring::Line] {
        &self.side.own_lanes
    }

    /// Says to the peer that this side copies, as long as it is held.
    #[cfg(test)]
    pub(crate) fn hold_lane(&self) -> super::epoch::Lane<'_> {
        super::epoch::Lanes(self.own_lanes()).enter(0)
    }

    /// The link is no longer used. What has come before is still [received](Self::receive).
    pub(crate) fn end(&self) {
        self.is_dead.store(true, Ordering::Release);
    }

    /// Ends the link to a peer that may still be there: since the peer violated the protocol, or did not finish the
    /// handshake. The peer is told.
    pub(super) fn break_off(&self) {
        self.end();
        // The other direction stays open: it tells when the peer has closed its end.
        self.visitor.leave();
    }

    /// Ends the link, since the peer violated the protocol, and wakes the engine, which removes it.
    #[cold]
    fn fail(&self) {
        self.break_off();
        self.failures.tell();
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
                self.fail();
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
        descriptor::count_up(bell.as_fd());
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
    ///
    /// Of a link that has ended, what had come by then is taken, and nothing that came later.
    pub(crate) fn receive(
        &self,
        limit: usize,
        mut take: impl FnMut(u16, Said<'_>),
    ) -> Option<usize> {
        let mut inbound = self.inbound.try_lock()?;
        let mut limit = limit;
        if self.is_dead() {
            inbound.close();
            limit = limit.min(inbound.left());
        }
        let Inbound {
            receiver,
            bytes,
            is_broken,
            end,
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
                Ok(None) => {
                    // A message that the peer has taken back since the link ended is not received if it comes again.
                    *end = end.map(|_| receiver.next_slot());
                    break;
                }
                Ok(Some(Err(Broken))) | Err(Broken) => {
                    *is_broken = true;
                    self.fail();
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
        inbound.is_none_or(|mut inbound| {
            if self.is_dead() {
                inbound.close();
            }
            inbound.left() > 0 && !inbound.receiver.is_empty()
        })
    }

    /// Somebody of the process is about to sleep; afterwards he has to look whether there is something.
    pub(super) fn fall_asleep(&self, sleeper: Sleeper) {
        Sleep(&self.side.own_sleep.0).declare(sleeper);
    }

    /// He is awake.
    pub(super) fn wake_up(&self, sleeper: Sleeper) {
        Sleep(&self.side.own_sleep.0).end(sleeper);
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
        if maps.len() >= MAX_MAPS {
            return None;
        }
        let segment = place.segment.clone();
        let map = Map::of(self.peer.arena.as_fd(), segment.clone(), Rights::Write).ok()?;
        let map = Arc::new(map);
        maps.push((segment, Arc::clone(&map)));
        Some((map, (start - place.segment.start) as usize))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Nobody is left who could copy by it.
        self.visitor.leave();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("addresses", &self.peer.addresses)
            .field("process", &self.process())
            .field("is_dead", &self.is_dead())
            .finish_non_exhaustive()
    }
}
