//! Builders for raw work requests: C structs that have no checks and own no memory.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::Deref;
use std::ptr;

use ibverbs_sys as sys;
use ibverbs_sys::ibv_send_flags as flags;
use ibverbs_sys::ibv_wr_opcode as opcode;

use super::elements::{ElementList, MAX_ELEMENTS};
use crate::address::Destination;
use crate::error::{Error, Result};
use crate::memory::{Elements, Gather, RemoteMemory};

/// A scatter/gather list of registered memory, for requests that are posted through the unsafe raw
/// methods. The list does not keep the memory alive.
///
/// The list is `Send` and `Sync`: its addresses and keys are plain numbers.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy)]
pub struct RawElements {
    list: [sys::ibv_sge; MAX_ELEMENTS],
    len: usize,
}

impl fmt::Debug for RawElements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl RawElements {
    /// Creates the scatter/gather list of `memory`: its addresses, lengths and local keys.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyElements`] for more than 16 elements, [`Error::InvalidArgument`] for more
    /// bytes than a message can have.
    pub fn of<M: Gather + ?Sized>(memory: &M) -> Result<Self> {
        let mut room = super::request::stack_room();
        // SAFETY: nothing else uses the room while the list exists.
        let mut list = unsafe { ElementList::over(&mut room, None) };
        memory.gather(&mut Elements::new(&mut list));
        list.checked(MAX_ELEMENTS as u32)?;
        let len = list.len();
        let empty = sys::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        let mut elements = Self {
            list: [empty; MAX_ELEMENTS],
            len,
        };
        for (to, from) in elements.list.iter_mut().zip(&room[..len]) {
            // SAFETY: the list has written its elements.
            *to = unsafe { from.assume_init() };
        }
        Ok(elements)
    }
}

impl Deref for RawElements {
    type Target = [sys::ibv_sge];

    #[inline]
    fn deref(&self) -> &[sys::ibv_sge] {
        &self.list[..self.len]
    }
}

/// A builder for an `ibv_send_wr`, to be posted by
/// [`QueuePair::post_send_raw`](crate::QueuePair::post_send_raw).
///
/// Building a request costs as much as filling in the C struct. A request is unsignaled by default.
#[doc(alias = "ibv_send_wr")]
#[derive(Clone, Copy)]
#[repr(transparent)]
#[must_use = "a request does nothing until it is posted"]
pub struct RawSendRequest<'a> {
    wr: sys::ibv_send_wr,
    elements: PhantomData<&'a [sys::ibv_sge]>,
}

impl fmt::Debug for RawSendRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawSendRequest")
            .field("id", &self.wr.wr_id)
            .field("opcode", &self.wr.opcode)
            .finish_non_exhaustive()
    }
}

impl<'a> RawSendRequest<'a> {
    #[inline]
    fn new(code: sys::ibv_wr_opcode, elements: &'a [sys::ibv_sge]) -> Self {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut wr: sys::ibv_send_wr = unsafe { mem::zeroed() };
        wr.opcode = code;
        wr.sg_list = elements.as_ptr().cast_mut();
        wr.num_sge = elements.len() as i32;
        Self {
            wr,
            elements: PhantomData,
        }
    }

    #[inline]
    fn remote(mut self, remote: RemoteMemory) -> Self {
        self.wr.wr.rdma.remote_addr = remote.address;
        self.wr.wr.rdma.rkey = remote.rkey;
        self
    }

    #[inline]
    fn atomic(mut self, remote: RemoteMemory, compare_add: u64, swap: u64) -> Self {
        let atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: remote.address,
            compare_add,
            swap,
            rkey: remote.rkey,
        };
        self.wr.wr.atomic = atomic;
        self
    }

    /// Creates a request that sends the data of `elements` to a receive of the peer.
    #[inline]
    pub fn send(elements: &'a [sys::ibv_sge]) -> Self {
        Self::new(opcode::IBV_WR_SEND, elements)
    }

    /// Creates an RDMA write request that copies the data of `elements` to the peer's memory
    /// `remote`.
    #[inline]
    pub fn write(elements: &'a [sys::ibv_sge], remote: RemoteMemory) -> Self {
        Self::new(opcode::IBV_WR_RDMA_WRITE, elements).remote(remote)
    }

    /// Creates an RDMA read request that copies the peer's memory `remote` into `elements`.
    #[inline]
    pub fn read(elements: &'a [sys::ibv_sge], remote: RemoteMemory) -> Self {
        Self::new(opcode::IBV_WR_RDMA_READ, elements).remote(remote)
    }

    /// Creates an atomic request that replaces the peer's value with `desired` if the value equals
    /// `expected`. The device writes the former value to `elements`.
    #[inline]
    pub fn compare_and_swap(
        elements: &'a [sys::ibv_sge],
        remote: RemoteMemory,
        expected: u64,
        desired: u64,
    ) -> Self {
        let request = Self::new(opcode::IBV_WR_ATOMIC_CMP_AND_SWP, elements);
        request.atomic(remote, expected, desired)
    }

    /// Creates an atomic request that adds `add` to the peer's value. The device writes the former
    /// value to `elements`.
    #[inline]
    pub fn fetch_and_add(elements: &'a [sys::ibv_sge], remote: RemoteMemory, add: u64) -> Self {
        let request = Self::new(opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, elements);
        request.atomic(remote, add, 0)
    }

    /// Adds the immediate data `number` to a send or write request. The builder converts `number`
    /// to network byte order.
    #[inline]
    pub fn immediate(mut self, number: u32) -> Self {
        self.wr.opcode = match self.wr.opcode {
            opcode::IBV_WR_RDMA_WRITE => opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            opcode::IBV_WR_SEND => opcode::IBV_WR_SEND_WITH_IMM,
            other => other,
        };
        self.wr.__bindgen_anon_1.imm_data = number.to_be();
        self
    }

    /// Sets the id of the request. The completion of the request will contain this id.
    #[inline]
    pub fn id(mut self, id: u64) -> Self {
        self.wr.wr_id = id;
        self
    }

    /// Marks the request as signaled. A signaled request generates a completion even if it
    /// succeeds.
    #[inline]
    pub fn signaled(self) -> Self {
        self.flag(flags::IBV_SEND_SIGNALED)
    }

    /// Delays the request until the reads and atomics before it have completed (fence).
    #[inline]
    pub fn fence(self) -> Self {
        self.flag(flags::IBV_SEND_FENCE)
    }

    /// Requests a solicited event at the peer when the message arrives.
    #[inline]
    pub fn solicited(self) -> Self {
        self.flag(flags::IBV_SEND_SOLICITED)
    }

    /// Makes the post call copy the data into the request (inline). The data need not stay valid
    /// after that call.
    #[inline]
    pub fn inline(self) -> Self {
        self.flag(flags::IBV_SEND_INLINE)
    }

    #[inline]
    fn flag(mut self, flag: flags) -> Self {
        self.wr.send_flags |= flag.0 as std::ffi::c_uint;
        self
    }

    /// Sets the destination of the request. Every request of a datagram queue pair needs a
    /// destination.
    #[inline]
    pub fn to(mut self, destination: &Destination) -> Self {
        self.wr.wr.ud.ah = destination.handle.as_raw();
        self.wr.wr.ud.remote_qpn = destination.queue_pair;
        self.wr.wr.ud.remote_qkey = destination.qkey;
        self
    }

    /// Sets the request that follows this request in the list. One call posts the whole list.
    #[inline]
    pub fn next(mut self, next: &'a mut RawSendRequest<'a>) -> Self {
        self.wr.next = &mut next.wr;
        self
    }

    /// Returns the C struct of the request, which the program can modify or post.
    #[inline]
    pub fn as_raw(&mut self) -> &mut sys::ibv_send_wr {
        &mut self.wr
    }
}

/// Creates a receive request for the scatter/gather elements `elements`, to be posted by
/// [`QueuePair::post_receive_raw`](crate::QueuePair::post_receive_raw).
#[doc(alias = "ibv_recv_wr")]
#[inline]
pub fn raw_receive_request(id: u64, elements: &[sys::ibv_sge]) -> sys::ibv_recv_wr {
    sys::ibv_recv_wr {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: elements.as_ptr().cast_mut(),
        num_sge: elements.len() as i32,
    }
}

/// The error of posting a list of raw requests. Requests before the refused one were posted.
/// `Debug` prints the same text as `Display`.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{verb} failed: {errno}")]
pub struct RawPostError<W> {
    /// Name of the verb that failed.
    pub verb: &'static str,
    /// Error number that the verb returned.
    pub errno: crate::error::Errno,
    /// The first request that was not posted.
    pub refused: *mut W,
}

impl<W> fmt::Debug for RawPostError<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<W> From<RawPostError<W>> for Error {
    fn from(refused: RawPostError<W>) -> Self {
        Self::verb(refused.verb, "a list of raw requests", refused.errno)
    }
}
