#![forbid(unsafe_code)]
//! Connections that other processes have made and whose handshakes are not finished.
//!
//! Each connection is a [`Handshake`]. [`Handshakes`] contains all of them, and limits their number
//! by the constants of [`admission`](super::admission).

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::net::{RecvFlags, recv};
use rustix::process::Pid;

use super::admission::{
    ACCEPT_COOLDOWN, CONNECTIONS_PER_SECOND, HANDSHAKE_TIMEOUT, HANDSHAKES_PER_SECOND,
    MAX_PENDING_HANDSHAKES, MAX_PENDING_PER_PROCESS, MAX_WELCOMED, RateLimit,
};
use super::events::{Events, Source};
use super::link::Link;
use super::process;
use super::sockets;
use crate::descriptor::Descriptor;

/// A handshake that is not finished, on a connection that another process has made.
pub(super) struct Handshake {
    pub(super) socket: Descriptor,
    /// ID of the process that has made the connection. The process belongs to the same user as this
    /// process.
    pub(super) process: Pid,
    /// Time at which the connection was accepted, from which the time limit of the handshake is
    /// counted.
    since: Instant,
    /// Set while the first message of the peer has arrived, and is not read because of the rate
    /// limit.
    has_handshake_message: bool,
    /// The new link (shared memory with the peer). Set from the time when `Welcome` was sent until
    /// the last message of the peer is received.
    pub(super) welcomed: Option<Arc<Link>>,
}

/// Kind of data that can be received from a connection: nothing, a message, or the end of the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readable {
    Nothing,
    HandshakeMessage,
    End,
}

impl Handshake {
    /// Returns the time at which this handshake is ended if it is not finished before.
    fn deadline(&self) -> Instant {
        self.since + HANDSHAKE_TIMEOUT
    }

    /// Returns whether the peer of this handshake has sent no message yet.
    fn is_silent(&self) -> bool {
        self.welcomed.is_none() && !self.has_handshake_message
    }

    /// Returns the kind of data that can be received from the peer's connection: nothing, a
    /// message, or the end of the connection. Leaves the message unread.
    fn readable(&self) -> Readable {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(self.socket.as_fd(), &mut [0_u8; 1], flags).map(|(_, length)| length) {
            Ok(0) => Readable::End,
            Ok(_) => Readable::HandshakeMessage,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Readable::Nothing,
            Err(_) => Readable::End,
        }
    }

    /// Ends a handshake that was not finished in time. If this process has already shared its
    /// memory with the peer, the peer can still access the memory until the peer closes the
    /// connection.
    fn abort(self) {
        if let Some(link) = self.welcomed {
            link.abort();
        }
    }
}

/// All unfinished handshakes that other processes have begun with this process.
pub(super) struct Handshakes {
    all: Vec<Handshake>,
    connections: RateLimit,
    beginnings: RateLimit,
    /// Time at which delayed connections are accepted, if a limit or an error delays them; `None`
    /// otherwise.
    accept_at: Option<Instant>,
}

impl Handshakes {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            all: Vec::new(),
            connections: RateLimit::new(CONNECTIONS_PER_SECOND, now),
            beginnings: RateLimit::new(HANDSHAKES_PER_SECOND, now),
            accept_at: None,
        }
    }

    /// Accepts connections that wait at the sockets `listeners`, and adds the accepted connections
    /// to the epoll set `events`. The limits for the rate and the number of connections can leave
    /// some of them waiting.
    pub(super) fn accept(&mut self, listeners: &[Descriptor], events: &Events, now: Instant) {
        self.accept_at = None;
        for listener in listeners {
            loop {
                if !self.connections.is_ready(now) {
                    self.accept_at = Some(self.connections.ready_at());
                    return;
                }
                if !self.make_room() {
                    self.accept_at = Some(now + ACCEPT_COOLDOWN);
                    return;
                }
                match sockets::accept(listener) {
                    Ok(Some(socket)) => {
                        self.connections.count(now);
                        self.begin(socket, events, now);
                    }
                    Ok(None) => break,
                    Err(_) => {
                        self.accept_at = Some(now + ACCEPT_COOLDOWN);
                        break;
                    }
                }
            }
        }
    }

    /// Adds an accepted connection to the pending handshakes. Instead closes the connection in two
    /// cases: its process belongs to another user, or has [`MAX_PENDING_PER_PROCESS`] pending
    /// handshakes already.
    fn begin(&mut self, socket: Descriptor, events: &Events, now: Instant) {
        let Some(process) = process::connected_process(socket.as_fd()) else {
            return;
        };
        let pending = self.all.iter();
        let pending = pending
            .filter(|handshake| handshake.process == process)
            .count();
        if pending < MAX_PENDING_PER_PROCESS && events.add(socket.as_fd(), Source::Other).is_ok() {
            self.all.push(Handshake {
                socket,
                process,
                since: now,
                has_handshake_message: false,
                welcomed: None,
            });
        }
    }

    /// Continues all pending handshakes, and ends handshakes that were not finished in time.
    /// Returns whether a handshake has ended.
    ///
    /// Calls `receive` for each handshake that possibly has an unread message. `receive` reads the
    /// message, and returns whether the handshake is still pending. The first argument of `receive`
    /// is this list, which during the call contains only the handshakes that were continued before.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        mut receive: impl FnMut(&mut Self, &mut Handshake) -> bool,
    ) -> bool {
        let (welcomed, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|handshake| handshake.welcomed.is_some());
        let before = welcomed.len() + others.len();
        for mut handshake in welcomed {
            if receive(self, &mut handshake) {
                self.all.push(handshake);
            }
        }
        for mut handshake in others {
            let stays = match handshake.readable() {
                Readable::Nothing => true,
                Readable::End => false,
                Readable::HandshakeMessage if self.beginnings.is_ready(now) => {
                    self.beginnings.count(now);
                    handshake.has_handshake_message = false;
                    receive(self, &mut handshake)
                }
                Readable::HandshakeMessage => {
                    handshake.has_handshake_message = true;
                    true
                }
            };
            if stays {
                self.all.push(handshake);
            }
        }
        while let Some(late) = self
            .all
            .iter()
            .position(|handshake| handshake.deadline() <= now)
        {
            self.all.remove(late).abort();
        }
        self.all.len() < before
    }

    /// Ensures that fewer than [`MAX_PENDING_HANDSHAKES`] connections are pending, so that another
    /// one can be added. If necessary, closes the oldest connection that has sent no message.
    /// Returns `false` if all connections have sent a message, so that none can be closed.
    fn make_room(&mut self) -> bool {
        if self.all.len() < MAX_PENDING_HANDSHAKES {
            return true;
        }
        let silent = self.all.iter().enumerate();
        let oldest = silent
            .filter(|(_, handshake)| handshake.is_silent())
            .min_by_key(|(_, handshake)| handshake.since);
        let Some(index) = oldest.map(|(index, _)| index) else {
            return false;
        };
        self.all.remove(index);
        true
    }

    /// Ensures that fewer than [`MAX_WELCOMED`] accepted handshakes are unfinished, so that another
    /// one can be accepted. If necessary, ends the oldest of them.
    pub(super) fn make_room_for_welcomed(&mut self) {
        let welcomed = || {
            let handshakes = self.all.iter().enumerate();
            handshakes.filter(|(_, handshake)| handshake.welcomed.is_some())
        };
        if welcomed().count() < MAX_WELCOMED {
            return;
        }
        if let Some((index, _)) = welcomed().min_by_key(|(_, handshake)| handshake.since) {
            self.all.remove(index).abort();
        }
    }

    /// Returns the next time at which [`accept`](Self::accept) and [`advance`](Self::advance) must
    /// be called even if no event occurs. Returns `None` if no such call is necessary.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let unread = self
            .all
            .iter()
            .any(|handshake| handshake.has_handshake_message);
        let unread = unread.then(|| self.beginnings.ready_at());
        let deadlines = self.all.iter().map(Handshake::deadline);
        deadlines.chain(unread).chain(self.accept_at).min()
    }

    /// Returns whether this process has accepted a handshake of the process that has the address
    /// `address`, and waits for the last message of the handshake. If so, a thread that needs a
    /// link (shared memory) to that process must wait for this handshake, and must not begin a
    /// second one.
    pub(super) fn is_welcomed(&self, address: SocketAddr) -> bool {
        let mut addresses = self
            .welcomed()
            .filter_map(|handshake| handshake.welcomed.as_ref())
            .flat_map(|link| link.addresses());
        addresses.any(|known| *known == address)
    }

    /// Returns whether this process has accepted a handshake of the process with the ID `process`,
    /// and waits for the last message of the handshake. Until that message, a second handshake of
    /// the same process is refused.
    pub(super) fn has_welcomed(&self, process: Pid) -> bool {
        self.welcomed()
            .any(|handshake| handshake.process == process)
    }

    fn welcomed(&self) -> impl Iterator<Item = &Handshake> {
        self.all
            .iter()
            .filter(|handshake| handshake.welcomed.is_some())
    }
}

#[cfg(any(test, fuzzing))]
impl Handshakes {
    /// Resets the rate limits of handshakes for a test, so that a full burst is allowed.
    pub(super) fn reset_limits(&mut self, now: Instant) {
        self.connections = RateLimit::new(CONNECTIONS_PER_SECOND, now);
        self.beginnings = RateLimit::new(HANDSHAKES_PER_SECOND, now);
    }

    /// Checks the limits for a test: panics if there are more pending handshakes than allowed.
    pub(super) fn check_limits(&self) {
        assert!(self.all.len() <= MAX_PENDING_HANDSHAKES);
        for process in self.processes() {
            let pending = self.processes().filter(|&other| other == process).count();
            assert!(pending <= MAX_PENDING_PER_PROCESS);
        }
        assert!(self.welcomed().count() <= MAX_WELCOMED);
    }

    /// Returns the process ID of the peer of each pending handshake, for a test.
    pub(super) fn processes(&self) -> impl Iterator<Item = Pid> {
        self.all.iter().map(|handshake| handshake.process)
    }

    /// Returns whether the list is empty: other processes have no unfinished handshake with this
    /// process.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::super::testing;
    use super::*;

    /// Returns a handshake that began at the time `since` and whose peer has sent nothing. Also
    /// returns the peer's end of the connection.
    fn handshake(since: Instant) -> (Handshake, Descriptor) {
        let (socket, end) = testing::connection().unwrap();
        let handshake = Handshake {
            socket,
            process: rustix::process::getpid(),
            since,
            has_handshake_message: false,
            welcomed: None,
        };
        (handshake, end)
    }

    #[test]
    fn only_a_connection_without_a_message_is_closed_for_a_new_one() {
        let start = Instant::now();
        let mut handshakes = Handshakes::new(start);
        let second = start + Duration::from_millis(1);
        for _ in 0..MAX_PENDING_HANDSHAKES {
            assert!(handshakes.make_room());
            handshakes.all.push(handshake(second).0);
        }
        handshakes.all[7].since = start;
        handshakes.all[9].since = start;
        handshakes.all[7].has_handshake_message = true;
        assert!(handshakes.make_room(), "one of them is silent");
        assert_eq!(handshakes.all.len(), MAX_PENDING_HANDSHAKES - 1);
        let oldest = handshakes
            .all
            .iter()
            .filter(|handshake| handshake.since == start);
        assert!(
            oldest
                .map(|handshake| handshake.has_handshake_message)
                .eq([true])
        );
        handshakes.all.push(handshake(second).0);
        (handshakes.all.iter_mut()).for_each(|handshake| handshake.has_handshake_message = true);
        assert!(!handshakes.make_room());
    }

    #[test]
    fn a_handshake_ends_with_its_connection_or_at_its_deadline() {
        let start = Instant::now();
        let mut handshakes = Handshakes::new(start);
        let (first, first_end) = handshake(start);
        let (second, _second_end) = handshake(start + Duration::from_millis(1));
        handshakes.all.extend([first, second]);
        assert_eq!(handshakes.next_deadline(), Some(start + HANDSHAKE_TIMEOUT));
        assert!(!handshakes.advance(start, |_, _| unreachable!("no message has come")));
        drop(first_end);
        assert!(handshakes.advance(start, |_, _| unreachable!("no message has come")));
        let deadline = handshakes.next_deadline().unwrap();
        assert_eq!(
            deadline,
            start + Duration::from_millis(1) + HANDSHAKE_TIMEOUT
        );
        assert!(handshakes.advance(deadline, |_, _| unreachable!("no message has come")));
        assert!(handshakes.is_empty() && handshakes.next_deadline().is_none());
    }

    #[test]
    fn messages_beyond_the_rate_are_left_unread() {
        let start = Instant::now();
        let mut handshakes = Handshakes::new(start);
        let (handshake, end) = handshake(start);
        handshakes.all.push(handshake);
        while handshakes.beginnings.is_ready(start) {
            handshakes.beginnings.count(start);
        }
        rustix::io::write(&end, b"hello").unwrap();
        assert!(!handshakes.advance(start, |_, _| unreachable!("the rate is exceeded")));
        let later = handshakes.next_deadline().unwrap();
        assert!(later > start && later < start + HANDSHAKE_TIMEOUT);
        let mut count = 0;
        assert!(!handshakes.advance(later, |_, _| {
            count += 1;
            true
        }));
        assert_eq!(count, 1);
    }
}
