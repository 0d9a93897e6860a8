//! Verbs that are newer than the headers which the bindings were generated from. Their shim,
//! `shim/newer.c`, looks them up when they are first called.

use core::ffi::{c_int, c_void};
use core::marker::{PhantomData, PhantomPinned};

use crate::{ibv_mr, ibv_pd};

/// Memory that a device gave: an opaque handle.
#[derive(Debug)]
#[repr(C)]
pub struct ibv_buf {
    _opaque: [u8; 0],
    _not_ours: PhantomData<(*mut u8, PhantomPinned)>,
}

unsafe extern "C" {
    /// Memory for regions of `pd`, of whatever kind its device has for that: `ibv_alloc_buf(3)` of
    /// rdma-core 64. It is page-aligned; what is in it is not specified.
    ///
    /// Null, with `EOPNOTSUPP`, where the library at run time does not have the three functions.
    #[link_name = "\u{1}rs_ibv_alloc_buf"]
    pub fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;

    /// Gives it back: `ibv_free_buf(3)`.
    #[link_name = "\u{1}rs_ibv_free_buf"]
    pub fn ibv_free_buf(buf: *mut ibv_buf);

    /// Registers a part of it with the `pd` that it was allocated for: `ibv_reg_buf_mr(3)`.
    #[link_name = "\u{1}rs_ibv_reg_buf_mr"]
    pub fn ibv_reg_buf_mr(
        pd: *mut ibv_pd,
        buf: *mut ibv_buf,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;
}
