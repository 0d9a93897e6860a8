//! Work requests as the device reads them, put together on the stack.

use std::mem::{self, MaybeUninit};

use ibverbs_sys as sys;

use super::queue_pair::QueuePairSizes;
use crate::error::{Error, Result};
use crate::memory::Elements;
use crate::queue_pair::{Operation, SendRequest};

/// How many scatter/gather elements a request of this crate can have.
pub(crate) const MAX_ELEMENTS: usize = 16;

/// The most bytes of a message (IBTA volume 1, 9.7.2). Providers count in 32 bits.
const MAX_MESSAGE: u64 = 1 << 31;

/// How many bytes an atomic operation is on.
const ATOMIC: u64 = size_of::<u64>() as u64;

/// A scatter/gather list without an allocation.
pub(crate) struct ElementList {
    elements: [MaybeUninit<sys::ibv_sge>; MAX_ELEMENTS],
    /// How many were pushed, including those that did not fit.
    len: usize,
    /// How many bytes they have together.
    bytes: u64,
    /// Whether this process can read them where the elements say.
    is_mapped: bool,
}

impl ElementList {
    #[inline]
    fn new() -> Self {
        Self {
            elements: [const { MaybeUninit::uninit() }; MAX_ELEMENTS],
            len: 0,
            bytes: 0,
            is_mapped: true,
        }
    }

    /// Says that an address is none of this process, so that nobody copies from there.
    #[inline]
    pub(crate) fn forbid_inline(&mut self) {
        self.is_mapped = false;
    }

    #[inline]
    pub(crate) fn push(&mut self, address: u64, len: usize, lkey: u32) {
        if len == 0 {
            // To devices of several vendors an element of no bytes is one of 2^31.
            return;
        }
        if let Some(element) = self.elements.get_mut(self.len) {
            element.write(sys::ibv_sge {
                addr: address,
                // What does not fit makes the sum of bytes too large.
                length: len as u32,
                lkey,
            });
        }
        self.len += 1;
        self.bytes = self.bytes.saturating_add(len as u64);
    }

    /// Checks that the device can take it, with the number of elements that the queue pair has.
    #[inline]
    fn checked(&self, limit: u32) -> Result<()> {
        let limit = MAX_ELEMENTS.min(limit as usize);
        if self.len > limit {
            return Err(Error::TooManyElements {
                elements: self.len,
                limit,
            });
        }
        if self.bytes > MAX_MESSAGE {
            let reason = format!("{} bytes are more than a message can have", self.bytes);
            return Err(Error::invalid("memory of a request", reason));
        }
        Ok(())
    }
}

/// The elements of a send request, and the request that points at them.
pub(crate) struct SendElements {
    list: ElementList,
}

impl SendElements {
    /// None yet.
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            list: ElementList::new(),
        }
    }

    /// Collects the elements of `request`'s memory, and checks what providers may not.
    ///
    /// They are collected in place: as a result they would be copied, room for all, more than once.
    #[inline]
    pub(crate) fn gather<T: crate::memory::Gather>(
        &mut self,
        request: &SendRequest<T>,
        limits: QueuePairSizes,
    ) -> Result<()> {
        let list = &mut self.list;
        request.memory().gather(&mut Elements::new(list));
        list.checked(limits.send_elements)?;
        match request.operation() {
            Operation::Send { .. } | Operation::Write { .. } => {
                if request.is_inline() && !list.is_mapped {
                    let reason = "its memory has no address in this process, or another one there";
                    return Err(Error::invalid("inline request", reason));
                }
                if request.is_inline() && list.bytes > u64::from(limits.inline_data) {
                    return Err(too_much_inline(list.bytes, limits.inline_data));
                }
                return Ok(());
            }
            Operation::Read => {}
            Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => {
                let address = request.remote().address;
                if list.bytes != ATOMIC || !address.is_multiple_of(ATOMIC) {
                    return Err(no_atomic(list.bytes, address));
                }
            }
        }
        if request.is_inline() {
            // Soft-RoCE would take the memory's content for the elements to write to.
            let reason = "a read or an atomic brings data and carries none";
            return Err(Error::invalid("inline request", reason));
        }
        Ok(())
    }

    /// The request with this id. It points into `self` and at nothing else.
    #[inline]
    pub(crate) fn work_request<T>(
        &mut self,
        request: &SendRequest<T>,
        wr_id: u64,
    ) -> sys::ibv_send_wr {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut wr: sys::ibv_send_wr = unsafe { mem::zeroed() };
        wr.wr_id = wr_id;
        wr.sg_list = self.list.elements.as_mut_ptr().cast();
        wr.num_sge = self.list.len as i32;
        wr.send_flags = request.flags().bits() as _;
        let remote = request.remote();
        match request.operation() {
            Operation::Send { immediate: None } => wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND,
            Operation::Send {
                immediate: Some(immediate),
            } => {
                wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                wr.__bindgen_anon_1.imm_data = immediate.to_be();
            }
            Operation::Write { immediate: None } => {
                wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            }
            Operation::Write {
                immediate: Some(immediate),
            } => {
                wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                wr.__bindgen_anon_1.imm_data = immediate.to_be();
            }
            Operation::Read => wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ,
            Operation::CompareAndSwap { expected, desired } => {
                wr.opcode = sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                wr.wr.atomic.remote_addr = remote.address;
                wr.wr.atomic.rkey = remote.rkey;
                wr.wr.atomic.compare_add = expected;
                wr.wr.atomic.swap = desired;
                return wr;
            }
            Operation::FetchAndAdd { add } => {
                wr.opcode = sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr.atomic.remote_addr = remote.address;
                wr.wr.atomic.rkey = remote.rkey;
                wr.wr.atomic.compare_add = add;
                return wr;
            }
        }
        wr.wr.rdma.remote_addr = remote.address;
        wr.wr.rdma.rkey = remote.rkey;
        wr
    }
}

/// The elements of a receive request, and the request that points at them.
pub(crate) struct ReceiveElements {
    list: ElementList,
}

impl ReceiveElements {
    /// None yet.
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            list: ElementList::new(),
        }
    }

    /// Collects the elements of `memory`, in place as [`SendElements::gather`] does.
    #[inline]
    pub(crate) fn scatter<T: crate::memory::Scatter>(
        &mut self,
        memory: &T,
        limits: QueuePairSizes,
    ) -> Result<()> {
        memory.scatter(&mut Elements::new(&mut self.list))?;
        self.list.checked(limits.receive_elements)
    }

    /// The request with this id. It points into `self` and at nothing else.
    #[inline]
    pub(crate) fn work_request(&mut self, wr_id: u64) -> sys::ibv_recv_wr {
        sys::ibv_recv_wr {
            wr_id,
            next: std::ptr::null_mut(),
            sg_list: self.list.elements.as_mut_ptr().cast(),
            num_sge: self.list.len as i32,
        }
    }
}

#[cold]
fn too_much_inline(bytes: u64, limit: u32) -> Error {
    let reason = format!("{bytes} bytes are more than the queue pair's limit of {limit}");
    Error::invalid("inline request", reason)
}

#[cold]
fn no_atomic(bytes: u64, address: u64) -> Error {
    if bytes == ATOMIC {
        let reason = format!("{address:#x} is not a multiple of 8");
        Error::invalid("remote address of an atomic", reason)
    } else {
        let reason = format!("{bytes} bytes, and an atomic brings 8");
        Error::invalid("memory of an atomic", reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_stay_within_elements_and_bytes() {
        let mut list = ElementList::new();
        for _ in 0..3 {
            list.push(4096, 1 << 29, 1);
        }
        assert!(list.checked(4).is_ok());
        assert_eq!(
            list.checked(2).unwrap_err(),
            Error::TooManyElements {
                elements: 3,
                limit: 2
            }
        );
        list.push(4096, 1 << 29, 1);
        assert!(list.checked(4).is_ok(), "2^31 bytes");
        list.push(4096, 1, 1);
        assert!(list.checked(5).is_err());
        for _ in 0..MAX_ELEMENTS {
            list.push(4096, 1, 1);
        }
        let too_many = list.checked(u32::MAX).unwrap_err();
        assert!(matches!(
            too_many,
            Error::TooManyElements {
                limit: MAX_ELEMENTS,
                ..
            }
        ));
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn lengths_that_wrap_around_are_refused() {
        let mut list = ElementList::new();
        list.push(4096, 1 << 32, 1);
        assert!(list.checked(4).is_err());
        let mut list = ElementList::new();
        for _ in 0..16 {
            list.push(4096, 1 << 28, 1);
        }
        assert!(list.checked(16).is_err());
    }

    #[test]
    fn pieces_without_bytes_are_no_elements() {
        let mut list = ElementList::new();
        list.push(4096, 0, 1);
        assert_eq!((list.len, list.bytes), (0, 0));
    }
}
