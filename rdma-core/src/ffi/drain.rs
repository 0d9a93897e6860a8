//! Waiting until a queue pair in the error state has flushed all its requests.

use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_sys as sys;

use super::address_handle::AddressHandleOwner;
use super::completion_queue::CompletionQueueHandle;
use super::completion_record::CompletionRecord;
use super::context::positive;
use super::inbox::Inbox;
use super::queue_pair::QueuePairHandle;
use super::stash::InboxRegistration;
use crate::address::AddressVector;
use crate::error::{Error, Result};
use crate::queue_pair::{Modification, QueuePairState, Transport, modify};

/// Time to wait for the completion of a marker (an empty request) before another marker is posted.
/// A completed marker shows that the queue is flushed. The wait is short, because another thread
/// that polls the queue has possibly taken the completion.
const MARKER_WAIT: Duration = Duration::from_millis(10);

/// Maximum time to wait for the remaining markers (empty requests) after one marker has completed.
/// The time is counted from the post of the last marker. The time is limited because another thread
/// that polls the queue has possibly taken the remaining completions.
const REMAINING_WAIT: Duration = Duration::from_millis(100);

/// Maximum number of consecutive polls of a completion queue before the thread waits. Each poll
/// takes up to 16 completions from the device.
const BATCHES: usize = 8;

/// A work queue (send queue or receive queue) to which markers are posted in order to wait until
/// the queue is flushed. A marker is a request without memory. A work queue completes its requests
/// in order, so a completed marker proves that all earlier requests have completed.
struct Markers<'a> {
    queue: &'a CompletionQueueHandle,
    /// The work request id for the next marker.
    id: u64,
    count: u64,
    posted: Option<Instant>,
    /// The registration of the inbox in which the completions of the markers arrive.
    awaited: InboxRegistration<'a, CompletionRecord>,
}

impl<'a> Markers<'a> {
    fn new(queue: &'a CompletionQueueHandle) -> Self {
        let (inbox, id) = Inbox::new();
        Self {
            queue,
            id,
            count: 0,
            posted: None,
            awaited: queue.stash().register(&Arc::new(inbox)),
        }
    }

    /// Returns the number of markers (requests without memory) whose completions have arrived.
    fn seen(&self) -> u64 {
        self.awaited.inbox().len() as u64
    }

    /// Returns whether at least one marker (a request without memory) has completed, which proves
    /// that the work queue is flushed.
    fn is_flushed(&self) -> bool {
        self.seen() > 0
    }

    /// Polls the completion queue, and returns whether the wait for this work queue is over. At
    /// least one marker (an empty request) must have completed, which shows that the work queue is
    /// flushed. All other markers must also have completed, or more than [`REMAINING_WAIT`] must
    /// have passed since the last marker was posted.
    fn is_over(&self) -> Result<bool> {
        let is_over = || {
            let waited = self.posted.map(|posted| posted.elapsed());
            let is_late = waited.is_some_and(|waited| waited > REMAINING_WAIT);
            let seen = self.seen();
            seen > 0 && (seen >= self.count || is_late)
        };
        for _ in 0..BATCHES {
            if is_over() {
                return Ok(true);
            }
            match self.queue.poll_for(&mut [], |_| false) {
                Ok(_) => {}
                // Another thread is iterating over the entries of the extended queue, so that
                // thread finds the completions first.
                Err(Error::InUse { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(is_over())
    }

    fn is_due(&self) -> bool {
        !self.is_flushed() && self.posted.is_none_or(|at| at.elapsed() > MARKER_WAIT)
    }

    fn post(&mut self, post: impl FnOnce(u64) -> i32) -> Result<bool, i32> {
        let returned = post(self.id);
        if returned == 0 {
            self.id += 1;
            self.count += 1;
            self.posted = Some(Instant::now());
            return Ok(true);
        }
        match positive(returned).0 {
            // The work queue is full until the flushed requests have been polled.
            libc::ENOMEM => Ok(false),
            errno => Err(errno),
        }
    }
}

impl QueuePairHandle {
    /// Waits until all requests of the queue pair have completed. The queue pair must be in the
    /// error state. This function polls the completion queues, and stores the polled completions
    /// for later polls. Between polls, this function calls `wait`, which lets time pass. If `wait`
    /// fails before both work queues are flushed, returns the error of `wait`. `own` must be an
    /// address vector of the queue pair itself: a datagram queue pair posts empty datagrams to
    /// itself to detect the end of the flush.
    pub(crate) fn await_flush(
        &self,
        own: &AddressVector,
        mut wait: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.refuse_within_poll()?;
        let destination = match self.kind() {
            Transport::Datagram => {
                let domain = self.domain().clone();
                Some(AddressHandleOwner::create(domain, own)?)
            }
            _ => None,
        };
        let [sent, received] = self.completions();
        // A queue without entries is always full, and has nothing to flush.
        let sizes = self.granted();
        let sends = self.kind().has_send_queue() && sizes.send_requests > 0;
        let receives = self.kind().has_receive_queue()
            && self.shared_receive_queue().is_none()
            && sizes.receive_requests > 0;
        let mut sends = sends.then(|| Markers::new(sent));
        let mut receives = receives.then(|| Markers::new(received));
        let outcome = loop {
            // Polls the completion queue first, so that it has room for the completions of the
            // markers.
            if let Err(error) = remove_flushed([&mut sends, &mut receives]) {
                break Err(error);
            }
            if sends.is_none() && receives.is_none() {
                break Ok(());
            }
            if let Err(error) = self.mark(destination.as_ref(), &mut sends, &mut receives) {
                break Err(error);
            }
            if let Err(error) = wait() {
                let is_flushed =
                    |side: &Option<Markers<'_>>| side.as_ref().is_none_or(Markers::is_flushed);
                break if is_flushed(&sends) && is_flushed(&receives) {
                    Ok(())
                } else {
                    Err(error)
                };
            }
        };
        if let Some(handle) = destination {
            // Markers that were posted after the first completed marker may still be outstanding
            // and use the address handle.
            self.abandon(Box::new(handle));
        }
        outcome
    }

    /// Posts a marker (an empty request) to each work queue that is not known to be flushed. The
    /// completion of the marker will show that all earlier requests have completed. Does nothing
    /// for a queue whose last marker was posted less than [`MARKER_WAIT`] ago.
    fn mark(
        &self,
        destination: Option<&AddressHandleOwner>,
        sends: &mut Option<Markers<'_>>,
        receives: &mut Option<Markers<'_>>,
    ) -> Result<()> {
        if let Some(side) = sends.as_mut().filter(|side| side.is_due()) {
            side.post(|id| self.mark_sends(id, destination))
                .map_err(|errno| self.refused("ibv_post_send", errno))?;
        }
        if let Some(side) = receives.as_mut().filter(|side| side.is_due()) {
            let posted = side
                .post(|id| self.mark_receives(id))
                .map_err(|errno| self.refused("ibv_post_recv", errno))?;
            if posted {
                // The Soft-RoCE driver of Linux flushes only receives that were posted before a
                // change to ERR, so the change is repeated.
                modify(self, &Modification::to(QueuePairState::Error))?;
            }
        }
        Ok(())
    }

    fn refused(&self, verb: &'static str, errno: i32) -> Error {
        let errno = positive(errno);
        Error::verb(verb, self.describe(), errno)
    }

    fn mark_sends(&self, id: u64, destination: Option<&AddressHandleOwner>) -> i32 {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut wr: sys::ibv_send_wr = unsafe { mem::zeroed() };
        wr.wr_id = id;
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
        wr.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0 as _;
        if let Some(handle) = destination {
            wr.wr.ud.ah = handle.as_raw();
            wr.wr.ud.remote_qpn = self.number();
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is valid. The request has no memory, and its address handle stays
        // valid until the request has completed, or the queue pair is destroyed.
        unsafe { sys::ibv_post_send(self.as_raw(), &mut wr, &mut bad) }
    }

    fn mark_receives(&self, id: u64) -> i32 {
        let mut wr = sys::ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is valid, and the request has no memory.
        unsafe { sys::ibv_post_recv(self.as_raw(), &mut wr, &mut bad) }
    }
}

/// Polls the completion queues of a queue pair's send queue and receive queue. `sides` contains the
/// state of both work queues. Sets an entry of `sides` to `None` if the wait for that queue is
/// over, as [`Markers::is_over`] defines it. Returns the error if polling fails.
fn remove_flushed(sides: [&mut Option<Markers<'_>>; 2]) -> Result<()> {
    for side in sides {
        if let Some(marked) = side
            && marked.is_over()?
        {
            *side = None;
        }
    }
    Ok(())
}
