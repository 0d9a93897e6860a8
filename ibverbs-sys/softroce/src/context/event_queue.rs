use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2, read};

use super::Element;
use crate::descriptor::{self, Descriptor};

/// Queue of events with a file descriptor (an eventfd in semaphore mode) that is readable while
/// events are queued. The program may set `O_NONBLOCK` on the descriptor.
///
/// Each queued event increments the eventfd, and each fetched event decrements it. A waiting thread
/// first decrements the eventfd and then removes an event. Every other thread removes an event and
/// decrements the eventfd under the lock of the queue, and so never takes the count of a later
/// event. So no event stays in the queue while the descriptor is not readable, except an event that
/// a woken thread is about to remove. The counter may be too high for a moment: a woken thread then
/// finds no event, and waits again.
#[derive(Debug)]
pub struct EventQueue<T, D = Descriptor> {
    descriptor: D,
    pending: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// Creates an event queue without events, and opens an eventfd as its descriptor.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        Ok(Self {
            descriptor: Descriptor::open(|| eventfd(0, flags))?,
            pending: Mutex::default(),
        })
    }
}

impl<T, D: AsFd> EventQueue<T, D> {
    /// Creates an event queue without events that uses the eventfd `descriptor`, which must be in
    /// semaphore mode. Other processes may also increment the eventfd, to wake a thread that waits
    /// for an event. Such a thread finds no event, and [`take`](Self::take) waits again.
    pub fn with(descriptor: D) -> Self {
        Self {
            descriptor,
            pending: Mutex::default(),
        }
    }

    /// Returns the descriptor on which the program waits for events.
    pub fn descriptor(&self) -> &D {
        &self.descriptor
    }

    /// Adds an event of the object `element`, or of no object, to the queue. Adds nothing if the
    /// object is being destroyed. Also adds nothing if `is_same` returns `true` for a queued event.
    /// So equal events do not accumulate in the queue.
    pub fn push(&self, element: Option<&Element>, event: T, is_same: impl Fn(&T) -> bool) {
        let mut pending = self.pending.lock();
        if element.is_some_and(Element::is_withdrawn) || pending.iter().any(is_same) {
            return;
        }
        pending.push_back(event);
        // Even if the program has closed the descriptor, the event can be fetched.
        descriptor::increment(self.descriptor.as_fd());
    }

    /// Fetches the next event. If no event is queued, waits for an event, unless the descriptor is
    /// non-blocking. Counts the event as fetched in the [`Element`] (event record) that
    /// `element_of` returns, because the program must acknowledge fetched events.
    pub fn take(&self, element_of: impl Fn(&T) -> Option<&Arc<Element>>) -> io::Result<T> {
        loop {
            let waited = self.wait();
            if (waited.is_ok() || descriptor::has_lost())
                && let Some(event) = self.pop(&element_of)
            {
                return Ok(event);
            }
            waited?;
        }
    }

    /// Fetches the next event, or returns `None` if the queue is empty. Never waits, even if the
    /// descriptor is blocking. Counts the event as fetched in the [`Element`] (event record) that
    /// `element_of` returns for the event.
    pub fn try_take(&self, element_of: impl Fn(&T) -> Option<&Arc<Element>>) -> Option<T> {
        let mut pending = self.pending.lock();
        let event = fetch(&mut pending, element_of)?;
        // This must happen under the lock. A waiting thread may have decremented the counter for
        // this event, found no event, and gone to sleep again. Then the next count belongs to an
        // event that is queued later.
        decrement(self.descriptor.as_fd());
        Some(event)
    }

    /// Waits until the descriptor is readable, because an event is queued or another process wakes
    /// the thread. Then decrements the eventfd. The caller must then call [`pop`](Self::pop).
    /// Otherwise an event may stay in the queue although the descriptor is not readable.
    ///
    /// # Errors
    /// `EIO` if the program has closed the descriptor, and `EAGAIN` if the descriptor is
    /// non-blocking and not readable.
    pub fn wait(&self) -> io::Result<()> {
        let is_closed = || Err(io::Error::from(Errno::IO));
        if descriptor::has_lost() && !descriptor::is_intact(self.descriptor.as_fd()) {
            return is_closed();
        }
        match read(&self.descriptor, &mut [0; 8]) {
            Err(Errno::BADF) => {
                descriptor::report_loss();
                is_closed()
            }
            read => Ok(read.map(drop)?),
        }
    }

    /// Fetches the next event, without waiting. The caller must have called [`wait`](Self::wait)
    /// before. Counts the event as fetched in the [`Element`] (event record) that `element_of`
    /// returns for the event. Returns `None` if the queue is empty. The queue can be empty if
    /// another process has woken the thread, or if the event was removed after the wait, for
    /// example because its object was destroyed.
    pub fn pop(&self, element_of: impl Fn(&T) -> Option<&Arc<Element>>) -> Option<T> {
        fetch(&mut self.pending.lock(), element_of)
    }

    /// Removes all queued events of an object that is being destroyed. From now on, no event of the
    /// object can be queued. Then waits until the program has acknowledged all fetched events of
    /// the object. `element` is the event record of the object, and `of` returns the event record
    /// to which an event belongs.
    pub fn withdraw(&self, element: &Arc<Element>, of: impl Fn(&T) -> Option<&Arc<Element>>) {
        {
            let mut pending = self.pending.lock();
            element.withdraw();
            let before = pending.len();
            pending.retain(|event| !of(event).is_some_and(|other| Arc::ptr_eq(other, element)));
            for _ in pending.len()..before {
                decrement(self.descriptor.as_fd());
            }
        }
        element.wait_for_acknowledgements();
    }
}

/// Removes and returns the oldest event in `pending`, the list of events that the program has not
/// fetched yet. If the event concerns an object, `element_of` returns the event record of the
/// object, in which the event is then counted as fetched. The caller must hold the lock of the
/// queue, so that [`EventQueue::withdraw`] finds each event either queued or fetched.
fn fetch<T>(
    pending: &mut VecDeque<T>,
    element_of: impl Fn(&T) -> Option<&Arc<Element>>,
) -> Option<T> {
    let event = pending.pop_front()?;
    if let Some(element) = element_of(&event) {
        element.fetch();
    }
    Some(event)
}

/// Decrements the counter of an eventfd, and returns `true`. Returns `false` without waiting in
/// three cases: the counter is zero, the kernel cannot read the eventfd without waiting, or the
/// program has closed the descriptor. After `false`, the eventfd can stay readable. A thread that
/// waits for an event then wakes up and finds no event.
pub(crate) fn decrement(eventfd: BorrowedFd<'_>) -> bool {
    if descriptor::has_lost() && !descriptor::is_intact(eventfd) {
        return false;
    }
    let mut count = [0; 8];
    let mut slices = [IoSliceMut::new(&mut count)];
    let read: Result<usize, Errno> =
        preadv2(eventfd, &mut slices, u64::MAX, ReadWriteFlags::NOWAIT);
    read.is_ok()
}

impl<T, D: AsFd> AsFd for EventQueue<T, D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, OnceCell};
    use std::os::fd::OwnedFd;
    use std::rc::{Rc, Weak};
    use std::thread;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use rustix::io::write;

    use super::*;

    type Queue = EventQueue<(u32, Arc<Element>)>;

    fn of(event: &(u32, Arc<Element>)) -> Option<&Arc<Element>> {
        Some(&event.1)
    }

    fn queue() -> Queue {
        let queue = Queue::new().unwrap();
        let flags = fcntl_getfl(&queue).unwrap();
        fcntl_setfl(&queue, flags | OFlags::NONBLOCK).unwrap();
        queue
    }

    fn push(queue: &Queue, number: u32, element: &Arc<Element>) {
        queue.push(Some(element), (number, Arc::clone(element)), |_| false);
    }

    fn is_readable(queue: &Queue) -> bool {
        let mut descriptors = [PollFd::new(queue, PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn events_are_fetched_in_order_and_the_descriptor_is_readable_while_events_are_queued() {
        let (queue, element) = (queue(), Element::new());
        assert!(!is_readable(&queue));
        assert_eq!(
            queue.take(of).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        for number in 0..3 {
            push(&queue, number, &element);
        }
        for number in 0..3 {
            assert!(is_readable(&queue));
            assert_eq!(queue.take(of).unwrap().0, number);
        }
        assert!(!is_readable(&queue));
    }

    #[test]
    fn an_event_of_which_one_is_enough_is_not_queued_twice() {
        let (queue, element) = (queue(), Element::new());
        for _ in 0..3 {
            queue.push(Some(&element), (7, Arc::clone(&element)), |other| {
                other.0 == 7
            });
        }
        queue.take(of).unwrap();
        assert!(queue.take(of).is_err());
        queue.push(Some(&element), (7, Arc::clone(&element)), |other| {
            other.0 == 7
        });
        assert!(
            queue.take(of).is_ok(),
            "one that was fetched does not count"
        );
    }

    #[test]
    fn a_withdrawal_removes_the_events_of_its_object_and_prevents_new_ones() {
        let (queue, gone, stays) = (queue(), Element::new(), Element::new());
        push(&queue, 1, &gone);
        push(&queue, 2, &stays);
        push(&queue, 3, &gone);
        queue.withdraw(&gone, of);
        push(&queue, 4, &gone);
        assert_eq!(queue.take(of).unwrap().0, 2);
        assert!(queue.take(of).is_err());
        assert!(
            !is_readable(&queue),
            "the counter went down with the events"
        );
    }

    #[test]
    fn a_withdrawal_waits_for_acknowledgements() {
        let (queue, element) = (queue(), Element::new());
        push(&queue, 1, &element);
        push(&queue, 2, &element);
        queue.take(of).unwrap();
        queue.take(of).unwrap();
        let done = Mutex::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                queue.withdraw(&element, of);
                *done.lock() = true;
            });
            element.acknowledge(1);
            thread::sleep(Duration::from_millis(20));
            assert!(!*done.lock(), "one is still missing");
            element.acknowledge(1);
        });
        assert!(*done.lock());
    }

    #[test]
    fn one_of_many_waiting_threads_gets_each_event() {
        const EVENTS: u32 = 300;
        let (queue, element) = (Queue::new().unwrap(), Element::new());
        let fetched = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..EVENTS / 3 {
                        let number = queue.take(of).unwrap().0;
                        fetched.lock().push(number);
                    }
                });
            }
            for number in 0..EVENTS {
                push(&queue, number, &element);
            }
        });
        let mut fetched = fetched.into_inner();
        fetched.sort_unstable();
        assert!(fetched.into_iter().eq(0..EVENTS));
    }

    /// Descriptor of an event queue for tests. Calls the function `F` with the descriptor before
    /// each system call of the queue on the descriptor.
    struct Watched<F: Fn(BorrowedFd<'_>)>(OwnedFd, F);

    impl<F: Fn(BorrowedFd<'_>)> AsFd for Watched<F> {
        fn as_fd(&self) -> BorrowedFd<'_> {
            (self.1)(self.0.as_fd());
            self.0.as_fd()
        }
    }

    /// Checks that the descriptor is readable while an event is queued, even in one special order
    /// of steps. In this order, a thread removes the first event. Before that thread decrements the
    /// eventfd, another thread decrements it and finds no event, and a second event is queued. The
    /// first thread must not take the count of the second event. The lock of the queue prevents
    /// this order.
    #[test]
    fn a_fetch_does_not_consume_the_eventfd_count_of_a_later_event() {
        type Hook = Box<dyn Fn(BorrowedFd<'_>)>;
        type Hooked = EventQueue<(u32, Arc<Element>), Watched<Hook>>;
        let element = Element::new();
        let place = Rc::new(OnceCell::<Weak<Hooked>>::new());
        let (of_hook, later) = (Rc::clone(&place), Arc::clone(&element));
        let is_fetching = Rc::new(Cell::new(false));
        let while_fetching = Rc::clone(&is_fetching);
        let hook: Hook = Box::new(move |descriptor| {
            let queue = of_hook.get().and_then(Weak::upgrade);
            let queue = queue.filter(|_| while_fetching.get());
            // This is possible only after the first event was removed, if another thread could take
            // the lock.
            let Some(queue) = queue.filter(|queue| {
                queue
                    .pending
                    .try_lock()
                    .is_some_and(|pending| pending.is_empty())
            }) else {
                return;
            };
            while_fetching.set(false);
            read(descriptor, &mut [0; 8]).unwrap();
            assert!(queue.pop(of).is_none());
            queue.pending.lock().push_back((2, Arc::clone(&later)));
            write(descriptor, &1_u64.to_ne_bytes()).unwrap();
        });
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let queue = Rc::new(Hooked::with(Watched(eventfd(0, flags).unwrap(), hook)));
        queue.push(Some(&element), (1, Arc::clone(&element)), |_| false);
        place.set(Rc::downgrade(&queue)).unwrap();
        is_fetching.set(true);
        assert_eq!(queue.try_take(of).unwrap().0, 1);
        is_fetching.set(false);
        // The later event is left if the steps could be interleaved; otherwise no event is left.
        let is_left = !queue.pending.lock().is_empty();
        let mut descriptors = [PollFd::new(&*queue, PollFlags::IN)];
        let is_readable = poll(&mut descriptors, Some(&Timespec::default())).unwrap() == 1;
        assert_eq!(
            is_readable, is_left,
            "an event behind a descriptor that is not readable"
        );
    }

    /// Checks that the descriptor is readable exactly while events are queued, even if one thread
    /// removes the events of an object while another thread waits for an event.
    #[test]
    fn withdrawals_race_with_fetching() {
        for _ in 0..200 {
            let (queue, gone, stays) = (Queue::new().unwrap(), Element::new(), Element::new());
            push(&queue, 1, &gone);
            push(&queue, 2, &stays);
            let first = thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let (number, element) = queue.take(of).unwrap();
                    element.acknowledge(1);
                    number
                });
                queue.withdraw(&gone, of);
                reader.join().unwrap()
            });
            assert_eq!(
                is_readable(&queue),
                first == 1,
                "what is left is the other event"
            );
            if first == 1 {
                assert_eq!(queue.take(of).unwrap().0, 2);
            }
        }
    }
}
