//! Work requests as the device reads them, put together on the stack.

use std::mem::{self, MaybeUninit};

use ibverbs_sys as sys;

use crate::error::{Error, Result};
use crate::memory::Elements;
use crate::queue_pair::{Operation, SendRequest};

/// How many scatter/gather elements a request of this crate can have.
pub(crate) const MAX_ELEMENTS: usize = 16;

/// A scatter/gather list without an allocation.
pub(crate) struct ElementList {
    elements: [MaybeUninit<sys::ibv_sge>; MAX_ELEMENTS],
    /// How many were pushed, including those that did not fit.
    len: usize,
    /// The first problem met while pushing.
    too_long: Option<usize>,
}

impl ElementList {
    #[inline]
    fn new() -> Self {
        Self {
            elements: [const { MaybeUninit::uninit() }; MAX_ELEMENTS],
            len: 0,
            too_long: None,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, address: u64, len: usize, lkey: u32) {
        match u32::try_from(len) {
            Ok(length) if self.len < MAX_ELEMENTS => {
                self.elements[self.len].write(sys::ibv_sge {
                    addr: address,
                    length,
                    lkey,
                });
            }
            Ok(_) => {}
            Err(_) => self.too_long = Some(len),
        }
        self.len += 1;
    }

    #[inline]
    fn checked(&self) -> Result<()> {
        if self.len > MAX_ELEMENTS {
            return Err(Error::TooManyElements {
                elements: self.len,
                limit: MAX_ELEMENTS,
            });
        }
        if let Some(len) = self.too_long {
            let reason = format!("{len} bytes are more than one element can carry (2^32 - 1)");
            return Err(Error::invalid("scatter/gather element", reason));
        }
        Ok(())
    }
}

/// The elements of a send request, and the request that points at them.
pub(crate) struct SendElements {
    list: ElementList,
}

impl SendElements {
    /// Collects the elements of `request`'s memory.
    #[inline]
    pub(crate) fn gather<T: crate::memory::Gather>(request: &SendRequest<T>) -> Result<Self> {
        let mut list = ElementList::new();
        request.memory().gather(&mut Elements::new(&mut list));
        list.checked()?;
        Ok(Self { list })
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
    /// Collects the elements of `memory`.
    #[inline]
    pub(crate) fn scatter<T: crate::memory::Scatter>(memory: &T) -> Result<Self> {
        let mut list = ElementList::new();
        memory.scatter(&mut Elements::new(&mut list))?;
        list.checked()?;
        Ok(Self { list })
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
