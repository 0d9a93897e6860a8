//! Bindings to libibverbs and librdmacm: every function, type and constant of `infiniband/verbs.h`,
//! `rdma/rdma_cma.h`, `rdma/rdma_verbs.h` and `rdma/rsocket.h`, under its C name and with its C
//! type. The crate adds no methods, no `Drop` and no `Result`. The manual pages document the
//! functions: `man ibv_reg_mr` describes [`ibv_reg_mr`].
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
//! Many verbs are not symbols of a library. [`ibv_post_send`] and [`ibv_poll_cq`] are inline
//! functions. [`ibv_query_port`] and [`ibv_reg_mr`] are macros. The symbols with the names of these
//! macros exist only for old binaries: the symbol `ibv_query_port` fills only the first fields of
//! an [`ibv_port_attr`]. Therefore this crate binds no function directly, but binds each function
//! to a C function of the shim, whose name is `rs_` followed by the C name. The shim is a C file
//! that is compiled with this crate, against the installed headers, and is always optimised. The
//! functions of the shim call what a C program would call.
//!
//! # Newer headers
//! The bindings were generated from the headers of rdma-core 44.0. The crate builds with the
//! headers of that release and of every newer one. With older headers the build fails.
//! - The compilation of the shim compares every bound field and constant with the installed header.
//!   A difference fails the build, so no program reads the wrong bytes.
//! - Structs that the caller provides and that grow from release to release, such as
//!   [`ibv_port_attr`], [`ibv_device_attr_ex`] and [`ibv_qp_init_attr_ex`], are copied through a
//!   local variable of the header's own type. The library may fill all of that variable. The caller
//!   gets the fields that these bindings define.
//! - Structs that the library allocates, such as [`ibv_cq`] and [`ibv_mr`], may be larger than the
//!   type in these bindings. Access them only through the pointer from the library, never by value.
//!
//! Of the functions newer than 44.0, only [`ibv_alloc_buf`], [`ibv_free_buf`] and
//! [`ibv_reg_buf_mr`] are bound. The crate looks these three up at run time, whatever the headers.
//! If the library lacks them, [`ibv_alloc_buf`] and [`ibv_reg_buf_mr`] return null with
//! `EOPNOTSUPP`.
//!
//! The crate was built against every release of rdma-core from 44.0 to 65.0 for x86-64, and against
//! 44.0 and 65.0 for aarch64. Shims built with 44.0 and with 65.0 ran with the libraries of both.
//! In the repository, `ibverbs-sys/tests/newer-headers.sh` builds against the headers of other
//! Debian releases, and `ibverbs-sys/tests/growth.rs` against headers of invented releases.
//!
//! # Enumerations
//! A C enumeration is a struct around an integer, with its enumerators as associated constants:
//! [`ibv_wc_status::IBV_WC_SUCCESS`]. Therefore an unknown value from a newer library or kernel
//! causes no undefined behaviour. Flags can be combined by `|` and tested by `&`. Enumerators of an
//! anonymous enumeration are constants of the crate.
//!
//! Types of the C library (`sockaddr`, `pthread_mutex_t` ...) are those of the [`libc`] crate.
//! `__be16`, `__be32` and `__be64` are integers in network byte order.
//!
//! # Building
//! The build script finds the headers and libraries by pkg-config (`libibverbs`, `librdmacm`).
//! Build scripts of dependent crates get the variables `DEP_IBVERBS_INCLUDE` and
//! `DEP_IBVERBS_VERSION`.
//!
//! | variable | effect |
//! |---|---|
//! | `IBVERBS_SYS_PREFIX` | the root of a tree with `include/` and `lib/`, such as that of MOFED or DOCA; takes precedence over pkg-config |
//! | `PKG_CONFIG_PATH` and the other variables of pkg-config | their usual effect |
//! | `DOCS_RS` | builds the documentation without headers: no shim, nothing to link |
//!
//! The feature `bindgen` is for `cargo xtask bindgen`, which regenerates these bindings. The only
//! supported targets are 64-bit Linux.

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

/// The value that an allocator ([`ibv_parent_domain_init_attr::alloc`]) returns to make the library
/// allocate as it would without an allocator. See [`ibv_alloc_parent_domain`].
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut core::ffi::c_void =
    core::ptr::without_provenance_mut(usize::MAX);

/// The value of [`ibv_context::abi_compat`] if the context is the last field of a
/// [`verbs_context`].
pub const __VERBS_ABI_IS_EXTENDED: *mut core::ffi::c_void =
    core::ptr::without_provenance_mut(usize::MAX);
