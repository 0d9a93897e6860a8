#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};

use super::Bell;
use crate::context::{Element, EventQueue, Shared, Usage};
use crate::descriptor::Descriptor;

/// A completion channel: `ibv_comp_channel`. Its events name the completion queues that have something new.
#[derive(Debug)]
pub struct CompletionChannel {
    events: EventQueue<Arc<Element>, Waking>,
    /// The descriptor with the number that the program knows; the device does not use it.
    public: Descriptor,
    usage: Usage,
}

/// Where the program waits.
#[derive(Debug)]
enum Waking {
    Own(Descriptor),
    /// Peers of the same host have it, too.
    Bell(Bell),
}

impl AsFd for Waking {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(descriptor) => descriptor.as_fd(),
            Self::Bell(bell) => bell.as_fd(),
        }
    }
}

impl CompletionChannel {
    /// Makes a channel without events.
    pub fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        Self::behind(Waking::Own(Descriptor::open(|| eventfd(0, flags))?))
    }

    /// Makes a channel without events at which peers of the same host wake waiting threads.
    pub(crate) fn with(bell: Bell) -> io::Result<Arc<Self>> {
        Self::behind(Waking::Bell(bell))
    }

    fn behind(descriptor: Waking) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            public: Descriptor::for_program(descriptor.as_fd())?,
            events: EventQueue::with(descriptor),
            usage: Usage::default(),
        }))
    }

    /// Returns the number of the descriptor that the program waits at.
    pub(crate) fn number(&self) -> RawFd {
        self.public.as_raw_fd()
    }

    /// Returns the bell with which peers wake a thread that waits at this channel. `None`: peers cannot ring it.
    pub(crate) fn bell(&self) -> Option<&Bell> {
        match self.events.descriptor() {
            Waking::Own(_) => None,
            Waking::Bell(bell) => Some(bell),
        }
    }

    /// Returns whether the program has made the descriptor non-blocking, so that no thread waits in a read of it.
    pub(crate) fn is_non_blocking(&self) -> bool {
        fcntl_getfl(self).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
    }

    /// Queues an event for a completion queue with something new. Each arming gives one event, whether or not the last
    /// one was fetched (`ibv_req_notify_cq(3)`).
    pub fn notify(&self, completion_queue: &Arc<Element>) {
        self.events
            .push(Some(completion_queue), Arc::clone(completion_queue), |_| {
                false
            });
    }

    /// Fetches the next event; waits for one unless the descriptor is non-blocking.
    pub fn next_event(&self) -> io::Result<Arc<Element>> {
        self.events.take(|element| Some(element))
    }

    /// Fetches the next event if there is one.
    pub(crate) fn try_next_event(&self) -> Option<Arc<Element>> {
        self.events.try_take(|element| Some(element))
    }

    /// Waits for an event, or for a peer that rings; the event.
    pub(crate) fn wait(&self) -> io::Result<Option<Arc<Element>>> {
        self.events.wait()?;
        Ok(self.events.pop(|element| Some(element)))
    }

    /// Takes back the events of a completion queue that is being destroyed, and waits for the acknowledgements of those
    /// that were fetched.
    pub fn withdraw(&self, completion_queue: &Arc<Element>) {
        self.events
            .withdraw(completion_queue, |element| Some(element));
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Shared for CompletionChannel {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}
