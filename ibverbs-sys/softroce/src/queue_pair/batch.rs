use parking_lot::{Condvar, Mutex};

use super::draft::{Address, Draft, Rules};
use super::error::PostError;
use crate::proto::{Inline, Segment, SendOperation, SendRequest};

/// A batch: the send requests that a program builds between `ibv_wr_start` and `ibv_wr_complete`.
/// Only one thread at a time builds a batch (`ibv_wr_post(3)`).
///
/// The functions that build the requests return no errors. The first error is stored.
/// `ibv_wr_complete` then returns this error and posts nothing.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    content: Mutex<BatchState>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct BatchState {
    /// Set from `ibv_wr_start` until `ibv_wr_complete` or `ibv_wr_abort`.
    started: bool,
    requests: Vec<SendRequest>,
    /// The last request of the batch, which is incomplete: its data and address may still be set.
    draft: Option<Draft>,
    error: Option<PostError>,
}

impl Batch {
    /// Begins a batch (`ibv_wr_start`). Waits while another thread is building a batch.
    pub(crate) fn start(&self) {
        let mut content = self.content.lock();
        while content.started {
            self.free.wait(&mut content);
        }
        content.started = true;
    }

    /// Begins a request of the batch, with the work request ID `id`, the flags `flags` and the
    /// operation `operation`. The previous request of the batch is then complete, and is checked
    /// against `rules`, the limits of the queue pair. If that request violates the limits, the
    /// batch fails.
    pub(crate) fn begin(&self, rules: &Rules, id: u64, flags: u32, operation: SendOperation) {
        let mut content = self.content.lock();
        content.close(rules);
        // The function that sets the data determines if data is inline. This flag does not.
        let flags = flags & !super::SendFlags::INLINE.bits();
        content.draft = Some(Draft::new(id, flags, operation));
    }

    /// Makes the batch fail with [`PostError::Unsupported`], because the program has begun a
    /// request that the device does not support. An earlier error of the batch has priority. This
    /// function therefore first checks the previous request against `rules`, the limits of the
    /// queue pair.
    pub(crate) fn set_unsupported(&self, rules: &Rules) {
        let mut content = self.content.lock();
        content.close(rules);
        content.error = content.error.or(Some(PostError::Unsupported));
    }

    /// Records the error `error`, so that the batch fails. Does nothing if an earlier error is
    /// recorded.
    pub(crate) fn record_error(&self, error: PostError) {
        self.content.lock().error.get_or_insert(error);
    }

    /// Sets the data of the latest request of the batch to the bytes of `segments`, which are
    /// ranges of registered memory. Replaces data that was set before.
    pub(crate) fn gather(&self, segments: impl Iterator<Item = Segment>) {
        self.set(|draft| draft.gather(segments));
    }

    /// Sets the data of the latest request of the batch to the inline bytes `data`. Replaces data
    /// that was set before.
    pub(crate) fn inline(&self, data: Inline) {
        self.set(|draft| draft.inline(data));
    }

    /// Sets the destination of the latest request of the batch to `address`. The request must be a
    /// datagram.
    pub(crate) fn address(&self, address: Address) {
        self.set(|draft| draft.address(address));
    }

    /// Sets the shared receive queue of the peer, with the number `number`, that the latest request
    /// of the batch uses. The queue pair must be an XRC queue pair (extended reliable connection).
    pub(crate) fn xrc_srq(&self, number: u32) {
        self.set(|draft| draft.xrc_srq(number));
    }

    /// Ends the batch (`ibv_wr_complete`), so that another thread can begin a batch. Passes the
    /// requests of the batch to `post`, and returns the result. If a request was invalid, posts
    /// nothing and returns the first error. Also fails if no batch was begun. `rules` are the
    /// limits of the queue pair, against which the last request of the batch is checked.
    pub(crate) fn complete(
        &self,
        rules: &Rules,
        post: impl FnOnce(&mut Vec<SendRequest>) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut content = self.content.lock();
        content.close(rules);
        let result = match content.error {
            None if !content.started => Err(PostError::Order),
            None => post(&mut content.requests),
            Some(error) => Err(error),
        };
        content.end();
        self.free.notify_one();
        result
    }

    /// Ends the batch without posting its requests (`ibv_wr_abort`), so that another thread may
    /// begin a batch.
    pub(crate) fn abort(&self) {
        self.content.lock().end();
        self.free.notify_one();
    }

    fn set(&self, set: impl FnOnce(&mut Draft)) {
        let mut content = self.content.lock();
        match &mut content.draft {
            Some(draft) => set(draft),
            // No request was begun before this setter. If the device refused the request, its error
            // is already stored.
            None => content.error = content.error.or(Some(PostError::Order)),
        }
    }
}

impl BatchState {
    /// Completes the last request of the batch, if there is one. Checks the request against
    /// `rules`, the limits of the queue pair. Adds a valid request to the list of requests to post.
    /// An invalid request makes the batch fail.
    fn close(&mut self, rules: &Rules) {
        let Some(draft) = self.draft.take() else {
            return;
        };
        match draft.finish(rules) {
            Ok(request) => self.requests.push(request),
            Err(error) => self.error = self.error.or(Some(error)),
        }
    }

    fn end(&mut self) {
        self.started = false;
        self.requests.clear();
        self.draft = None;
        self.error = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{Batch, PostError, SendOperation};
    use crate::proto::{Inline, Payload, Segment, SendRequest, Service};
    use crate::queue_pair::draft::tests::{address, rules};

    const SEND: SendOperation = SendOperation::Send {
        immediate: None,
        invalidate: None,
    };

    fn segment() -> Segment {
        Segment {
            address: 1,
            length: 2,
            key: 3,
        }
    }

    fn completed(batch: &Batch, service: Service) -> Result<Vec<SendRequest>, PostError> {
        let mut posted = Vec::new();
        batch.complete(&rules(service), |requests| {
            posted.append(requests);
            Ok(())
        })?;
        Ok(posted)
    }

    #[test]
    fn requests_are_posted_in_order_with_their_attributes() {
        let rules = rules(Service::ReliableConnection);
        let batch = Batch::default();
        batch.start();
        batch.begin(&rules, 1, 0, SEND);
        batch.gather([segment()].into_iter());
        batch.begin(&rules, 2, 0b1010, SEND);
        batch.inline(Inline::from_slice(b"data"));
        batch.begin(&rules, 3, 0, SEND);
        let posted = completed(&batch, Service::ReliableConnection).unwrap();
        let ids: Vec<_> = posted
            .iter()
            .map(|r| (r.id, r.length, r.signaled))
            .collect();
        assert_eq!(ids, [(1, 2, false), (2, 4, true), (3, 0, false)]);
        assert_eq!(
            posted[1].payload,
            Payload::Inline(Inline::from_slice(b"data"))
        );
    }

    #[test]
    fn an_error_fails_the_whole_batch_and_not_the_next_batch() {
        let rules = rules(Service::UnreliableDatagram);
        let batch = Batch::default();
        batch.start();
        batch.begin(&rules, 1, 0, SEND); // without an address
        batch.begin(&rules, 2, 0, SEND);
        batch.address(address());
        batch.record_error(PostError::Operation);
        let first = completed(&batch, Service::UnreliableDatagram);
        assert_eq!(first, Err(PostError::Address));

        batch.start();
        batch.begin(&rules, 3, 0, SEND);
        batch.address(address());
        let posted = completed(&batch, Service::UnreliableDatagram).unwrap();
        assert_eq!(posted.len(), 1);
        assert_eq!(posted[0].id, 3);
    }

    #[test]
    fn an_aborted_batch_posts_no_request() {
        let rules = rules(Service::ReliableConnection);
        let batch = Batch::default();
        batch.start();
        batch.begin(&rules, 1, 0, SEND);
        batch.record_error(PostError::Inline);
        batch.abort();
        batch.start();
        assert_eq!(completed(&batch, Service::ReliableConnection), Ok(vec![]));
    }

    #[test]
    fn calls_out_of_order_are_errors() {
        let batch = Batch::default();
        batch.start();
        batch.xrc_srq(1);
        let service = Service::ReliableConnection;
        assert_eq!(completed(&batch, service), Err(PostError::Order));
        assert_eq!(completed(&batch, service), Err(PostError::Order));
    }

    #[test]
    fn only_one_thread_builds_a_batch_at_a_time() {
        let batch = Arc::new(Batch::default());
        let inside = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (batch, inside) = (Arc::clone(&batch), Arc::clone(&inside));
                std::thread::spawn(move || {
                    let rules = rules(Service::ReliableConnection);
                    for id in 0..200 {
                        batch.start();
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        batch.begin(&rules, id, 0, SEND);
                        std::thread::yield_now();
                        inside.store(false, Ordering::SeqCst);
                        let posted = completed(&batch, Service::ReliableConnection).unwrap();
                        assert_eq!(posted.len(), 1);
                        assert_eq!(posted[0].id, id);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
