//! Objects that a send request keeps alive until the request has completed.

use std::sync::Arc;

use crate::address::AddressHandle;
use crate::completion::WorkCompletion;
use crate::error::{Error, Result};
use crate::ffi::{QueuePairHandle, WindowChange};

/// An object, such as an address handle, that a request keeps alive until the request has
/// completed. The memory of the request is stored separately. Rare variants are boxed to keep the
/// value small: every queue stores such a value for each request in flight. With many queue pairs,
/// the size decides whether these values fit into a processor's cache.
#[derive(Debug)]
pub(crate) enum KeepAlive {
    Nothing,
    Address(AddressHandle),
    Segmented(Box<Segmented>),
    /// The change that the request makes to a memory window. The value keeps the window and the
    /// memory of the window alive.
    Window(Box<WindowChange>),
}

const _: () = assert!(size_of::<KeepAlive>() <= 2 * size_of::<usize>());

/// The packet headers and the address handle of a segmented send, which the device divides into
/// packets (TSO). The request keeps both alive until the request has completed.
#[derive(Debug)]
pub(crate) struct Segmented {
    pub(crate) headers: Arc<[u8]>,
    pub(crate) address: Option<AddressHandle>,
}

/// The outcome of a send request: not posted, succeeded or failed. If the request changes a memory
/// window, the outcome decides the new state of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    NotPosted,
    Succeeded,
    Failed,
}

impl Outcome {
    /// Returns the outcome (success or failure) that `completion` reports. The outcome also applies
    /// to the unsignaled requests before the completed request. If the completed request failed,
    /// these unsignaled requests are treated as failed, although they may have succeeded.
    #[inline]
    pub(crate) fn of(completion: &WorkCompletion) -> Self {
        match completion.result() {
            Ok(()) => Self::Succeeded,
            Err(_) => Self::Failed,
        }
    }
}

impl KeepAlive {
    /// Releases the object that a request has kept alive. The request has ended with `outcome`. If
    /// the object is a memory window, also records whether the window is bound now.
    #[inline]
    pub(crate) fn settle(&mut self, outcome: Outcome) {
        if !matches!(self, Self::Nothing) {
            std::mem::replace(self, Self::Nothing).settled(outcome);
        }
    }

    /// Returns the outcome of an unsignaled request, which has no completion of its own. In general
    /// the outcome is `later`, the outcome of a later request. If the request changes a memory
    /// window, and the queue pair was reset or restarted between the two requests, the outcome is
    /// [`Outcome::Failed`], because the later request then proves nothing about the earlier
    /// request.
    #[inline]
    pub(crate) fn inferred(&self, later: Outcome, queue_pair: &QueuePairHandle) -> Outcome {
        match self {
            Self::Window(change) => change.inferred(later, queue_pair),
            _ => later,
        }
    }

    /// Returns an error if the object that the request keeps alive cannot be used with
    /// `queue_pair`. An example is a memory window of another protection domain.
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

    /// Returns the address handle that a datagram request keeps alive, or `None` for other
    /// requests.
    #[inline]
    pub(crate) fn address(&self) -> Option<&AddressHandle> {
        match self {
            Self::Address(handle) => Some(handle),
            Self::Segmented(segmented) => segmented.address.as_ref(),
            Self::Nothing | Self::Window(_) => None,
        }
    }

    /// Returns an error if the request changes a memory window of type 1. A batch cannot contain
    /// such a request, because a separate call (`ibv_bind_mw`) must post the request.
    #[inline]
    pub(crate) fn refused_in_batches(&self) -> Option<Error> {
        match self {
            Self::Window(change) if change.needs_own_call() => {
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
