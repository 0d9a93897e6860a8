//! Posting by the raw verbs, without checks, for layers that track their requests themselves.

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
    /// Posts a list of send requests by `ibv_post_send`, without any check. A null pointer is an
    /// empty list. The call keeps no object of the requests alive. Intended for layers that track
    /// their requests themselves.
    ///
    /// After success the requests complete on [`Self::send_completions`], with the ids of the
    /// requests. This crate's queues never use ids below 2^24, nor ids of 2^63 and above.
    ///
    /// # Errors
    ///
    /// The error contains the error number and the first request that was not posted. The requests
    /// before that request were posted. The error allocates no memory.
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
    ///   below 2^24 or at least 2^63: such a queue or scope would mistake a completion with one of
    ///   its own ids for the completion of its own request.
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

    /// Posts a list of receive requests by `ibv_post_recv`, without any check. A null pointer is an
    /// empty list.
    ///
    /// # Errors
    ///
    /// The error contains the error number and the first request that was not posted. The requests
    /// before that request were posted.
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
    /// - The session must not be leaked. Until the session has ended, its thread must not begin
    ///   another session of the queue pair or post to the queue pair in another way. During
    ///   the session the driver holds a lock or, in a thread domain, relies on a single thread.
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
/// the session posts nothing (`ibv_wr_abort`).
///
/// Each method calls the function of `ibv_wr_post(3)` after which it is named. A request begins
/// with the method for its operation, and is completed by the setters that follow.
///
/// The session is neither `Send` nor `Sync`: the driver's lock belongs to this thread.
///
/// # Safety
///
/// For all methods of the session, the queue pair must have been created for the operation. A
/// request must be complete before the next request begins or the session ends. The memory must
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

/// Declares methods of [`RawSession`], each of which calls one function of `ibv_wr_post(3)`.
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
        /// Begins a send request.
        send => ibv_wr_send, "ibv_wr_send"();
        /// Begins a send request with immediate data. `immediate` must be in network byte order.
        send_with_immediate => ibv_wr_send_imm, "ibv_wr_send_imm"(immediate: u32);
        /// Begins a send request that invalidates the remote key `key` of the peer.
        send_with_invalidate => ibv_wr_send_inv, "ibv_wr_send_inv"(key: u32);
        /// Begins an RDMA write request to the peer's memory at `address`.
        write => ibv_wr_rdma_write, "ibv_wr_rdma_write"(rkey: u32, address: u64);
        /// Begins an RDMA write request with immediate data. `immediate` must be in network byte
        /// order.
        write_with_immediate => ibv_wr_rdma_write_imm, "ibv_wr_rdma_write_imm"(rkey: u32, address: u64, immediate: u32);
        /// Begins an RDMA read request from the peer's memory at `address`.
        read => ibv_wr_rdma_read, "ibv_wr_rdma_read"(rkey: u32, address: u64);
        /// Begins an atomic compare-and-swap request.
        compare_and_swap => ibv_wr_atomic_cmp_swp, "ibv_wr_atomic_cmp_swp"(rkey: u32, address: u64, expected: u64, desired: u64);
        /// Begins an atomic fetch-and-add request.
        fetch_and_add => ibv_wr_atomic_fetch_add, "ibv_wr_atomic_fetch_add"(rkey: u32, address: u64, add: u64);
        /// Begins and completes a request that invalidates a key of this process.
        invalidate => ibv_wr_local_inv, "ibv_wr_local_inv"(key: u32);
        /// Begins and completes a request that binds a memory window.
        bind_window => ibv_wr_bind_mw, "ibv_wr_bind_mw"(window: *mut sys::ibv_mw, rkey: u32, info: *const sys::ibv_mw_bind_info);
        /// Begins an atomic write request that writes the eight bytes at `value` to the peer's
        /// memory.
        atomic_write => ibv_wr_atomic_write, "ibv_wr_atomic_write"(rkey: u32, address: u64, value: *const std::ffi::c_void);
        /// Begins a segmented send request (TSO). `segment` is the maximum payload of a packet in
        /// bytes.
        segmented => ibv_wr_send_tso, "ibv_wr_send_tso"(headers: *mut std::ffi::c_void, len: u16, segment: u16);
        /// Sets the destination of the current request, which is a datagram.
        destination => ibv_wr_set_ud_addr, "ibv_wr_set_ud_addr"(handle: *mut sys::ibv_ah, queue_pair: u32, qkey: u32);
        /// Sets the number of the peer's shared receive queue to which the current request is
        /// directed (XRC).
        remote_shared_queue => ibv_wr_set_xrc_srqn, "ibv_wr_set_xrc_srqn"(number: u32);
        /// Sets the data of the current request to one scatter/gather element.
        element => ibv_wr_set_sge, "ibv_wr_set_sge"(lkey: u32, address: u64, length: u32);
    }

    /// Sets the scatter/gather elements of the current request.
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

    /// Sets the inline data of the current request. The call copies the data.
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

    /// Sets the inline data of the current request, as several slices that form one message. The
    /// call copies the data.
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

    /// Posts all requests of the session to the device by `ibv_wr_complete`.
    ///
    /// # Errors
    ///
    /// The error number of `ibv_wr_complete`. No request of the session was then posted.
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

// Checks at compile time that an `iovec` has the layout of an `ibv_data_buf`.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<libc::iovec>() == size_of::<sys::ibv_data_buf>());
    assert!(offset_of!(libc::iovec, iov_base) == offset_of!(sys::ibv_data_buf, addr));
    assert!(offset_of!(libc::iovec, iov_len) == offset_of!(sys::ibv_data_buf, length));
};
