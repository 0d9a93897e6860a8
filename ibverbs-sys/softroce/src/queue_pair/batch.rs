use parking_lot::{Condvar, Mutex};

use super::draft::{Address, Draft, Rules};
use super::error::PostError;
use crate::proto::{Inline, Segment, SendOperation, SendRequest};

/// The requests between `ibv_wr_start` and `ibv_wr_complete`: of one thread at a time, as
/// `ibv_wr_post(3)` promises.
///
/// The calls between the two give no answer. What goes wrong is kept, and is what completing
/// answers: then none of the batch is posted.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    content: Mutex<Content>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct Content {
    /// A thread is between start and complete.
    started: bool,
    requests: Vec<SendRequest>,
    /// The request that setters still complete.
    draft: Option<Draft>,
    error: Option<PostError>,
}

impl Batch {
    /// Begins a batch, when no other thread is at one.
    pub(crate) fn start(&self) {
        let mut content = self.content.lock();
        while content.started {
            self.free.wait(&mut content);
        }
        content.started = true;
    }

    /// Begins a request.
    pub(crate) fn begin(&self, rules: &Rules, id: u64, flags: u32, operation: SendOperation) {
        let mut content = self.content.lock();
        content.close(rules);
        // How the data is given says whether it is inline, not the flag.
        let flags = flags & !super::SendFlags::INLINE.bits();
        content.draft = Some(Draft::new(id, flags, operation));
    }

    /// Begins a request of a kind that the device does not have: the whole batch fails.
    pub(crate) fn refuse(&self, rules: &Rules) {
        let mut content = self.content.lock();
        content.close(rules);
        content.error = content.error.or(Some(PostError::Unsupported));
    }

    /// Makes the whole batch fail.
    pub(crate) fn poison(&self, error: PostError) {
        self.content.lock().error.get_or_insert(error);
    }

    /// The request's data is in memory regions.
    pub(crate) fn gather(&self, segments: impl Iterator<Item = Segment>) {
        self.set(|draft| draft.gather(segments));
    }

    /// The request's data is this.
    pub(crate) fn inline(&self, data: Inline) {
        self.set(|draft| draft.inline(data));
    }

    /// The request goes there.
    pub(crate) fn address(&self, address: Address) {
        self.set(|draft| draft.address(address));
    }

    /// The request is for that queue.
    pub(crate) fn xrc_srq(&self, number: u32) {
        self.set(|draft| draft.xrc_srq(number));
    }

    /// Ends the batch, posts it with `post`, and lets the next thread in.
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

    /// Ends the batch without posting any of it, and lets the next thread in.
    pub(crate) fn abort(&self) {
        self.content.lock().end();
        self.free.notify_one();
    }

    fn set(&self, set: impl FnOnce(&mut Draft)) {
        let mut content = self.content.lock();
        match &mut content.draft {
            Some(draft) => set(draft),
            // A setter without a request to set. That of one that was refused has its error already.
            None => content.error = content.error.or(Some(PostError::Order)),
        }
    }
}

impl Content {
    /// Makes a request of the draft.
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
    fn requests_come_in_order_with_what_was_set() {
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
    fn one_error_fails_all_and_the_next_batch_is_clean() {
        let rules = rules(Service::UnreliableDatagram);
        let batch = Batch::default();
        batch.start();
        batch.begin(&rules, 1, 0, SEND); // without an address
        batch.begin(&rules, 2, 0, SEND);
        batch.address(address());
        batch.poison(PostError::Operation);
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
    fn an_aborted_batch_leaves_nothing() {
        let rules = rules(Service::ReliableConnection);
        let batch = Batch::default();
        batch.start();
        batch.begin(&rules, 1, 0, SEND);
        batch.poison(PostError::Inline);
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
    fn one_thread_at_a_time() {
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
