#![forbid(unsafe_code)]
//! Wakeup descriptors (eventfds) by which peers on the same host wake threads that wait on a completion channel.
//!
//! Peers get these descriptors when memory is shared, possibly before any channel exists. So they are opened beforehand, and
//! assigned to channels while some are free. Threads that wait on other channels are woken by the engine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::context::count_down;
use crate::descriptor::Descriptor;

/// Wakeup descriptors (eventfds) of a NIC, with which peer processes wake threads that wait on completion channels.
#[derive(Debug)]
pub(crate) struct Bells(Box<[Slot]>);

#[derive(Debug)]
struct Slot {
    bell: Descriptor,
    is_taken: AtomicBool,
}

/// Wakeup descriptor of a completion channel. Dropping this value makes the descriptor available to other channels.
#[derive(Debug)]
pub(crate) struct Bell {
    bells: Arc<Bells>,
    number: usize,
}

impl Bells {
    /// Number of wakeup descriptors of a NIC. Each peer process holds all of them open, so the number is small.
    pub(crate) const COUNT: usize = 2;

    /// Opens all wakeup descriptors. No descriptor is assigned to a channel yet.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        let slot = |_| {
            Ok(Slot {
                bell: Descriptor::open(|| eventfd(0, flags))?,
                is_taken: AtomicBool::new(false),
            })
        };
        let slots = (0..Self::COUNT).map(slot).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self(slots)))
    }

    /// Assigns a free wakeup descriptor to a new completion channel. Returns `None` if all are in use.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Bell> {
        let number =
            (self.0.iter()).position(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))?;
        let bell = Bell {
            bells: Arc::clone(self),
            number,
        };
        // The previous channel may have changed the blocking mode or left a count.
        let flags = fcntl_getfl(bell.as_fd()).ok()?;
        fcntl_setfl(bell.as_fd(), flags - OFlags::NONBLOCK).ok()?;
        while count_down(bell.as_fd()) {}
        Some(bell)
    }

    /// Returns all wakeup descriptors of the NIC, to be sent to a peer process.
    pub(crate) fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|slot| slot.bell.as_fd())
    }
}

impl Bell {
    /// Returns the index of the descriptor among the wakeup descriptors of its NIC. Peer processes identify the descriptor by
    /// this index.
    pub(crate) fn number(&self) -> usize {
        self.number
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bells.0[self.number].bell.as_fd()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.bells.0[self.number]
            .is_taken
            .store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_one_channels_and_begins_silent() {
        let bells = Bells::new().unwrap();
        let taken: Vec<Bell> = std::iter::from_fn(|| bells.take()).collect();
        assert_eq!(taken.len(), Bells::COUNT);
        for bell in &taken {
            rustix::io::write(bell, &3_u64.to_ne_bytes()).unwrap();
            let flags = fcntl_getfl(bell).unwrap();
            fcntl_setfl(bell, flags | OFlags::NONBLOCK).unwrap();
        }
        drop(taken);
        let again = bells.take().unwrap();
        assert!(!count_down(again.as_fd()));
        assert!(!fcntl_getfl(&again).unwrap().contains(OFlags::NONBLOCK));
    }
}
