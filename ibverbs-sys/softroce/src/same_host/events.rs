#![forbid(unsafe_code)]
//! Events for which the engine (background thread) waits on behalf of the directory of peers: an
//! epoll set, and timers in the set.
//!
//! The epoll set is itself a descriptor, which is readable until all events are taken. So the
//! engine need not wait for the descriptors in the set, but only for the set. The set is
//! edge-triggered: [`Events::take`] returns each event once.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::descriptor::Descriptor;

/// Epoll set of descriptors whose events wake the engine (background thread). Each descriptor is
/// stored with its kind ([`Source`]).
pub(super) struct Events {
    epoll: Descriptor,
}

/// Kind of a descriptor in the epoll set [`Events`]. Each event of the descriptor reports this
/// kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Source {
    /// Descriptors of listeners, timers and pending handshakes.
    Other = 0,
    /// Descriptors that report the end of a peer.
    Peer = 1,
}

/// Result of [`Events::take`]: the kinds of the events that it has found in the epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventKinds {
    /// Set if at least one event occurred.
    pub(super) any: bool,
    /// Set if a descriptor that reports the end of a peer had an event.
    pub(super) peer: bool,
}

impl Events {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Descriptor::open(|| epoll::create(CreateFlags::CLOEXEC))?,
        })
    }

    /// Adds `descriptor` with the kind `source` to the epoll set, for the events "data received"
    /// and "connection closed". Does nothing if the descriptor is in the set already.
    pub(super) fn add(&self, descriptor: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let number = EventData::new_u64(source as u64);
        match epoll::add(&self.epoll, descriptor, number, events) {
            Err(rustix::io::Errno::EXIST) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Removes `descriptor` from the epoll set, so that its events no longer wake the engine
    /// (background thread). Does nothing if the descriptor is not in the set.
    pub(super) fn remove(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Returns the kinds of the events that have occurred on descriptors of the epoll set since the
    /// last call. Does not wait. If the kernel reports an error, returns all kinds.
    pub(super) fn take(&self) -> EventKinds {
        let mut events = [MaybeUninit::uninit(); 16];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(&self.epoll, &mut events, Some(&now)) {
            Ok((taken, _)) => {
                let mut numbers = taken.iter().map(|event| event.data.u64());
                EventKinds {
                    any: !taken.is_empty(),
                    peer: numbers.any(|number| number == Source::Peer as u64),
                }
            }
            Err(_) => EventKinds {
                any: true,
                peer: true,
            },
        }
    }

    /// Returns the epoll descriptor, which is readable while there are events to
    /// [`take`](Self::take).
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A timer (`timerfd`) whose expiry is an event of an [`Events`] set.
pub(super) struct Timer {
    timer: Descriptor,
}

impl Timer {
    pub(super) fn new(events: &Events) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = Descriptor::open(|| timerfd_create(TimerfdClockId::Monotonic, flags))?;
        events.add(timer.as_fd(), Source::Other)?;
        Ok(Self { timer })
    }

    /// Sets the timer to expire once after the duration `after`, or stops the timer if the duration
    /// is zero.
    pub(super) fn set(&self, after: Duration) {
        let timespec = |duration: Duration| Timespec {
            tv_sec: duration.as_secs() as _,
            tv_nsec: duration.subsec_nanos().into(),
        };
        let once = Itimerspec {
            it_interval: timespec(Duration::ZERO),
            it_value: timespec(after),
        };
        // Setting a valid timer to a valid time does not fail.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Makes the descriptor of an expired timer unreadable again, so that only the next expiry is
    /// reported.
    pub(super) fn clear(&self) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::descriptor::Opening;

    /// Waits until the epoll set is readable, or until the duration `within` has passed. Returns
    /// whether the set is readable.
    fn becomes_readable(events: &Events, within: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: within.as_secs() as _,
            tv_nsec: within.subsec_nanos().into(),
        };
        let mut descriptors = [PollFd::from_borrowed_fd(events.descriptor(), PollFlags::IN)];
        poll(&mut descriptors, Some(&timeout)).unwrap() > 0
    }

    const NOTHING: EventKinds = EventKinds {
        any: false,
        peer: false,
    };

    #[test]
    fn an_expired_timer_is_one_event() {
        let events = Events::new().unwrap();
        let timer = Timer::new(&events).unwrap();
        assert_eq!(events.take(), NOTHING);
        timer.set(Duration::from_nanos(1));
        assert!(becomes_readable(&events, Duration::from_secs(30)));
        let expired = EventKinds {
            any: true,
            peer: false,
        };
        assert_eq!(events.take(), expired);
        assert_eq!(events.take(), NOTHING);
        timer.clear();
        timer.set(Duration::from_millis(1));
        timer.set(Duration::ZERO);
        assert!(!becomes_readable(&events, Duration::from_millis(20)));
    }

    #[test]
    fn the_end_of_a_peer_is_an_event_until_the_descriptor_is_removed() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let events = Events::new().unwrap();
        for is_removed in [false, true] {
            let opening = Opening::begin();
            let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let (here, there) = socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap();
            let (here, there) = (opening.adopt(here), opening.adopt(there));
            drop(opening);
            events.add(here.as_fd(), Source::Peer).unwrap();
            events.add(here.as_fd(), Source::Peer).unwrap();
            events.take();
            if is_removed {
                events.remove(here.as_fd());
            }
            drop(there);
            assert_eq!(events.take().peer, !is_removed);
        }
    }
}
