//! Work requests.

use std::ffi::c_int;
use std::ptr;

use ibverbs_sys::*;

use super::check::status;
use super::memory::Mr;
use super::queue_pair::Qp;

/// A request of the send queue: signaled, and number 1, unless told otherwise.
#[derive(Clone)]
pub(crate) struct Request {
    wr: ibv_send_wr,
    sges: Vec<ibv_sge>,
}

impl Request {
    fn new(opcode: ibv_wr_opcode, sges: &[ibv_sge]) -> Self {
        let wr = ibv_send_wr {
            wr_id: 1,
            opcode,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        Self {
            wr,
            sges: sges.to_vec(),
        }
    }

    pub(crate) fn send(sges: &[ibv_sge]) -> Self {
        Self::new(ibv_wr_opcode::IBV_WR_SEND, sges)
    }

    pub(crate) fn write(sges: &[ibv_sge], address: u64, rkey: u32) -> Self {
        Self::new(ibv_wr_opcode::IBV_WR_RDMA_WRITE, sges).remote(address, rkey)
    }

    pub(crate) fn read(sges: &[ibv_sge], address: u64, rkey: u32) -> Self {
        Self::new(ibv_wr_opcode::IBV_WR_RDMA_READ, sges).remote(address, rkey)
    }

    fn remote(mut self, remote_addr: u64, rkey: u32) -> Self {
        self.wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        self
    }

    pub(crate) fn compare_and_swap(
        sge: ibv_sge,
        remote_addr: u64,
        rkey: u32,
        compare_add: u64,
        swap: u64,
    ) -> Self {
        let mut this = Self::new(ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, &[sge]);
        this.wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr,
            compare_add,
            swap,
            rkey,
        };
        this
    }

    pub(crate) fn fetch_and_add(sge: ibv_sge, remote_addr: u64, rkey: u32, add: u64) -> Self {
        let mut this = Self::compare_and_swap(sge, remote_addr, rkey, add, 0);
        this.wr.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        this
    }

    pub(crate) fn local_invalidate(rkey: u32) -> Self {
        let mut this = Self::new(ibv_wr_opcode::IBV_WR_LOCAL_INV, &[]);
        this.wr.__bindgen_anon_1.invalidate_rkey = rkey;
        this
    }

    pub(crate) fn send_and_invalidate(sges: &[ibv_sge], rkey: u32) -> Self {
        let mut this = Self::new(ibv_wr_opcode::IBV_WR_SEND_WITH_INV, sges);
        this.wr.__bindgen_anon_1.invalidate_rkey = rkey;
        this
    }

    pub(crate) fn bind(mw: *mut ibv_mw, rkey: u32, bind_info: ibv_mw_bind_info) -> Self {
        let mut this = Self::new(ibv_wr_opcode::IBV_WR_BIND_MW, &[]);
        this.wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw,
            rkey,
            bind_info,
        };
        this
    }

    /// Adds immediate data to a send or a write.
    pub(crate) fn immediate(mut self, data: u32) -> Self {
        self.wr.opcode = match self.wr.opcode {
            ibv_wr_opcode::IBV_WR_SEND => ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            other => panic!("{other:?} carries no immediate data"),
        };
        self.wr.__bindgen_anon_1.imm_data = data.to_be();
        self
    }

    pub(crate) fn id(mut self, id: u64) -> Self {
        self.wr.wr_id = id;
        self
    }

    pub(crate) fn unsignaled(mut self) -> Self {
        self.wr.send_flags &= !ibv_send_flags::IBV_SEND_SIGNALED.0;
        self
    }

    pub(crate) fn flag(mut self, flag: ibv_send_flags) -> Self {
        self.wr.send_flags |= flag.0;
        self
    }

    pub(crate) fn opcode(mut self, opcode: ibv_wr_opcode) -> Self {
        self.wr.opcode = opcode;
        self
    }

    /// Sets the destination of a datagram.
    pub(crate) fn to(mut self, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) -> Self {
        self.wr.wr.ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah,
            remote_qpn,
            remote_qkey,
        };
        self
    }

    /// Sets the number of the XRC shared receive queue at the target.
    pub(crate) fn srq(mut self, remote_srqn: u32) -> Self {
        self.wr.qp_type.xrc = ibv_send_wr__bindgen_ty_3__bindgen_ty_1 { remote_srqn };
        self
    }

    /// Posts a list. An error contains the error number and the index of the refused request.
    pub(crate) fn post_all(qp: &Qp, requests: &mut [Self]) -> Result<(), (c_int, usize)> {
        let mut next = ptr::null_mut();
        for request in requests.iter_mut().rev() {
            request.wr.sg_list = request.sges.as_mut_ptr();
            request.wr.num_sge = request.sges.len() as c_int;
            request.wr.next = next;
            next = &mut request.wr;
        }
        let mut bad = ptr::null_mut();
        let result = unsafe { ibv_post_send(qp.raw(), next, &mut bad) };
        status(result).map_err(|number| {
            let at = requests.iter().position(|r| ptr::eq(&r.wr, bad));
            (number, at.unwrap_or(usize::MAX))
        })
    }
}

/// A request of a receive queue.
#[derive(Clone)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) sges: Vec<ibv_sge>,
}

impl Receive {
    pub(crate) fn new(id: u64, sges: &[ibv_sge]) -> Self {
        Self {
            id,
            sges: sges.to_vec(),
        }
    }

    /// Returns the C list of the requests, which is valid while the requests are not moved.
    pub(crate) fn chain(requests: &mut [Self]) -> Vec<ibv_recv_wr> {
        let mut list: Vec<_> = requests
            .iter_mut()
            .map(|request| ibv_recv_wr {
                wr_id: request.id,
                next: ptr::null_mut(),
                sg_list: request.sges.as_mut_ptr(),
                num_sge: request.sges.len() as c_int,
            })
            .collect();
        for at in (1..list.len()).rev() {
            list[at - 1].next = &mut list[at];
        }
        list
    }
}

/// Most receives use a whole region.
impl From<(u64, &Mr, usize, usize)> for Receive {
    fn from((id, mr, offset, length): (u64, &Mr, usize, usize)) -> Self {
        Self::new(id, &[mr.sge(offset, length)])
    }
}
