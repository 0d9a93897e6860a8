#![forbid(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::descriptor::Descriptor;
use crate::net::{Endpoints, Socket};

/// Kind of event that wakes the engine (background thread). The kind determines the next work of
/// the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A packet arrived in a socket, or an event occurred for
    /// [`EngineTasks::handle_events`](super::EngineTasks::handle_events), such as the connection or
    /// the end of a peer process. Messages through shared memory are no events of this kind: peers
    /// wake the engine for messages by the eventfd of its [`Sleeper`](crate::timers::Sleeper).
    Heard,
    /// A change of the network interfaces or addresses of the host.
    HostChange,
}

/// Events that have woken the engine (background thread) since the last call of [`Watch::take`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wakeup {
    /// Set if there was an event of any kind.
    pub(super) woken: bool,
    /// Set if there was an [`Event::HostChange`].
    pub(super) host_changed: bool,
}

/// Epoll set of the sockets whose packets wake the engine (background thread), and of the
/// descriptors of other events ([`Watch::add`]). The sockets are edge-triggered: a packet wakes the
/// engine when it arrives, and not again while it stays in the socket. So the engine can sleep
/// while another thread is receiving the packets.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: Descriptor,
    endpoints: Option<Arc<Endpoints>>,
    on: bool,
}

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Descriptor::open(|| epoll::create(CreateFlags::CLOEXEC))?,
            endpoints: None,
            on: false,
        })
    }

    /// Adds a descriptor that wakes the engine (background thread) whenever it is readable, even
    /// while packets do not wake the engine. The engine then handles the event `event`.
    pub(super) fn add(&self, descriptor: BorrowedFd<'_>, event: Event) -> io::Result<()> {
        let data = EventData::new_u64(event as u64);
        Ok(epoll::add(&self.epoll, descriptor, data, EventFlags::IN)?)
    }

    /// Sets whether packets in the sockets `endpoints` wake the engine (background thread). If `on`
    /// is `true`, packets that arrive from now on wake the engine, and so do packets that are
    /// already in a socket. If `on` is `false`, packets do not wake the engine any more. Returns
    /// `false` if the kernel refuses to watch one of the sockets.
    pub(super) fn set(&mut self, endpoints: &Arc<Endpoints>, on: bool) -> bool {
        let known = self.endpoints.as_ref();
        if known.is_some_and(|known| Arc::ptr_eq(known, endpoints)) && self.on == on {
            return true;
        }
        if known.is_none_or(|known| !Arc::ptr_eq(known, endpoints)) {
            // Deleting a socket that could not be added fails, which is harmless.
            for socket in known.iter().flat_map(|known| known.sockets()) {
                let _ = epoll::delete(&self.epoll, socket);
            }
            self.endpoints = Some(Arc::clone(endpoints));
        }
        self.on = on;
        if !on {
            // The sockets are removed from the set. If they stayed in it without events, each
            // sender of a packet would spend time to find that no thread waits.
            for socket in endpoints.sockets() {
                let _ = epoll::delete(&self.epoll, socket);
            }
            return true;
        }
        let data = EventData::new_u64(Event::Heard as u64);
        let events = EventFlags::IN | EventFlags::ET;
        let watch = |socket: &Socket| {
            let modified = epoll::modify(&self.epoll, socket, data, events);
            modified.is_ok() || epoll::add(&self.epoll, socket, data, events).is_ok()
        };
        // All sockets are tried, even if one is refused.
        let refused = endpoints.sockets().filter(|socket| !watch(socket)).count();
        if refused > 0 {
            // The next call of this function adds the sockets again.
            self.endpoints = None;
        }
        refused == 0
    }

    /// Returns the events that have occurred since the last call, without waiting. The engine
    /// (background thread) calls this function before it receives packets.
    pub(super) fn take(&self) -> Wakeup {
        let mut events = [MaybeUninit::uninit(); 8];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // Events that do not fit are reported by the next call.
        let Ok((came, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else {
            return Wakeup::default();
        };
        let is = |event: &epoll::Event| event.data.u64() == Event::HostChange as u64;
        Wakeup {
            woken: !came.is_empty(),
            host_changed: came.iter().any(is),
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
