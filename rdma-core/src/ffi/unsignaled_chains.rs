//! The unsignaled requests of a queue to which many threads post.
//!
//! An unsignaled request has no completion of its own. The completion of a later request also
//! completes the unsignaled request.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// The posted unsignaled requests of a queue that no signaled request has followed yet. An
/// unsignaled request has no completion of its own.
///
/// Unsignaled requests form chains: the slot of each request contains the id of the request before
/// it. A signaled request takes over a whole chain: because it was posted later, its completion
/// also completes the requests of the chain. A thread holds the lock while it posts an unsignaled
/// request.
#[derive(Debug)]
pub(super) struct UnsignaledChains {
    chains: Mutex<ChainEnds>,
    /// Set if at least one chain of unsignaled requests exists.
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct ChainEnds {
    /// The id of the last request of each chain.
    last: Vec<u64>,
    /// Number of unsignaled requests since the last signaled one.
    run: u32,
}

impl UnsignaledChains {
    /// Creates an empty list of posted unsignaled requests. `is_alone` states that no other queue
    /// posts to the queue pair. If `is_alone` is `false`, the first request becomes signaled,
    /// because requests of other queues have perhaps filled the send queue almost completely.
    pub(super) fn new(is_alone: bool) -> Self {
        let run = if is_alone { 0 } else { u32::MAX };
        Self {
            chains: Mutex::new(ChainEnds {
                last: Vec::new(),
                run,
            }),
            any: AtomicBool::new(false),
        }
    }

    /// Begins posting a signaled request. If a chain of earlier unsignaled requests exists, the
    /// signaled request takes over the chain: the completion of the signaled request will also
    /// complete the requests of the chain.
    #[inline]
    pub(super) fn chain_signaled(&self) -> ChainedRequest<'_> {
        ChainedRequest {
            unsignaled_chains: self,
            unsignaled: None,
            earlier: self.take(),
        }
    }

    /// Begins posting a request that the program made unsignaled. The request becomes signaled if
    /// it follows `limit` unsignaled requests in a row.
    pub(super) fn chain_unsignaled(&self, limit: u32) -> ChainedRequest<'_> {
        let mut chains = self.chains.lock();
        let earlier = chains.last.pop().unwrap_or(0);
        let may_wait = chains.run < limit;
        if !may_wait {
            chains.run = 0;
        }
        self.any.store(!chains.last.is_empty(), Ordering::Relaxed);
        ChainedRequest {
            unsignaled_chains: self,
            unsignaled: may_wait.then_some(chains),
            earlier,
        }
    }

    /// Removes a chain of unsignaled requests, so that a signaled request can take over the chain:
    /// its completion will also complete the chain. Returns the id of the last request in the
    /// chain, or 0 if there is no chain.
    #[inline]
    pub(super) fn take(&self) -> u64 {
        // Relaxed: a chain that is not visible yet is taken by the next request.
        if !self.any.load(Ordering::Relaxed) {
            return 0;
        }
        self.take_chain()
    }

    #[cold]
    fn take_chain(&self) -> u64 {
        let mut chains = self.chains.lock();
        let id = chains.last.pop();
        chains.run = 0;
        self.any.store(!chains.last.is_empty(), Ordering::Relaxed);
        id.unwrap_or(0)
    }

    /// Adds a chain of posted unsignaled requests, so that a later signaled request completes the
    /// chain. `id` is the id of the last request of the chain. Called if the request that had taken
    /// over the chain was not posted, or if only unsignaled requests at the beginning of a batch
    /// were posted. Makes the next request signaled, because the chain has perhaps reached the
    /// maximum length.
    #[cold]
    pub(super) fn leave(&self, id: u64) {
        let mut chains = self.chains.lock();
        chains.last.push(id);
        chains.run = u32::MAX;
        self.any.store(true, Ordering::Relaxed);
    }
}

/// A request that is being posted, with the earlier unsignaled requests that its completion will
/// also complete. If the device rejects the request, the caller must put these earlier requests
/// back by [`UnsignaledChains::leave`], so that a later request completes them.
pub(super) struct ChainedRequest<'a> {
    unsignaled_chains: &'a UnsignaledChains,
    /// The guard of the lock on the chains, or `None` if the request is signaled.
    unsignaled: Option<MutexGuard<'a, ChainEnds>>,
    earlier: u64,
}

impl ChainedRequest<'_> {
    /// Returns whether the request must be posted as signaled.
    #[inline]
    pub(super) fn is_signaled(&self) -> bool {
        self.unsignaled.is_none()
    }

    /// Returns the id of the last earlier unsignaled request that this request's completion also
    /// completes, or 0 if there is no such request.
    #[inline]
    pub(super) fn earlier(&self) -> u64 {
        self.earlier
    }

    /// Records that the device has accepted the request, whose id is `id`. An unsignaled request is
    /// added to the list of requests that a later signaled request will complete.
    #[inline]
    pub(super) fn posted(self, id: u64) {
        if let Some(mut chains) = self.unsignaled {
            chains.last.push(id);
            chains.run += 1;
            self.unsignaled_chains.any.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Maximum number of unsignaled requests in a row, for tests that do not test this limit.
    const MANY: u32 = 100;

    #[test]
    fn a_signaled_request_takes_the_chain_before_it() {
        let unsignaled_chains = UnsignaledChains::new(true);
        let first = unsignaled_chains.chain_unsignaled(MANY);
        assert_eq!((first.is_signaled(), first.earlier()), (false, 0));
        first.posted(1);
        let second = unsignaled_chains.chain_unsignaled(MANY);
        assert_eq!((second.is_signaled(), second.earlier()), (false, 1));
        second.posted(2);
        let third = unsignaled_chains.chain_signaled();
        assert_eq!((third.is_signaled(), third.earlier()), (true, 2));
        third.posted(3);
        assert_eq!(unsignaled_chains.take(), 0);
    }

    #[test]
    fn a_chain_without_a_later_request_is_released() {
        let unsignaled_chains = UnsignaledChains::new(true);
        unsignaled_chains.chain_unsignaled(MANY).posted(1);
        for is_signaled in [true, false] {
            let chained = if is_signaled {
                unsignaled_chains.chain_signaled()
            } else {
                unsignaled_chains.chain_unsignaled(MANY)
            };
            let earlier = chained.earlier();
            drop(chained);
            assert_eq!((earlier, unsignaled_chains.take()), (1, 0));
            unsignaled_chains.leave(earlier);
        }
        assert!(unsignaled_chains.chain_unsignaled(MANY).is_signaled());
        unsignaled_chains.leave(1);
        assert_eq!(unsignaled_chains.take(), 1);
    }

    #[test]
    fn the_request_after_the_maximum_of_unsignaled_ones_is_signaled() {
        let unsignaled_chains = UnsignaledChains::new(true);
        for id in 1..=4 {
            let chained = unsignaled_chains.chain_unsignaled(4);
            assert!(!chained.is_signaled());
            chained.posted(id);
        }
        let due = unsignaled_chains.chain_unsignaled(4);
        assert_eq!((due.is_signaled(), due.earlier()), (true, 4));
        due.posted(5);
        assert!(!unsignaled_chains.chain_unsignaled(4).is_signaled());
        assert!(unsignaled_chains.chain_unsignaled(0).is_signaled());
    }

    #[test]
    fn a_queue_beside_others_signals_its_first_request() {
        let unsignaled_chains = UnsignaledChains::new(false);
        assert!(unsignaled_chains.chain_unsignaled(MANY).is_signaled());
        assert!(!unsignaled_chains.chain_unsignaled(MANY).is_signaled());
    }
}
