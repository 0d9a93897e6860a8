//! Shared receive queues.

use std::ffi::c_int;
use std::rc::Rc;

use ibverbs_sys::*;

use super::check::{Outcome, pointer, status};
use super::device::must;
use super::memory::Pd;
use super::request::Receive;

/// A shared receive queue. Clones refer to the same queue.
#[derive(Clone)]
pub(crate) struct Srq(Rc<SrqHandle>);

struct SrqHandle {
    raw: *mut ibv_srq,
    _pd: Pd,
}

impl Srq {
    pub(crate) fn new(pd: &Pd, requests: u32) -> Self {
        Self::create(pd, requests, 4).succeeds("ibv_create_srq")
    }

    pub(crate) fn create(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self, c_int> {
        let mut attr = ibv_srq_init_attr {
            attr: ibv_srq_attr {
                max_wr,
                max_sge,
                srq_limit: 0,
            },
            ..Default::default()
        };
        let raw = pointer(unsafe { ibv_create_srq(pd.raw(), &mut attr) })?;
        Ok(Self::from_raw(pd, raw))
    }

    pub(crate) fn from_raw(pd: &Pd, raw: *mut ibv_srq) -> Self {
        Self(Rc::new(SrqHandle {
            raw,
            _pd: pd.clone(),
        }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_srq {
        self.0.raw
    }

    /// Drops the queue without destroying its C object, which the test has destroyed already.
    ///
    /// # Panics
    /// If another handle of the queue exists.
    pub(crate) fn forget(self) {
        match Rc::try_unwrap(self.0) {
            Ok(mut handle) => handle.raw = std::ptr::null_mut(),
            Err(_) => panic!("a shared receive queue was destroyed that is in use"),
        }
    }

    #[track_caller]
    pub(crate) fn query(&self) -> ibv_srq_attr {
        let mut attr = ibv_srq_attr::default();
        unsafe { ibv_query_srq(self.raw(), &mut attr) }.succeeds("ibv_query_srq");
        attr
    }

    pub(crate) fn modify(&self, mut attr: ibv_srq_attr, mask: ibv_srq_attr_mask) -> c_int {
        unsafe { ibv_modify_srq(self.raw(), &mut attr, mask.0 as c_int) }
    }

    /// Arms the limit event.
    #[track_caller]
    pub(crate) fn arm(&self, srq_limit: u32) {
        let attr = ibv_srq_attr {
            srq_limit,
            ..Default::default()
        };
        self.modify(attr, ibv_srq_attr_mask::IBV_SRQ_LIMIT)
            .succeeds("ibv_modify_srq(IBV_SRQ_LIMIT)");
    }

    /// Posts receives. An error contains the error number and the index of the refused request.
    pub(crate) fn try_receive(&self, requests: &[Receive]) -> Result<(), (c_int, usize)> {
        let mut requests = requests.to_vec();
        let mut list = Receive::chain(&mut requests);
        let mut bad = std::ptr::null_mut();
        let result = unsafe { ibv_post_srq_recv(self.raw(), list.as_mut_ptr(), &mut bad) };
        status(result).map_err(|number| {
            let at = list.iter().position(|wr| std::ptr::eq(wr, bad));
            (number, at.unwrap_or(usize::MAX))
        })
    }

    #[track_caller]
    pub(crate) fn receive(&self, id: u64, sges: &[ibv_sge]) {
        self.try_receive(&[Receive::new(id, sges)])
            .map_err(|(number, _)| number)
            .succeeds("ibv_post_srq_recv");
    }
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            must("ibv_destroy_srq", unsafe { ibv_destroy_srq(self.raw) });
        }
    }
}
