#![forbid(unsafe_code)]
//! Wakeup descriptors (eventfds) by which peers on the same host wake threads that wait on a
//! completion channel.
//!
//! Peers get these descriptors when memory is shared, possibly before any channel exists. So the
//! NIC opens a fixed number of them in advance, and assigns each to a channel while some are free.
//! Threads that wait on other channels are woken by the engine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::context::decrement;
use crate::descriptor::Descriptor;

/// Wakeup descriptors (eventfds) of a NIC, by which peer processes wake threads that wait on
/// completion channels.
#[derive(Debug)]
pub(crate) struct WakeEventfds(Box<[Slot]>);

#[derive(Debug)]
struct Slot {
    wake_eventfd: Descriptor,
    is_taken: AtomicBool,
}

/// Wakeup descriptor (eventfd) that is assigned to a completion channel. Dropping this value makes
/// the descriptor available to other channels.
#[derive(Debug)]
pub(crate) struct WakeEventfd {
    wake_eventfds: Arc<WakeEventfds>,
    number: usize,
}

impl WakeEventfds {
    /// Number of completion channels whose waiting threads peer processes can wake directly. Each
    /// of these channels has a wakeup descriptor (eventfd). The number is small because each peer
    /// process holds all these descriptors open.
    pub(crate) const COUNT: usize = 2;

    /// Opens all wakeup descriptors (eventfds) of a NIC. At first, no descriptor is assigned to a
    /// channel.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        let slot = |_| {
            Ok(Slot {
                wake_eventfd: Descriptor::open(|| eventfd(0, flags))?,
                is_taken: AtomicBool::new(false),
            })
        };
        let slots = (0..Self::COUNT).map(slot).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self(slots)))
    }

    /// Assigns a free wakeup descriptor to a new completion channel. Returns `None` if all
    /// descriptors are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<WakeEventfd> {
        let number =
            (self.0.iter()).position(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))?;
        let wake_eventfd = WakeEventfd {
            wake_eventfds: Arc::clone(self),
            number,
        };
        // The previous channel may have changed the blocking mode or left a count.
        let flags = fcntl_getfl(wake_eventfd.as_fd()).ok()?;
        fcntl_setfl(wake_eventfd.as_fd(), flags - OFlags::NONBLOCK).ok()?;
        while decrement(wake_eventfd.as_fd()) {}
        Some(wake_eventfd)
    }

    /// Returns all wakeup descriptors of the NIC, to be sent to a peer process.
    pub(crate) fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|slot| slot.wake_eventfd.as_fd())
    }
}

impl WakeEventfd {
    /// Returns the index of this descriptor among the wakeup descriptors of the NIC. Peer processes
    /// identify the descriptor by this index.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Returns whether this is the only wakeup descriptor of the NIC that is in use. If so, peer
    /// processes can wake threads of no other completion channel.
    pub(crate) fn is_only_one(&self) -> bool {
        let slots = self.wake_eventfds.0.iter();
        let taken = slots.filter(|slot| slot.is_taken.load(Ordering::Relaxed));
        taken.count() == 1
    }
}

impl AsFd for WakeEventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_eventfds.0[self.number].wake_eventfd.as_fd()
    }
}

impl Drop for WakeEventfd {
    fn drop(&mut self) {
        self.wake_eventfds.0[self.number]
            .is_taken
            .store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wake_eventfd_belongs_to_one_channel_and_begins_unsignaled() {
        let wake_eventfds = WakeEventfds::new().unwrap();
        let taken: Vec<WakeEventfd> = std::iter::from_fn(|| wake_eventfds.take()).collect();
        assert_eq!(taken.len(), WakeEventfds::COUNT);
        for wake_eventfd in &taken {
            rustix::io::write(wake_eventfd, &3_u64.to_ne_bytes()).unwrap();
            let flags = fcntl_getfl(wake_eventfd).unwrap();
            fcntl_setfl(wake_eventfd, flags | OFlags::NONBLOCK).unwrap();
        }
        assert!(taken.iter().all(|wake_eventfd| !wake_eventfd.is_only_one()));
        drop(taken);
        let again = wake_eventfds.take().unwrap();
        assert!(again.is_only_one());
        assert!(!decrement(again.as_fd()));
        assert!(!fcntl_getfl(&again).unwrap().contains(OFlags::NONBLOCK));
    }
}
