use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::context::{DomainId, Refusal};
use crate::limits;

use super::SharedReceiveQueue;

/// Table of the shared receive queues of a NIC, found by the numbers that XRC requests contain.
#[derive(Debug, Default)]
pub struct SharedQueueDirectory {
    queues: RwLock<Numbered>,
}

#[derive(Debug, Default)]
struct Numbered {
    last: u32,
    queues: HashMap<u32, Arc<SharedReceiveQueue>>,
}

impl SharedQueueDirectory {
    /// Creates a shared receive queue by calling `make` with a free number. Adds the queue to the
    /// directory, and returns it. The numbers of removed queues are reused as late as possible.
    pub fn insert(
        &self,
        make: impl FnOnce(u32) -> Result<Arc<SharedReceiveQueue>, Refusal>,
    ) -> Result<Arc<SharedReceiveQueue>, Refusal> {
        let mut numbered = self.queues.write();
        if numbered.queues.len() >= limits::MAX_SRQ {
            return Err(Refusal::Exhausted);
        }
        // There are far more numbers of 24 bits than queues may exist, so a free number is found
        // soon.
        let mut number = numbered.last;
        loop {
            number = (number + 1) & 0xff_ffff;
            if number != 0 && !numbered.queues.contains_key(&number) {
                break;
            }
        }
        let queue = make(number)?;
        numbered.last = number;
        numbered.queues.insert(number, Arc::clone(&queue));
        Ok(queue)
    }

    /// Returns the shared receive queue with the number `number`, or `None` if it does not exist.
    pub fn find(&self, number: u32) -> Option<Arc<SharedReceiveQueue>> {
        self.queues.read().queues.get(&number).cloned()
    }

    /// Returns the shared receive queues of the XRC domain `domain`, in no particular order.
    pub fn of_xrc_domain(&self, domain: DomainId) -> Vec<Arc<SharedReceiveQueue>> {
        let numbered = self.queues.read();
        let of_domain =
            |queue: &&Arc<SharedReceiveQueue>| queue.xrc().is_some_and(|xrc| xrc.domain == domain);
        numbered
            .queues
            .values()
            .filter(of_domain)
            .cloned()
            .collect()
    }

    /// Removes the shared receive queue with the number `number` from the directory.
    pub fn remove(&self, number: u32) {
        self.queues.write().queues.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{Context, ProtectionDomain};

    #[test]
    fn queues_are_found_by_number_and_numbers_are_reused_late() {
        let (context, domain) = (Context::new().unwrap(), ProtectionDomain::new());
        let directory = SharedQueueDirectory::default();
        let make = |number| SharedReceiveQueue::new(number, (&context, &domain), 1, 1, None);
        let first = directory.insert(make).unwrap().number();
        let second = directory.insert(make).unwrap().number();
        assert_ne!(first, second);
        assert_eq!(
            directory.find(first).map(|queue| queue.number()),
            Some(first)
        );
        directory.remove(first);
        assert!(directory.find(first).is_none());
        assert_ne!(directory.insert(make).unwrap().number(), first);
        assert!(directory.insert(|_| Err(Refusal::Invalid)).is_err());
        assert!(directory.find(0).is_none());
    }
}
