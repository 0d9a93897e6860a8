#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};

use super::WakeEventfd;
use crate::context::{Element, EventQueue, HasUsage, Usage};
use crate::descriptor::Descriptor;

/// A completion channel (`ibv_comp_channel`): a queue of events, each for a completion queue with
/// new entries.
#[derive(Debug)]
pub struct CompletionChannel {
    events: EventQueue<Arc<Element>, EventFile>,
    /// Duplicate of the event descriptor, for the program (field `fd` of `ibv_comp_channel`). The
    /// device does not use the duplicate, so the program can close it without harm to the device.
    program_descriptor: Descriptor,
    /// Set after the descriptor was found to be non-blocking, so that later checks need no system
    /// call.
    was_non_blocking: AtomicBool,
    usage: Usage,
}

/// Descriptor on which threads of the program wait for completion events. With `Own`, only this
/// process can wake the threads. With `WakeEventfd`, peer processes on the same host can wake them,
/// too.
#[derive(Debug)]
enum EventFile {
    Own(Descriptor),
    /// Descriptor that peer processes on the same host have, too, so that they can wake the waiting
    /// thread.
    WakeEventfd(WakeEventfd),
}

impl AsFd for EventFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(descriptor) => descriptor.as_fd(),
            Self::WakeEventfd(wake_eventfd) => wake_eventfd.as_fd(),
        }
    }
}

impl CompletionChannel {
    /// Creates a completion channel without queued events. The file descriptor of the channel is
    /// not shared with other processes.
    pub fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        Self::of_descriptor(EventFile::Own(Descriptor::open(|| eventfd(0, flags))?))
    }

    /// Creates a completion channel without queued events. With the eventfd `wake_eventfd`, peer
    /// processes on the same host can wake threads that wait on the channel.
    pub(crate) fn with(wake_eventfd: WakeEventfd) -> io::Result<Arc<Self>> {
        Self::of_descriptor(EventFile::WakeEventfd(wake_eventfd))
    }

    fn of_descriptor(descriptor: EventFile) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            program_descriptor: Descriptor::for_program(descriptor.as_fd())?,
            events: EventQueue::with(descriptor),
            was_non_blocking: AtomicBool::new(false),
            usage: Usage::default(),
        }))
    }

    /// Returns the number of the channel's file descriptor, on which the program waits for events.
    pub(crate) fn number(&self) -> RawFd {
        self.program_descriptor.as_raw_fd()
    }

    /// Returns the eventfd with which peer processes wake a thread that waits on this channel.
    /// Returns `None` if only this process can wake the thread.
    pub(crate) fn wake_eventfd(&self) -> Option<&WakeEventfd> {
        match self.events.descriptor() {
            EventFile::Own(_) => None,
            EventFile::WakeEventfd(wake_eventfd) => Some(wake_eventfd),
        }
    }

    /// Returns whether the program has made the channel's descriptor non-blocking (`O_NONBLOCK`).
    /// After the first call that returns `true`, all later calls return `true` without a system
    /// call. If the program makes the descriptor blocking again, threads still wait correctly.
    pub(crate) fn is_non_blocking(&self) -> bool {
        self.was_non_blocking() || {
            let flags = fcntl_getfl(self).unwrap_or(OFlags::empty());
            let is_non_blocking = flags.contains(OFlags::NONBLOCK);
            self.was_non_blocking
                .store(is_non_blocking, Ordering::Relaxed);
            is_non_blocking
        }
    }

    /// Returns whether an earlier call of [`is_non_blocking`](Self::is_non_blocking) has returned
    /// `true`: the channel's file descriptor was non-blocking. Makes no system call, so each arming
    /// of a completion queue can call this function.
    pub(crate) fn was_non_blocking(&self) -> bool {
        self.was_non_blocking.load(Ordering::Relaxed)
    }

    /// Queues an event for `completion_queue`, which has new entries. Each request of the program
    /// for an event causes one event, even if the previous event was not fetched
    /// (`ibv_req_notify_cq(3)`).
    pub fn notify(&self, completion_queue: &Arc<Element>) {
        self.events
            .push(Some(completion_queue), Arc::clone(completion_queue), |_| {
                false
            });
    }

    /// Removes the next event from the queue. Returns the [`Element`] (event record) of the
    /// completion queue to which the event belongs. If no event is queued, waits for an event. If
    /// the program has made the descriptor non-blocking, fails instead of waiting.
    pub fn next_event(&self) -> io::Result<Arc<Element>> {
        self.events.take(|element| Some(element))
    }

    /// Removes the next event from the queue without waiting. Returns the [`Element`] (event
    /// record) of the completion queue to which the event belongs, or `None` if no event is queued.
    pub(crate) fn try_next_event(&self) -> Option<Arc<Element>> {
        self.events.try_take(|element| Some(element))
    }

    /// Waits until an event is queued or a peer process wakes the waiting thread. Returns the
    /// record ([`Element`]) of the completion queue that raised the event, or `None` after a wakeup
    /// by a peer.
    pub(crate) fn wait(&self) -> io::Result<Option<Arc<Element>>> {
        self.events.wait()?;
        Ok(self.events.pop(|element| Some(element)))
    }

    /// Removes the queued events of `completion_queue`, which is being destroyed, and waits until
    /// the program has acknowledged the queue's fetched events (`ibv_destroy_cq(3)`).
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

impl HasUsage for CompletionChannel {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}
