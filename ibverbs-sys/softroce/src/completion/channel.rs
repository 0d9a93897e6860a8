use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::context::{Element, EventQueue, Shared, Usage};

/// A completion channel: `ibv_comp_channel`. It names the completion queues that have something new.
#[derive(Debug)]
pub struct CompletionChannel {
    events: EventQueue<Arc<Element>>,
    usage: Usage,
}

impl CompletionChannel {
    /// A channel without events.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            events: EventQueue::new()?,
            usage: Usage::default(),
        }))
    }

    /// The completion queue has something new. Each arming gives one event, whether or not the last one was
    /// fetched (`ibv_req_notify_cq(3)`).
    pub fn notify(&self, completion_queue: &Arc<Element>) {
        self.events
            .push(Some(completion_queue), Arc::clone(completion_queue), |_| {
                false
            });
    }

    /// Fetches the next event; waits for one unless the descriptor is non-blocking.
    pub fn next_event(&self) -> io::Result<Arc<Element>> {
        self.events.take(|element| Some(element))
    }

    /// A completion queue is being destroyed: takes back its events, and waits for the
    /// acknowledgements of those that were fetched.
    pub fn withdraw(&self, completion_queue: &Arc<Element>) {
        self.events
            .withdraw(completion_queue, |element| Some(element));
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Shared for CompletionChannel {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}
