use std::collections::VecDeque;

use crate::proto::ReceiveRequest;

/// Error: a receive request was not posted, because the receive queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receive queue is full")]
pub struct Full;

/// The receive queue of one queue pair: posted receive requests, in the order in which messages
/// consume them.
#[derive(Debug)]
pub struct ReceiveQueue {
    capacity: u32,
    max_segments: u32,
    requests: VecDeque<ReceiveRequest>,
}

impl ReceiveQueue {
    /// Creates a receive queue for at most `capacity` receive requests, each with at most
    /// `max_segments` scatter/gather elements.
    pub fn new(capacity: u32, max_segments: u32) -> Self {
        Self {
            capacity,
            max_segments,
            requests: VecDeque::new(),
        }
    }

    /// Appends the receive request `request` to the queue. Fails if the queue is full.
    #[inline]
    pub fn post(&mut self, request: ReceiveRequest) -> Result<(), Full> {
        if self.requests.len() >= self.capacity as usize {
            return Err(Full);
        }
        self.requests.push_back(request);
        Ok(())
    }

    /// Removes the oldest receive request, and returns it. Returns `None` if no request is posted.
    #[inline]
    pub fn take(&mut self) -> Option<ReceiveRequest> {
        self.requests.pop_front()
    }

    /// Removes all receive requests without completing them, as the transition of a queue pair to
    /// RESET requires.
    pub fn clear(&mut self) {
        self.requests.clear();
    }

    /// Returns the maximum number of receive requests that the queue can contain.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the maximum number of scatter/gather elements that a receive request may have.
    pub fn max_segments(&self) -> u32 {
        self.max_segments
    }

    /// Returns the number of receive requests that were posted and not taken yet.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether the queue contains no receive request.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::GatherList;

    fn request(id: u64) -> ReceiveRequest {
        ReceiveRequest {
            id,
            segments: GatherList::new(),
            length: 0,
        }
    }

    #[test]
    fn receives_are_taken_in_order_of_posting_and_limited() {
        let mut queue = ReceiveQueue::new(2, 1);
        queue.post(request(1)).unwrap();
        queue.post(request(2)).unwrap();
        assert_eq!(queue.post(request(3)), Err(Full));
        assert_eq!(queue.take().map(|request| request.id), Some(1));
        queue.post(request(3)).unwrap();
        assert_eq!(queue.len(), 2);
        queue.clear();
        assert!(queue.take().is_none());
    }
}
