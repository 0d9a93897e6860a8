//! Bindings to libibverbs and librdmacm: every function, type and constant of `infiniband/verbs.h`,
//! `rdma/rdma_cma.h`, `rdma/rdma_verbs.h` and `rdma/rsocket.h`, under its C name and with its C
//! type. There are no methods here, no `Drop` and no `Result`: `man ibv_reg_mr` is the
//! documentation of [`ibv_reg_mr`].
//!
//! ```no_run
//! use ibverbs_sys::{ibv_free_device_list, ibv_get_device_list, ibv_get_device_name};
//!
//! let mut count = 0;
//! // SAFETY: the list is an array of `count` devices until it is freed.
//! unsafe {
//!     let list = ibv_get_device_list(&mut count);
//!     for i in 0..count as usize {
//!         println!("{:?}", std::ffi::CStr::from_ptr(ibv_get_device_name(*list.add(i))));
//!     }
//!     ibv_free_device_list(list);
//! }
//! ```
//!
//! # The shim
//! Much of verbs is no symbol of a library. [`ibv_post_send`] and [`ibv_poll_cq`] are inline
//! functions; [`ibv_query_port`] and [`ibv_reg_mr`] are macros, and the symbols of these names are
//! kept for programs built long ago: the old `ibv_query_port` fills only the front of an
//! [`ibv_port_attr`]. So no function here is bound directly. Each is one C function, `rs_` and the
//! C name, compiled when this crate is built, against the headers that are installed, and always
//! optimised. It calls what a C program would call.
//!
//! # Newer headers
//! The bindings are those of rdma-core 44.0, and the crate builds with its headers and any newer;
//! older ones are refused.
//! - Every field and every constant bound here is compared with the header's when the shim is
//!   compiled. A difference is an error of the build, never a program that reads the wrong bytes.
//! - Structs that the caller provides and that grow from release to release, such as
//!   [`ibv_port_attr`], [`ibv_device_attr_ex`] and [`ibv_qp_init_attr_ex`], pass through a local of
//!   the header's own type. The library may fill all of it; the caller gets the part known here.
//! - Structs that the library allocates, such as [`ibv_cq`] and [`ibv_mr`], may be larger than the
//!   type here. Use them behind the pointer you got, never by value.
//!
//! Of what is newer than 44.0, [`ibv_alloc_buf`], [`ibv_free_buf`] and [`ibv_reg_buf_mr`] are here. They
//! are looked up at run time, whatever the headers; where they are absent, the first and the last give
//! null and `EOPNOTSUPP`.
//!
//! Every release of rdma-core from 44.0 to 65.0 was built against, for x86-64 and the first and the
//! last of them for aarch64; shims of 44.0 and of 65.0 ran on the libraries of 44.0 and of 65.0.
//! In the repository, `ibverbs-sys/tests/newer-headers.sh` builds against the headers of other
//! Debian releases, and `ibverbs-sys/tests/growth.rs` makes up releases that do not exist.
//!
//! # Enumerations
//! A C enumeration is a struct around an integer, with its enumerators as associated constants:
//! [`ibv_wc_status::IBV_WC_SUCCESS`]. A value from a newer library or kernel is a value like any
//! other, and no undefined behaviour. Flags can be combined by `|` and tested by `&`. Enumerators
//! without an enumeration are constants of the crate.
//!
//! Types of the C library (`sockaddr`, `pthread_mutex_t` ...) are those of the [`libc`] crate.
//! `__be16`, `__be32` and `__be64` are integers in network byte order.
//!
//! # Building
//! The headers and libraries are found by pkg-config (`libibverbs`, `librdmacm`). Dependent build
//! scripts are told `DEP_IBVERBS_INCLUDE` and `DEP_IBVERBS_VERSION`.
//!
//! | variable | effect |
//! |---|---|
//! | `IBVERBS_SYS_PREFIX` | the root of a tree with `include/` and `lib/`, such as that of MOFED or DOCA; takes precedence over pkg-config |
//! | `PKG_CONFIG_PATH` and its kin | as ever |
//! | `DOCS_RS` | builds the documentation without headers: no shim, nothing to link |
//!
//! The feature `bindgen` is for `cargo xtask bindgen`, which writes these bindings anew.
//! The only targets are 64-bit Linux.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::ptr_offset_with_cast,
    clippy::undocumented_unsafe_blocks
)]
mod bindings;

#[allow(
    non_camel_case_types,
    clippy::missing_safety_doc,
    reason = "the names are C's, and its manual pages say what is safe"
)]
mod newer;

pub use bindings::*;
pub use newer::{ibv_alloc_buf, ibv_buf, ibv_free_buf, ibv_reg_buf_mr};

/// Tells [`ibv_alloc_parent_domain`]'s library to allocate as it would without an allocator: what
/// [`ibv_parent_domain_init_attr::alloc`] returns for that.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut core::ffi::c_void =
    core::ptr::without_provenance_mut(usize::MAX);

/// The value of [`ibv_context::abi_compat`] that says there is a [`verbs_context`] around it.
pub const __VERBS_ABI_IS_EXTENDED: *mut core::ffi::c_void =
    core::ptr::without_provenance_mut(usize::MAX);
