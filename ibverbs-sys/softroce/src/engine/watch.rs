#![forbid(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::descriptor::Descriptor;
use crate::net::{Endpoints, Socket};

/// The sockets whose packets wake the engine. Each packet does so once, whether or not it is fetched then: while
/// another thread is fetching, what is still in a socket does not keep the engine from sleeping.
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

    /// Watches something else, always.
    pub(super) fn add(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let data = EventData::new_u64(0);
        Ok(epoll::add(&self.epoll, descriptor, data, EventFlags::IN)?)
    }

    /// Watches these sockets, or leaves them. A packet that is there when watching begins counts as one that comes
    /// then. False: the system refuses to watch one of them.
    pub(super) fn set(&mut self, endpoints: &Arc<Endpoints>, on: bool) -> bool {
        let known = self.endpoints.as_ref();
        if known.is_some_and(|known| Arc::ptr_eq(known, endpoints)) && self.on == on {
            return true;
        }
        if known.is_none_or(|known| !Arc::ptr_eq(known, endpoints)) {
            // A socket that could not be added need not be deleted.
            for socket in known.iter().flat_map(|known| known.sockets()) {
                let _ = epoll::delete(&self.epoll, socket);
            }
            self.endpoints = Some(Arc::clone(endpoints));
        }
        self.on = on;
        if !on {
            // To watch for nothing would not do: as long as somebody might be told, every packet that goes or comes takes its
            // sender the time to find out that nobody wants to be.
            for socket in endpoints.sockets() {
                let _ = epoll::delete(&self.epoll, socket);
            }
            return true;
        }
        let data = EventData::new_u64(0);
        let events = EventFlags::IN | EventFlags::ET;
        let watch = |socket: &Socket| {
            let modified = epoll::modify(&self.epoll, socket, data, events);
            modified.is_ok() || epoll::add(&self.epoll, socket, data, events).is_ok()
        };
        // All of them, even if one is refused.
        let refused = endpoints.sockets().filter(|socket| !watch(socket)).count();
        if refused > 0 {
            // The next time it is tried again.
            self.endpoints = None;
        }
        refused == 0
    }

    /// Returns whether packets came since the last call.
    pub(super) fn take(&self) -> bool {
        let mut events = [MaybeUninit::uninit(); 8];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // More than fit are told the next time.
        epoll::wait(&self.epoll, &mut events, Some(&now)).is_ok_and(|(came, _)| !came.is_empty())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
