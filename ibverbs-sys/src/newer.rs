//! Verbs that are newer than the headers from which the bindings were generated. The shim of these
//! verbs, `shim/newer.c`, looks up each verb in the library at the first call of that verb.

use core::ffi::{c_int, c_void};
use core::marker::{PhantomData, PhantomPinned};

use crate::{ibv_mr, ibv_pd};

/// An opaque handle of memory that was allocated by [`ibv_alloc_buf`].
#[derive(Debug)]
#[repr(C)]
pub struct ibv_buf {
    _opaque: [u8; 0],
    _not_ours: PhantomData<(*mut u8, PhantomPinned)>,
}

unsafe extern "C" {
    /// Allocates memory that the device of `pd` provides for registration: `ibv_alloc_buf(3)` of
    /// rdma-core 64. The memory is page-aligned, and its contents are unspecified.
    ///
    /// Returns null with `EOPNOTSUPP` if the library at run time lacks the verbs of this module.
    #[link_name = "\u{1}rs_ibv_alloc_buf"]
    pub fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;

    /// Frees memory that [`ibv_alloc_buf`] allocated: `ibv_free_buf(3)`.
    #[link_name = "\u{1}rs_ibv_free_buf"]
    pub fn ibv_free_buf(buf: *mut ibv_buf);

    /// Registers a part of memory that [`ibv_alloc_buf`] allocated. `pd` must be the protection
    /// domain of that allocation: `ibv_reg_buf_mr(3)`.
    #[link_name = "\u{1}rs_ibv_reg_buf_mr"]
    pub fn ibv_reg_buf_mr(
        pd: *mut ibv_pd,
        buf: *mut ibv_buf,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;
}
