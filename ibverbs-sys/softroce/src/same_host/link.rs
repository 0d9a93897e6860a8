#![forbid(unsafe_code)]
//! A link: shared memory between this process and another process of the same host.
//!
//! A link sends and receives packets and ring messages (short messages without packet headers)
//! through the shared memory, maps the peer's memory regions, and detects the end of the peer.

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
use super::copying_peer::{CopyingPeer, Process};
use super::process::KernelCopies;
use super::regions::{FilePlace, Tables};
use super::ring::{self, CHUNK, PushError, Violation};
use super::ring_message;
use super::segment::{LinkMemory, Receiver, Sender};
use super::shared::{Map, MappedArray, MappedValue, Rights};
use super::wake::{SleepWord, Sleeper};
use crate::counters::Counters;
use crate::descriptor::{self, Descriptor};
use crate::memory::Piece;
use crate::proto::Counter;
use crate::spin;
use crate::sync::Line;
use crate::transfer::{self, MAX_CHUNKS_PART, RingMessage, RingSendError};

/// Identity and resources of a peer process, as received from it in the handshake.
#[derive(Debug)]
pub(super) struct Peer {
    /// Number of the peer's UDP port in the port range, which the peer's queue pair numbers
    /// contain. `None` if the peer may use all queue pair numbers.
    pub(super) slot: Option<u8>,
    /// Addresses of the peer's UDP sockets.
    pub(super) addresses: Vec<SocketAddr>,
    /// First entries of the GID table of the peer's device.
    pub(super) gids: Vec<Ipv6Addr>,
    /// Offset in the peer's memory keys: a key contains an index of the peer's table of regions
    /// plus this number.
    pub(super) key_base: u32,
    /// Tables in which the peer publishes its regions and queue pairs.
    pub(super) tables: Tables,
    /// Shared file with the memory from which the peer allocates regions.
    pub(super) arena: Descriptor,
    /// Eventfd that wakes the peer's engine (background thread).
    pub(super) wake_eventfd: Descriptor,
    /// Eventfds that wake threads of the peer's program, which wait at completion channels.
    pub(super) channels: Vec<Descriptor>,
}

/// Link to another process of the same host: memory that both processes share. The processes send
/// packets and other messages to each other through this memory.
pub struct Link {
    peer: Peer,
    copying_peer: Arc<CopyingPeer>,
    side: LinkFields,
    inbound: spin::Mutex<Inbound>,
    /// Number of the slot (cache line of the ring) in which the next message arrives. A copy of the
    /// receiver's number that can be read without the lock.
    next: AtomicU32,
    pub(super) backlog: Backlog,
    /// Set while a wakeup of the peer is deferred, because another message may follow that wakes
    /// the peer, too.
    must_wake: AtomicBool,
    /// Mapped ranges of the peer's arena (shared file of regions), with their positions in the
    /// file.
    maps: RwLock<Vec<(Range<u64>, Arc<Map>)>>,
    is_dead: AtomicBool,
    start: Instant,
    /// Time at which the peer was last known to exist, in nanoseconds since `start`.
    seen: AtomicU64,
    counters: Arc<Counters>,
    failures: Arc<LinkFailures>,
}

/// Notification of the engine (background thread) that a link (shared memory) of this process has
/// failed. The notification consists of a flag and an eventfd.
#[derive(Debug)]
pub(super) struct LinkFailures {
    /// Eventfd that wakes the engine (background thread).
    wake_eventfd: Arc<Descriptor>,
    has_failed: AtomicBool,
}

impl LinkFailures {
    pub(super) fn new(wake_eventfd: Arc<Descriptor>) -> Arc<Self> {
        Arc::new(Self {
            wake_eventfd,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Returns whether a link (shared memory) of this process has failed since the previous call,
    /// and clears the flag that records the failure. If the result is `true`, the engine
    /// (background thread) must remove the link.
    pub(super) fn take(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed) && self.has_failed.swap(false, Ordering::Acquire)
    }

    /// Records that a link (shared memory) of this process has failed, and wakes the engine
    /// (background thread), which then removes the link.
    fn notify(&self) {
        self.has_failed.store(true, Ordering::Release);
        descriptor::increment(self.wake_eventfd.as_fd());
    }
}

/// Receiving side of a link (shared memory with a peer process). Only one thread at a time uses the
/// receiving side.
struct Inbound {
    receiver: Receiver,
    /// Buffer for packets that are longer than a slot (one cache line of the ring).
    bytes: Box<[u8]>,
    /// Set after the peer has violated the protocol. No messages are received after a violation.
    is_broken: bool,
    /// Number of the first slot (cache line of the ring) that is not received any more, because the
    /// peer published it after the link (shared memory) had ended. `None` before the end.
    end: Option<u32>,
}

impl Inbound {
    /// Stops the reception from the peer, because the link (shared memory) has ended. Messages that
    /// arrive after this call are not received.
    #[cold]
    fn close(&mut self) {
        if self.end.is_none() {
            self.end = Some(self.receiver.end());
        }
    }

    /// Returns the maximum number of messages that can still be received from the peer. While the
    /// link (shared memory) is alive, the result is `usize::MAX`, because the number has no limit.
    /// After the end of the link, the result is the number of messages that arrived before the end
    /// and were not received yet. After a protocol violation by the peer, the result is 0.
    fn left(&self) -> usize {
        let next = self.receiver.next_slot();
        match self.end {
            _ if self.is_broken => 0,
            Some(end) => end.wrapping_sub(next).cast_signed().max(0) as usize,
            None => usize::MAX,
        }
    }
}

/// Parts of a [`Link`] that need no lock: several threads of this process may use them at the same
/// time.
#[derive(Debug)]
struct LinkFields {
    sender: Sender,
    slots: MappedArray<ring::Slot>,
    own_sleep: MappedValue<Line>,
    peer_sleep: MappedValue<Line>,
    own_lanes: MappedArray<Line>,
}

/// A message that was received from the peer of a link (shared memory).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Received<'a> {
    /// The bytes of a packet, and the [annotation](Link::send) of the peer.
    Packet(&'a [u8], u64),
    /// A [`RingMessage`] (short message without packet headers), and the memory of its payload in
    /// the ring.
    RingMessage(&'a RingMessage<'a>, &'a [Piece<'a>]),
}

/// Reason for which a packet could not be sent on a link (shared memory with another process).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The ring has no free space at present. The packet can be sent after the peer has received
    /// messages.
    Full,
    /// The link has ended, for example because the peer's process has ended.
    Dead,
}

/// Time in nanoseconds after a successful check during which a peer process is assumed to exist.
/// The assumption is safe even if the peer ends within this time. The kernel does not reuse the
/// peer's thread ID so soon, because it assigns all other IDs first.
const LIVENESS_INTERVAL: u64 = 1_000_000;

/// Maximum number of ranges of a peer's arena (shared file of memory regions) that this process
/// maps. A range usually has at least 64 MiB, so this limit suffices for 64 GiB. Data of regions
/// beyond the limit is transferred in packets. Without a limit, a peer could use up the 65,530
/// mappings that a process may have.
const MAX_MAPS: usize = 1024;

/// Maximum length in bytes of a packet that is sent on a link (shared memory): the payload of the
/// largest path MTU, and room for all headers.
pub(crate) const MAX_PACKET: usize = 4096 + 256;

/// Bit of a message's tag that shows the kind of the message: set for a [`RingMessage`] (short
/// message without packet headers), and clear for a packet.
const RING_MESSAGE: u16 = 1 << 15;

/// Maximum length in bytes of a packet that is sent within one slot (cache line) of the ring
/// buffer. One word of the slot contains the length of the packet. Longer packets are stored in
/// separate cache lines.
const MAX_SLOT_PACKET: usize = 8 * (ring::WORDS - 1);

impl Link {
    pub(super) fn new(
        peer: Peer,
        process: Process,
        side: LinkMemory,
        counters: Arc<Counters>,
        failures: Arc<LinkFailures>,
    ) -> Arc<Self> {
        let LinkMemory {
            sender,
            receiver,
            slots,
            own_sleep,
            peer_sleep,
            own_lanes,
            peer_lanes,
        } = side;
        // The engine may be asleep already. The engine has not declared that on this link, because
        // it did not know the link then.
        SleepWord(&own_sleep.0).store_sleeper(Sleeper::Engine);
        Arc::new(Self {
            peer,
            copying_peer: Arc::new(CopyingPeer::new(process, peer_lanes)),
            side: LinkFields {
                sender,
                slots,
                own_sleep,
                peer_sleep,
                own_lanes,
            },
            inbound: spin::Mutex::new(Inbound {
                receiver,
                bytes: vec![0; MAX_PACKET].into(),
                is_broken: false,
                end: None,
            }),
            next: AtomicU32::new(0),
            backlog: Backlog::default(),
            must_wake: AtomicBool::new(false),
            maps: RwLock::default(),
            is_dead: AtomicBool::new(false),
            start: Instant::now(),
            seen: AtomicU64::new(0),
            counters,
            failures,
        })
    }

    /// Returns the addresses of all UDP sockets of the peer, as the peer listed them in the
    /// handshake.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.peer.addresses
    }

    /// Returns the index of the peer's UDP port in the port range of the device. All queue pair
    /// numbers of the peer contain this index. Returns `None` if the queue pair numbers of the peer
    /// are not restricted to one index.
    pub(crate) fn slot(&self) -> Option<u8> {
        self.peer.slot
    }

    /// Returns the first entries of the GID table of the peer's device, at most
    /// [`MAX_LIST`](super::MAX_LIST).
    pub(crate) fn gids(&self) -> &[Ipv6Addr] {
        &self.peer.gids
    }

    /// Returns whether the link (shared memory) has ended, for example because the peer's process
    /// has ended.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Checks whether the peer process exists, and ends the link (shared memory) if it does not.
    /// Returns `true` if the link is still alive.
    pub(crate) fn check(&self) -> bool {
        if !self.is_dead() && self.copying_peer.is_gone() {
            self.end();
        }
        !self.is_dead()
    }

    /// Returns whether the link (shared memory) is alive and the peer process has been found to
    /// exist within the last [`LIVENESS_INTERVAL`]. Within this time, the kernel does not give the
    /// peer's thread ID to another process. So a system call that copies and names this thread ID
    /// cannot reach another process.
    pub(super) fn is_fresh(&self) -> bool {
        let now = self.start.elapsed().as_nanos() as u64;
        if now.saturating_sub(self.seen.load(Ordering::Relaxed)) > LIVENESS_INTERVAL {
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

    /// Returns the handle with which a thread waits until the peer has finished its copies from and
    /// to memory of this process.
    pub(super) fn copying_peer(&self) -> &Arc<CopyingPeer> {
        &self.copying_peer
    }

    /// Returns whether the peer process has ended or closed its side of the connection. The result
    /// can be `false` for an ended link: a link also ends if another link to the same process
    /// replaces it.
    pub(crate) fn is_peer_gone(&self) -> bool {
        self.copying_peer.is_gone()
    }

    /// Returns the peer's process ID.
    pub(super) fn process(&self) -> Pid {
        self.copying_peer.process.number
    }

    /// Returns the ID of a thread of the peer process. System calls that copy from and to the
    /// peer's memory name this ID. Returns `None` if the kernel does not permit such copies, or if
    /// the peer has ended.
    pub(super) fn thread(&self) -> Option<Pid> {
        let process = &self.copying_peer.process;
        // Without the check, another process could have got the thread ID.
        (process.copies == KernelCopies::Allowed && self.is_fresh()).then_some(process.thread)
    }

    /// Returns the lanes of this process. A lane is a shared word in its own cache line, in which a
    /// thread of this process marks that it copies from or to the peer's memory.
    pub(super) fn own_lanes(&self) -> &[Line] {
        &self.side.own_lanes
    }

    /// Marks a copy from or to the peer's memory as in progress until the returned guard is
    /// dropped. Tests use this function to delay a peer that withdraws memory.
    #[cfg(test)]
    pub(crate) fn hold_lane(&self) -> crate::epoch::Lane<'_> {
        crate::epoch::Lanes(self.own_lanes()).enter(0)
    }

    /// Ends the link (shared memory). Messages that have arrived before are still
    /// [received](Self::receive).
    pub(crate) fn end(&self) {
        self.is_dead.store(true, Ordering::Release);
    }

    /// Ends the link (shared memory), and notifies the peer, which possibly still exists. Called if
    /// the peer has violated the protocol or did not finish the handshake.
    pub(super) fn abort(&self) {
        self.end();
        // Only the sending direction of the connection is closed. The other one reports when the
        // peer has closed its side.
        self.copying_peer.close_connection();
    }

    /// Ends the link (shared memory) after the peer has violated the protocol, and wakes the engine
    /// (background thread), which removes the link.
    #[cold]
    fn fail(&self) {
        self.abort();
        self.failures.notify();
    }

    /// Sends the packet `bytes` to the peer, together with `tag` and `annotation`. `tag` contains
    /// the indices of the packet's GIDs (15 bits, not 0), and `annotation` has 48 bits of
    /// additional data. Does not wake a sleeping peer. The next call of [`flush`](Self::flush)
    /// wakes the peer.
    pub(crate) fn send(&self, tag: u16, annotation: u64, bytes: &[u8]) -> Result<(), SendError> {
        debug_assert!(bytes.len() <= MAX_PACKET && annotation < 1 << 48);
        let mut words = [0; ring::WORDS];
        words[0] = annotation << 16 | bytes.len() as u64;
        let chunks = if bytes.len() <= MAX_SLOT_PACKET {
            for (word, bytes) in words[1..].iter_mut().zip(bytes.chunks(8)) {
                let mut value = [0; 8];
                value[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(value);
            }
            0
        } else {
            bytes.len().div_ceil(CHUNK) as u16
        };
        let fill = |room: ring::MessageChunks<'_>| {
            room.write(bytes);
            Ok(())
        };
        self.push(tag, &words, chunks, fill)
    }

    /// Sends a [`RingMessage`] (short message without packet headers) to the peer. `tag` contains
    /// the indices of the connection's GIDs (15 bits, not 0). Does not wake a sleeping peer. The
    /// next call of [`flush`](Self::flush) wakes the peer.
    #[inline]
    pub(crate) fn send_ring_message(
        &self,
        tag: u16,
        ring_message: &RingMessage<'_>,
    ) -> Result<(), RingSendError> {
        match self.push(
            tag | RING_MESSAGE,
            &ring_message::encode(ring_message),
            0,
            |_| Ok(()),
        ) {
            // If the link has ended, the acknowledgement timeout of the sender expires.
            Ok(()) | Err(SendError::Dead) => Ok(()),
            Err(SendError::Full) => Err(RingSendError::Full),
        }
    }

    /// Loads memory of the ring buffer for a later message into the processor's cache, so that this
    /// message can be sent without a cache miss.
    #[inline]
    pub(crate) fn prefetch_next_slot(&self) {
        self.side.sender.prefetch();
    }

    /// Sends a [`RingMessage`] (short message without packet headers) with a payload of `length`
    /// bytes. The function `fill` writes the payload to the ring buffer, or returns `None` if the
    /// bytes cannot be read. `tag` contains the indices of the connection's GIDs. Does not wake a
    /// sleeping peer. The next call of [`flush`](Self::flush) wakes the peer.
    #[inline]
    pub(crate) fn send_chunks(
        &self,
        tag: u16,
        ring_message: &RingMessage<'_>,
        length: u32,
        fill: impl FnOnce(&[Piece<'_>]) -> Option<()>,
    ) -> Result<(), RingSendError> {
        debug_assert!(
            length <= MAX_CHUNKS_PART,
            "within what the backlog finds room for"
        );
        let chunks = (length as usize).div_ceil(CHUNK) as u16;
        let mut is_readable = true;
        let fill = |room: ring::MessageChunks<'_>| {
            is_readable = fill(&room.pieces()).is_some();
            is_readable.then_some(()).ok_or(())
        };
        match self.push(
            tag | RING_MESSAGE,
            &ring_message::encode(ring_message),
            chunks,
            fill,
        ) {
            // If the link has ended, the acknowledgement timeout of the sender expires.
            Ok(()) | Err(SendError::Dead) => Ok(()),
            Err(SendError::Full) if is_readable => Err(RingSendError::Full),
            Err(SendError::Full) => Err(RingSendError::Unreadable),
        }
    }

    /// Sends the arbitrary words `words` with the tag `tag` in place of a [`RingMessage`], for
    /// tests with a peer that violates the protocol.
    #[cfg(any(test, fuzzing))]
    pub(super) fn send_words(&self, tag: u16, words: &[u64; ring::WORDS]) -> Result<(), SendError> {
        self.push(tag | RING_MESSAGE, words, 0, |_| Ok(()))
    }

    #[inline]
    fn push(
        &self,
        tag: u16,
        words: &[u64; ring::WORDS],
        chunks: u16,
        fill: impl FnOnce(ring::MessageChunks<'_>) -> Result<(), ()>,
    ) -> Result<(), SendError> {
        if self.is_dead() {
            return Err(SendError::Dead);
        }
        match self.side.sender.push(tag, words, chunks, fill) {
            Ok(()) => Ok(()),
            Err(PushError::Full | PushError::Content(())) => Err(SendError::Full),
            Err(PushError::Violation) => {
                self.fail();
                Err(SendError::Dead)
            }
        }
    }

    /// Wakes the peer if it sleeps, so that it receives the messages that this process sent before
    /// this call.
    pub(crate) fn flush(&self) {
        if self.must_wake.load(Ordering::Relaxed) {
            // The messages of the thread that deferred the wakeup are visible from here on.
            self.must_wake.swap(false, Ordering::AcqRel);
        }
        let Some(sleeper) = SleepWord(&self.side.peer_sleep.0).take_sleeper() else {
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
        // An error is ignored. If a peer has passed a wrong descriptor, only that peer is harmed.
        let wake_eventfd = channel.unwrap_or(&self.peer.wake_eventfd);
        descriptor::increment_unless_full(wake_eventfd.as_fd());
    }

    /// Defers the wakeup of the peer to a later [`flush`](Self::flush). Useful if this process will
    /// probably send another message soon, because one wakeup then suffices for both messages.
    pub(crate) fn flush_later(&self) {
        self.must_wake.store(true, Ordering::Release);
    }

    /// Returns whether a wakeup of the peer was deferred and has not been sent yet. If so, the
    /// caller must ensure that [`flush`](Self::flush) is called soon to wake the peer.
    pub(crate) fn must_wake(&self) -> bool {
        self.must_wake.load(Ordering::Relaxed)
    }

    /// Returns whether a polling thread has nothing to do for this link (shared memory). The result
    /// is `true` if the link has no message to receive, no queue pair or packet that waits for
    /// space, and no deferred wakeup. Takes no lock, so the result can be out of date. The thread
    /// must therefore call this function again later.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        !ring::is_published(&self.side.slots, next) && !self.has_backlog() && !self.must_wake()
    }

    /// Receives at most `limit` messages from the peer, and calls `take` with the tag and the
    /// content of each message. The tag contains the indices of the source and destination GID.
    /// Returns the number of received messages, or `None` if another thread is receiving.
    ///
    /// Returns early after a message whose sender possibly waits for an acknowledgement, so that
    /// the caller can send the acknowledgement first. After the link has ended, receives only
    /// messages that arrived before the end.
    pub(crate) fn receive(
        &self,
        limit: usize,
        mut take: impl FnMut(u16, Received<'_>),
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
                if message.tag & RING_MESSAGE != 0 {
                    let mut room = [0; transfer::MAX_SLOT_BYTES];
                    let ring_message =
                        ring_message::decode(&message.words, &mut room).ok_or(Violation)?;
                    let chunks = ring_message.message.filter(|of| of.form.has_chunks());
                    if chunks.is_some_and(|of| of.length() as usize > message.room.length()) {
                        return Err(Violation);
                    }
                    let pieces = message.room.pieces();
                    take(
                        message.tag & !RING_MESSAGE,
                        Received::RingMessage(&ring_message, &pieces),
                    );
                    return Ok((ring_message.message).is_some_and(|of| of.holds_up_sender()));
                }
                let length = usize::from(message.words[0] as u16);
                let annotation = message.words[0] >> 16;
                if length <= MAX_SLOT_PACKET {
                    let mut short = [0; MAX_SLOT_PACKET];
                    for (bytes, word) in short.chunks_exact_mut(8).zip(&message.words[1..]) {
                        bytes.copy_from_slice(&word.to_ne_bytes());
                    }
                    take(message.tag, Received::Packet(&short[..length], annotation));
                    return Ok(false);
                }
                let bytes = bytes.get_mut(..length).ok_or(Violation)?;
                if length > message.room.length() {
                    return Err(Violation);
                }
                message.room.read(bytes);
                take(message.tag, Received::Packet(bytes, annotation));
                Ok(false)
            });
            match popped {
                Ok(Some(Ok(holds_up_sender))) => {
                    count += 1;
                    if holds_up_sender {
                        break;
                    }
                }
                Ok(None) => {
                    // After the link has ended, a message that the peer has withdrawn and published
                    // again is not received.
                    *end = end.map(|_| receiver.next_slot());
                    break;
                }
                Ok(Some(Err(Violation))) | Err(Violation) => {
                    *is_broken = true;
                    self.fail();
                }
            }
        }
        self.next.store(receiver.next_slot(), Ordering::Relaxed);
        if receiver.must_wake_producer() {
            drop(inbound);
            self.flush();
        }
        Some(count)
    }

    /// Returns whether this link (shared memory) has work for a thread: messages that can be
    /// received, or waiting messages that can be sent. If so, the calling thread must not sleep.
    pub(super) fn is_waiting(&self) -> bool {
        self.may_have_messages() || self.can_resume()
    }

    /// Returns whether this link (shared memory) has a message to receive. Also returns `true`
    /// while another thread is receiving: a message can arrive just after that thread has found the
    /// ring empty.
    pub(super) fn may_have_messages(&self) -> bool {
        let inbound = self.inbound.try_lock();
        inbound.is_none_or(|mut inbound| {
            if self.is_dead() {
                inbound.close();
            }
            inbound.left() > 0 && !inbound.receiver.is_empty()
        })
    }

    /// Records in the shared memory that the thread `sleeper` of this process is about to sleep, so
    /// that the peer wakes the thread. After this call, the thread must call
    /// [`is_waiting`](Self::is_waiting). If the result is `true`, the thread must not sleep.
    pub(super) fn fall_asleep(&self, sleeper: Sleeper) {
        SleepWord(&self.side.own_sleep.0).store_sleeper(sleeper);
    }

    /// Records in the shared memory that the thread `sleeper` of this process is awake, so that the
    /// peer does not wake it.
    pub(super) fn wake_up(&self, sleeper: Sleeper) {
        SleepWord(&self.side.own_sleep.0).end(sleeper);
    }

    /// Removes a thread that waits at a completion channel from the sleep word, the shared word
    /// that names the sleeping thread of this process. The peer then no longer wakes this thread.
    pub(super) fn clear_channel(&self) {
        SleepWord(&self.side.own_sleep.0).clear_channel();
    }

    /// Returns a mapping of the peer's shared file that contains the `length` bytes which begin
    /// `offset` bytes after the file location `place`. Also returns the position of these bytes in
    /// the mapping. Maps the surrounding part of the file if necessary, and removes another mapping
    /// if [`MAX_MAPS`] mappings exist. Returns `None` if the file cannot be mapped.
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
            // The peer may have freed the memory of a mapping that no thread uses. Otherwise the
            // users of the removed mapping keep it.
            let unused = maps.iter().position(|(_, map)| Arc::strong_count(map) == 1);
            maps.remove(unused.unwrap_or(0));
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
        // No thread of this process can copy through the link any more.
        self.copying_peer.close_connection();
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
