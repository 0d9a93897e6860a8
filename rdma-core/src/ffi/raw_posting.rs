//! Posting without checks and bookkeeping, by the raw verbs, for layers that do their own.

use std::fmt;
use std::io::IoSlice;
use std::marker::PhantomData;
use std::ptr;

use ibverbs_sys as sys;

use super::context::positive;
use super::raw_request::RawPostError;
use crate::error::Errno;
use crate::queue_pair::QueuePair;

impl QueuePair {
    /// Posts a list of send requests; a null pointer is an empty list. Calls the verb without any
    /// check and keeps no object alive, for layers that do their own bookkeeping.
    ///
    /// After success the requests complete on [`Self::send_completions`], with the ids of the
    /// requests. This crate's queues never use ids below 2^24, nor ids of 2^63 and above.
    ///
    /// # Errors
    ///
    /// The error number, and the first request that was not posted; the requests before it were
    /// posted. The error allocates no memory.
    ///
    /// # Safety
    ///
    /// - `list` must be null or the first of a valid list, whose last request has no next one.
    ///   Elements, address handles, windows and other objects that the opcodes and the queue pair's
    ///   kind require must be present and valid.
    /// - Until a request has completed, or the queue pair is destroyed or in RESET, its memory must
    ///   stay valid, no references may exist that conflict with the device's accesses, and its
    ///   address handle must stay valid. The data of an inline request must be valid only during
    ///   this call.
    /// - If queues or scopes of this crate complete on the same completion queues, the ids must be
    ///   below 2^24 or at least 2^63: a completion with the id of one of their requests is taken
    ///   for theirs.
    /// - If the queue pair is in a thread domain, no other thread may post at the same time.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub unsafe fn post_send_raw(
        &self,
        list: *mut sys::ibv_send_wr,
    ) -> Result<(), RawPostError<sys::ibv_send_wr>> {
        if list.is_null() {
            return Ok(());
        }
        let mut refused = list;
        // SAFETY: the queue pair is valid; the caller guarantees the requirements on the requests.
        let errno = unsafe { sys::ibv_post_send(self.as_raw(), list, &mut refused) };
        if errno == 0 {
            return Ok(());
        }
        Err(RawPostError {
            verb: "ibv_post_send",
            errno: positive(errno),
            refused,
        })
    }

    /// Posts a list of receive requests, without any check; a null pointer is an empty list.
    ///
    /// # Errors
    ///
    /// The error number, and the first request that was not posted; the requests before it were
    /// posted.
    ///
    /// # Safety
    ///
    /// The list must meet the requirements of [`Self::post_send_raw`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub unsafe fn post_receive_raw(
        &self,
        list: *mut sys::ibv_recv_wr,
    ) -> Result<(), RawPostError<sys::ibv_recv_wr>> {
        if list.is_null() {
            return Ok(());
        }
        let mut refused = list;
        // SAFETY: the queue pair is valid; the caller guarantees the requirements on the requests.
        let errno = unsafe { sys::ibv_post_recv(self.as_raw(), list, &mut refused) };
        if errno == 0 {
            return Ok(());
        }
        Err(RawPostError {
            verb: "ibv_post_recv",
            errno: positive(errno),
            refused,
        })
    }

    /// Begins posting by the functions `ibv_wr_*`. Returns `None` if the queue pair was not
    /// [created for them](crate::QueuePairBuilder::extended_posting).
    ///
    /// # Safety
    ///
    /// - The session must not be leaked. Until it has ended, its thread must not begin another
    ///   session of the queue pair or post to it in another way: the driver holds a lock meanwhile,
    ///   or, in a thread domain, relies on a single thread.
    /// - The posted requests must meet the requirements of [`Self::post_send_raw`].
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub unsafe fn start_raw(&self) -> Option<RawSession<'_>> {
        let raw = self.handle().as_extended()?;
        // SAFETY: the queue pair is valid and was created for these functions; the caller
        // guarantees that this thread has not started it already.
        unsafe { sys::ibv_wr_start(raw) };
        Some(RawSession {
            raw,
            queue_pair: PhantomData,
        })
    }
}

/// A session between `ibv_wr_start` and `ibv_wr_complete`, from [`QueuePair::start_raw`]. Dropping
/// it posts nothing (`ibv_wr_abort`).
///
/// Each method calls the function of `ibv_wr_post(3)` after which it is named. A request begins
/// with the method for its operation, and is completed by the setters that follow.
///
/// The session is neither `Send` nor `Sync`: the driver's lock belongs to this thread.
///
/// # Safety
///
/// For all methods of the session: the queue pair must have been created for the operation; a
/// request must be complete before the next one begins or the session ends; and the memory must
/// meet the requirements of [`QueuePair::post_send_raw`].
#[doc(alias = "ibv_qp_ex")]
#[must_use = "a session that is not completed posts nothing"]
pub struct RawSession<'a> {
    raw: *mut sys::ibv_qp_ex,
    queue_pair: PhantomData<&'a QueuePair>,
}

impl fmt::Debug for RawSession<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawSession").finish_non_exhaustive()
    }
}

/// Declares a method that calls the verb of the same purpose with the session's queue pair.
macro_rules! forward {
    ($($(#[$doc:meta])* $name:ident => $verb:ident, $alias:literal($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// The caller must meet the requirements listed at [`RawSession`].
        #[doc(alias = $alias)]
        #[inline]
        pub unsafe fn $name(&mut self, $($argument: $type),*) {
            // SAFETY: the session is started; the caller guarantees a valid request.
            unsafe { sys::$verb(self.raw, $($argument),*) };
        }
    )*};
}

impl RawSession<'_> {
    /// Sets the id and the flags (`ibv_send_flags`) of the requests that begin after this call.
    #[inline]
    pub fn set(&mut self, id: u64, flags: sys::ibv_send_flags) {
        // SAFETY: between start and complete the session owns these fields.
        unsafe {
            (*self.raw).wr_id = id;
            (*self.raw).wr_flags = flags.0 as std::ffi::c_uint;
        }
    }

    forward! {
        /// Begins a send.
        send => ibv_wr_send, "ibv_wr_send"();
        /// Begins a send with immediate data, in network byte order.
        send_with_immediate => ibv_wr_send_imm, "ibv_wr_send_imm"(immediate: u32);
        /// Begins a send that invalidates a remote key of the peer.
        send_with_invalidate => ibv_wr_send_inv, "ibv_wr_send_inv"(key: u32);
        /// Begins an RDMA write.
        write => ibv_wr_rdma_write, "ibv_wr_rdma_write"(rkey: u32, address: u64);
        /// Begins an RDMA write with immediate data, in network byte order.
        write_with_immediate => ibv_wr_rdma_write_imm, "ibv_wr_rdma_write_imm"(rkey: u32, address: u64, immediate: u32);
        /// Begins an RDMA read.
        read => ibv_wr_rdma_read, "ibv_wr_rdma_read"(rkey: u32, address: u64);
        /// Begins a compare-and-swap.
        compare_and_swap => ibv_wr_atomic_cmp_swp, "ibv_wr_atomic_cmp_swp"(rkey: u32, address: u64, expected: u64, desired: u64);
        /// Begins a fetch-and-add.
        fetch_and_add => ibv_wr_atomic_fetch_add, "ibv_wr_atomic_fetch_add"(rkey: u32, address: u64, add: u64);
        /// Begins and completes a local invalidation of a key of this end.
        invalidate => ibv_wr_local_inv, "ibv_wr_local_inv"(key: u32);
        /// Begins and completes a bind of a memory window.
        bind_window => ibv_wr_bind_mw, "ibv_wr_bind_mw"(window: *mut sys::ibv_mw, rkey: u32, info: *const sys::ibv_mw_bind_info);
        /// Begins an atomic write of the eight bytes at `value`.
        atomic_write => ibv_wr_atomic_write, "ibv_wr_atomic_write"(rkey: u32, address: u64, value: *const std::ffi::c_void);
        /// Begins a segmented send.
        segmented => ibv_wr_send_tso, "ibv_wr_send_tso"(headers: *mut std::ffi::c_void, len: u16, segment: u16);
        /// Sets the destination of the datagram.
        destination => ibv_wr_set_ud_addr, "ibv_wr_set_ud_addr"(handle: *mut sys::ibv_ah, queue_pair: u32, qkey: u32);
        /// Sets the number of the remote shared receive queue for which the request is.
        remote_shared_queue => ibv_wr_set_xrc_srqn, "ibv_wr_set_xrc_srqn"(number: u32);
        /// Sets the only scatter/gather element of the request.
        element => ibv_wr_set_sge, "ibv_wr_set_sge"(lkey: u32, address: u64, length: u32);
    }

    /// Sets the scatter/gather elements of the request.
    ///
    /// # Safety
    ///
    /// The caller must meet the requirements listed at [`RawSession`].
    #[doc(alias = "ibv_wr_set_sge_list")]
    #[inline]
    pub unsafe fn elements(&mut self, elements: &[sys::ibv_sge]) {
        // SAFETY: the session is started, the list is valid; the caller guarantees valid memory.
        unsafe { sys::ibv_wr_set_sge_list(self.raw, elements.len(), elements.as_ptr()) };
    }

    /// Sets the request's inline data, which is copied by this call.
    ///
    /// # Safety
    ///
    /// The caller must meet the requirements listed at [`RawSession`].
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[inline]
    pub unsafe fn inline_data(&mut self, data: &[u8]) {
        let start = ptr::from_ref(data).cast_mut().cast();
        // SAFETY: the session is started, the data is valid; the caller has begun a request.
        unsafe { sys::ibv_wr_set_inline_data(self.raw, start, data.len()) };
    }

    /// Sets the request's inline data, as several pieces that are copied by this call.
    ///
    /// # Safety
    ///
    /// The caller must meet the requirements listed at [`RawSession`].
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    #[inline]
    pub unsafe fn inline_data_list(&mut self, pieces: &[IoSlice<'_>]) {
        // SAFETY: an `IoSlice` is an `iovec`, a pointer and a length as in an `ibv_data_buf`. The
        // session is started, the data is valid; the caller has begun a request.
        unsafe {
            sys::ibv_wr_set_inline_data_list(self.raw, pieces.len(), pieces.as_ptr().cast());
        }
    }

    /// Posts the requests of the session.
    ///
    /// # Errors
    ///
    /// The error number of `ibv_wr_complete`; no request of the session was posted.
    ///
    /// # Safety
    ///
    /// The caller must meet the requirements listed at [`RawSession`].
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub unsafe fn complete(self) -> Result<(), Errno> {
        let raw = self.raw;
        std::mem::forget(self);
        // SAFETY: the session is started, and ends here; the caller guarantees valid requests.
        match unsafe { sys::ibv_wr_complete(raw) } {
            0 => Ok(()),
            errno => Err(positive(errno)),
        }
    }
}

impl Drop for RawSession<'_> {
    fn drop(&mut self) {
        // SAFETY: the session is started, and ends here.
        unsafe { sys::ibv_wr_abort(self.raw) };
    }
}

// An `iovec` has the layout of an `ibv_data_buf`.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<libc::iovec>() == size_of::<sys::ibv_data_buf>());
    assert!(offset_of!(libc::iovec, iov_base) == offset_of!(sys::ibv_data_buf, addr));
    assert!(offset_of!(libc::iovec, iov_len) == offset_of!(sys::ibv_data_buf, length));
};
