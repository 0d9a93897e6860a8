//! A batch of send requests: the requests are filled in one by one and posted in one call.

use std::fmt;

use ibverbs_sys as sys;

use super::batch::posted_before;
use super::request::{
    describe_fast_path, describe_fast_path_datagram, describe_fast_path_inline, describe_inline,
    describe_send,
};
use super::ring::Unstaged;
use super::send_ring::SendRing;
use crate::error::{Error, Result};
use crate::memory::Gather;
use crate::queue_pair::{Description, InlineData, KeepAlive, SendFlags, SendRequest};

/// A batch of send requests under construction: the requests are added one by one, and then posted
/// in one call. The batch borrows its queue for `'a`. During `'a` the queue posts only through this
/// batch, and inline data stays valid.
pub(crate) struct SendStaging<'a, T: Send + 'static> {
    queue: &'a mut SendRing<T>,
    /// Index, in the batch storage, of the first request that was added and not posted.
    first: usize,
    /// Number of consecutive unsignaled requests since the last signaled request of the queue or
    /// the batch.
    run: u32,
}

impl<T: Send + 'static> fmt::Debug for SendStaging<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendStaging")
            .field("queue", &self.queue)
            .field("len", &self.len())
            .finish()
    }
}

impl<'a, T: Send + 'static> SendStaging<'a, T> {
    /// Begins an empty batch that will post to `queue`.
    #[inline]
    pub(crate) fn new(queue: &'a mut SendRing<T>) -> Self {
        queue.ring.begin_staging();
        queue.open_room();
        Self {
            run: queue.run(),
            queue,
            first: 0,
        }
    }

    /// Returns the number of requests that were added to the batch and not posted yet.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queue.ring.staged()
    }

    /// Adds a request to the batch. On failure returns the error and the memory of the request. The
    /// function is inlined, because most requests need only few checks.
    #[inline(always)]
    pub(crate) fn stage(&mut self, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        if !request.is_fast_path() {
            return self.stage_any(request);
        }
        let (memory, description) = request.into_described();
        self.stage_fast_path(memory, &description)
            .or_else(|memory| self.stage_any(SendRequest::from_described(memory, description)))
    }

    /// Adds a request to the batch after few, inlined checks. Returns the request's memory, and
    /// adds nothing, if the request needs more checks.
    #[inline(always)]
    fn stage_fast_path(&mut self, memory: T, description: &Description) -> Result<(), T>
    where
        T: Gather,
    {
        let queue = &mut *self.queue;
        let signaled = description.flags.contains(SendFlags::SIGNALED);
        let id = queue.ring.fast_path_staged_id();
        let (Some(id), true) = (id, signaled || queue.may_wait(self.run)) else {
            return Err(memory);
        };
        let limits = queue.limits();
        let (wr, room) = queue.room.place(self.first + queue.ring.staged());
        if !describe_fast_path(wr, room, &memory, description, limits, id) {
            return Err(memory);
        }
        self.run = if signaled { 0 } else { self.run + 1 };
        // SAFETY: the ring has returned an id of the fast path for the request.
        unsafe { queue.ring.stage_memory(memory) };
        Ok(())
    }

    #[inline(never)]
    fn stage_any(&mut self, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let queue = &mut *self.queue;
        if !queue.ring.has_room() {
            return Err((queue.full(), request.into_memory()));
        }
        if let Some(error) = request.keep().refused_in_batches() {
            return Err((error, request.into_memory()));
        }
        let request = queue.signal(request, self.run);
        let id = queue.ring.staged_id();
        let (limits, sends_datagrams) = (queue.limits(), queue.sends_datagrams());
        let (wr, room) = queue.room.place(self.first + queue.ring.staged());
        let is_described = match request.keep() {
            KeepAlive::Address(handle) if sends_datagrams => {
                let (memory, to) = (request.memory(), (&request.description(), handle));
                describe_fast_path_datagram(wr, room, memory, to, limits, id)
            }
            _ => false,
        };
        if !is_described
            && let Err(error) = describe_send(wr, room, &request, queue.ring.queue_pair(), id)
        {
            return Err((error, request.into_memory()));
        }
        self.run = if request.is_signaled() {
            0
        } else {
            self.run + 1
        };
        let (memory, keep) = request.into_parts();
        queue.ring.stage(Some(memory), keep);
        Ok(())
    }

    /// Adds a request with inline data to the batch. Posting the batch copies the data. On failure
    /// returns the error and the data.
    #[inline(always)]
    pub(crate) fn stage_inline<D: InlineData + 'a>(
        &mut self,
        request: SendRequest<D>,
    ) -> Result<(), (Error, D)> {
        if !request.is_fast_path() {
            return self.stage_any_inline(request);
        }
        let (data, description) = request.into_described();
        if self.stage_fast_path_inline(&data, &description) {
            return Ok(());
        }
        self.stage_any_inline(SendRequest::from_described(data, description))
    }

    /// Adds a request with inline data to the batch after few, inlined checks. Returns `false`, and
    /// adds nothing, if the request needs more checks.
    #[inline(always)]
    fn stage_fast_path_inline<D: InlineData + 'a>(
        &mut self,
        data: &D,
        description: &Description,
    ) -> bool {
        let queue = &mut *self.queue;
        let signaled = description.flags.contains(SendFlags::SIGNALED);
        let id = queue.ring.fast_path_staged_id();
        let (Some(id), true) = (id, signaled || queue.may_wait(self.run)) else {
            return false;
        };
        let limits = queue.limits();
        let (wr, room) = queue.room.place(self.first + queue.ring.staged());
        if !describe_fast_path_inline(wr, room, data, description, limits, id) {
            return false;
        }
        self.run = if signaled { 0 } else { self.run + 1 };
        queue.ring.stage_nothing();
        true
    }

    #[inline(never)]
    fn stage_any_inline<D: InlineData + 'a>(
        &mut self,
        request: SendRequest<D>,
    ) -> Result<(), (Error, D)> {
        let queue = &mut *self.queue;
        if !queue.ring.has_room() {
            return Err((queue.full(), request.into_memory()));
        }
        if let Some(error) = request.keep().refused_in_batches() {
            return Err((error, request.into_memory()));
        }
        let request = queue.signal(request, self.run);
        let id = queue.ring.staged_id();
        let (wr, room) = queue.room.place(self.first + queue.ring.staged());
        if let Err(error) = describe_inline(wr, room, &request, queue.ring.queue_pair(), id) {
            return Err((error, request.into_memory()));
        }
        self.run = if request.is_signaled() {
            0
        } else {
            self.run + 1
        };
        queue.ring.stage(None, request.into_parts().1);
        Ok(())
    }

    /// Posts the requests of the batch to the device in one call. Returns the number of posted
    /// requests, and the result of the call. After an error, the requests that were not posted stay
    /// in the batch.
    #[inline]
    pub(crate) fn post(&mut self) -> (usize, Result<()>) {
        let count = self.len();
        if count == 0 {
            return (0, Ok(()));
        }
        let queue = &mut *self.queue;
        // SAFETY: the staged requests were filled in at these places, each with its id. Memory and
        // objects are in their slots, where no code can access them; those of posted requests leave
        // the slots when a completion retires the requests, or when the queue pair is destroyed.
        // Inline data outlives `'a`, and so this call.
        let posted = unsafe {
            let list = queue.room.chain(self.first, count);
            queue.ring.queue_pair().post_sends(list)
        };
        match posted {
            Ok(()) => {
                queue.ring.launch_staged(count);
                queue.set_run(self.run);
                self.first = 0;
                (count, Ok(()))
            }
            Err((error, bad)) => (self.launch_before(bad, count), Err(error)),
        }
    }

    /// Records that the requests of the batch before `bad` are in flight, and returns their number.
    /// Called after a post in which the device has accepted these requests and refused `bad`. The
    /// request `bad` and all later requests stay in the batch. `count` is the number of requests
    /// that the batch had.
    #[cold]
    fn launch_before(&mut self, bad: *mut sys::ibv_send_wr, count: usize) -> usize {
        let queue = &mut *self.queue;
        let posted = posted_before(queue.room.index_of(bad), self.first, count);
        for index in self.first..self.first + posted {
            let place = queue.room.place(index).0.as_ptr();
            // SAFETY: the request at this place was filled in, including its flags.
            let flags = unsafe { (&raw const (*place).send_flags).read() };
            let signaled = sys::ibv_send_flags::IBV_SEND_SIGNALED.0 as std::ffi::c_uint;
            queue.count(flags & signaled != 0);
        }
        queue.ring.launch_staged(posted);
        self.first += posted;
        posted
    }

    /// Ends the batch. Returns an iterator over the memory of the requests that were not posted.
    pub(crate) fn end(&mut self) -> Unstaged<'_, T> {
        self.first = 0;
        self.run = self.queue.run();
        self.queue.ring.end_staging()
    }
}

impl<T: Send + 'static> Drop for SendStaging<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.queue.room.close();
    }
}
