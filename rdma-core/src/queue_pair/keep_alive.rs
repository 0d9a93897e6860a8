//! What send requests keep, and what becomes of it when they end.

use std::sync::Arc;

use crate::address::AddressHandle;
use crate::completion::WorkCompletion;
use crate::error::{Error, Result};
use crate::ffi::{QueuePairHandle, WindowChange};

/// What a request keeps beside its memory, until it has completed. What is rare is in a box, for there is one of these in each place of
/// each queue, and with many queue pairs it depends on their size whether they fit into a processor's cache.
#[derive(Debug)]
pub(crate) enum KeepAlive {
    Nothing,
    Address(AddressHandle),
    Segmented(Box<Segmented>),
    /// A window that changes, and its memory.
    Window(Box<WindowChange>),
}

const _: () = assert!(size_of::<KeepAlive>() <= 2 * size_of::<usize>());

/// The headers of a segmented send, and the way it goes.
#[derive(Debug)]
pub(crate) struct Segmented {
    pub(crate) headers: Arc<[u8]>,
    pub(crate) address: Option<AddressHandle>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    NotPosted,
    Succeeded,
    Failed,
}

impl Outcome {
    /// What a completion says. Requests before one that failed, which have none of their own, may
    /// have succeeded, and are taken to have failed.
    #[inline]
    pub(crate) fn of(completion: &WorkCompletion) -> Self {
        match completion.result() {
            Ok(()) => Self::Succeeded,
            Err(_) => Self::Failed,
        }
    }
}

impl KeepAlive {
    /// Gives up what was kept, of a request that has ended.
    #[inline]
    pub(crate) fn settle(&mut self, outcome: Outcome) {
        if !matches!(self, Self::Nothing) {
            std::mem::replace(self, Self::Nothing).settled(outcome);
        }
    }

    /// How the request ended, if a later one of the queue pair ended so.
    #[inline]
    pub(crate) fn inferred(&self, later: Outcome, queue_pair: &QueuePairHandle) -> Outcome {
        match self {
            Self::Window(change) => change.inferred(later, queue_pair),
            _ => later,
        }
    }

    /// Whether a queue pair can carry out what is kept.
    #[inline]
    pub(crate) fn check(&self, queue_pair: &QueuePairHandle) -> Result<()> {
        match self {
            Self::Window(change) => change.check(queue_pair),
            _ => match self.address() {
                Some(handle) => handle.check(queue_pair.domain().context()),
                None => Ok(()),
            },
        }
    }

    /// The way of a datagram.
    #[inline]
    pub(crate) fn address(&self) -> Option<&AddressHandle> {
        match self {
            Self::Address(handle) => Some(handle),
            Self::Segmented(segmented) => segmented.address.as_ref(),
            Self::Nothing | Self::Window(_) => None,
        }
    }

    /// Whether it must not be in a batch.
    #[inline]
    pub(crate) fn refused_in_batches(&self) -> Option<Error> {
        match self {
            Self::Window(change) if change.goes_alone() => {
                let reason = "requests of windows of type 1 are posted alone";
                Some(Error::invalid("request of a batch", reason))
            }
            _ => None,
        }
    }

    #[cold]
    fn settled(self, outcome: Outcome) {
        if let Self::Window(change) = self {
            change.settle(outcome);
        }
    }
}
