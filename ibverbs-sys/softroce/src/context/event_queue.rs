use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2, read, write};

use super::Element;

/// Events that a program waits for at a file descriptor, which is readable while there are any and
/// on which the program may set `O_NONBLOCK`.
///
/// The descriptor is an eventfd that counts like a semaphore: one up for an event that is queued,
/// one down for each that somebody has set out to fetch. Who has brought it down finds an event, or
/// finds that it was withdrawn meanwhile, and sets out again. So no event is fetched twice and none
/// is left behind a descriptor that is not readable.
#[derive(Debug)]
pub struct EventQueue<T> {
    descriptor: OwnedFd,
    pending: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        Ok(Self {
            descriptor: eventfd(0, flags)?,
            pending: Mutex::default(),
        })
    }

    /// Adds an event about `element`, unless that is withdrawn, or `is_same` of one that nobody has
    /// fetched yet: so the queue is no longer than there are kinds of events and elements.
    pub fn push(&self, element: Option<&Element>, event: T, is_same: impl Fn(&T) -> bool) {
        let mut pending = self.pending.lock();
        if element.is_some_and(Element::is_withdrawn) || pending.iter().any(is_same) {
            return;
        }
        pending.push_back(event);
        // The counter cannot be full. An error leaves an event that the next one brings along.
        let _ = write(&self.descriptor, &1_u64.to_ne_bytes());
    }

    /// Fetches the next event. Waits for one unless the descriptor is non-blocking. `element_of`
    /// says whom the event is about.
    pub fn take(&self, element_of: impl Fn(&T) -> Option<&Arc<Element>>) -> io::Result<T> {
        loop {
            let mut count = [0; 8];
            read(&self.descriptor, &mut count)?;
            let mut pending = self.pending.lock();
            if let Some(event) = pending.pop_front() {
                // Under the lock, so that a withdrawal finds the event either queued or fetched.
                if let Some(element) = element_of(&event) {
                    element.fetch();
                }
                return Ok(event);
            }
        }
    }

    /// Takes back all events about `element` that nobody has fetched, queues no more of them, and
    /// waits until the fetched ones are acknowledged.
    pub fn withdraw(&self, element: &Arc<Element>, of: impl Fn(&T) -> Option<&Arc<Element>>) {
        {
            let mut pending = self.pending.lock();
            element.withdraw();
            let before = pending.len();
            pending.retain(|event| !of(event).is_some_and(|other| Arc::ptr_eq(other, element)));
            for _ in pending.len()..before {
                self.count_down();
            }
        }
        element.wait_for_acknowledgements();
    }

    /// Takes one off the counter without waiting, whatever the program has set. Where the kernel cannot, or
    /// somebody was quicker, that one finds no event and waits on.
    fn count_down(&self) {
        let mut count = [0; 8];
        let mut slices = [IoSliceMut::new(&mut count)];
        let _: Result<usize, Errno> = preadv2(
            &self.descriptor,
            &mut slices,
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
