#![forbid(unsafe_code)]
//! What peers wake threads of a program with: the descriptors of completion channels.
//!
//! Peers get them when memory is shared, when there may be no channel yet. So they are made beforehand, and channels take
//! them as long as there are any; others are woken by the engine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::context::count_down;
use crate::descriptor::Descriptor;

/// How many there are. Each peer has all of them open.
pub(super) const COUNT: usize = 2;

#[derive(Debug)]
pub(crate) struct Bells(Box<[Slot]>);

#[derive(Debug)]
struct Slot {
    bell: Descriptor,
    is_taken: AtomicBool,
}

/// The bell of a channel, until it is dropped.
#[derive(Debug)]
pub struct Bell {
    bells: Arc<Bells>,
    number: usize,
}

impl Bells {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let flags = EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC;
        let slot = |_| {
            Ok(Slot {
                bell: Descriptor::open(|| eventfd(0, flags))?,
                is_taken: AtomicBool::new(false),
            })
        };
        let slots = (0..COUNT).map(slot).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self(slots)))
    }

    /// One that no channel has.
    pub(super) fn take(self: &Arc<Self>) -> Option<Bell> {
        let number =
            (self.0.iter()).position(|slot| !slot.is_taken.swap(true, Ordering::AcqRel))?;
        let bell = Bell {
            bells: Arc::clone(self),
            number,
        };
        // Who had it before may have left it otherwise.
        let flags = fcntl_getfl(bell.as_fd()).ok()?;
        fcntl_setfl(bell.as_fd(), flags - OFlags::NONBLOCK).ok()?;
        while count_down(bell.as_fd()) {}
        Some(bell)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|slot| slot.bell.as_fd())
    }
}

impl Bell {
    /// What peers know it by.
    pub(super) fn number(&self) -> usize {
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

/// Whether a descriptor is one that a write never waits at, as long as nobody means it.
pub(super) fn is_bell(descriptor: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_one_channels_and_begins_silent() {
        let bells = Bells::new().unwrap();
        let taken: Vec<Bell> = std::iter::from_fn(|| bells.take()).collect();
        assert_eq!(taken.len(), COUNT);
        for bell in &taken {
            assert!(is_bell(bell.as_fd()));
            rustix::io::write(bell, &3_u64.to_ne_bytes()).unwrap();
            let flags = fcntl_getfl(bell).unwrap();
            fcntl_setfl(bell, flags | OFlags::NONBLOCK).unwrap();
        }
        drop(taken);
        let again = bells.take().unwrap();
        assert!(!count_down(again.as_fd()));
        assert!(!fcntl_getfl(&again).unwrap().contains(OFlags::NONBLOCK));
        let other = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_bell(other.as_fd()));
    }
}
