//! The device as C sees it: the symbols of `libibverbs.so.1`, and the tables of functions behind
//! its inline functions.
//!
//! # Rules of this module
//! - Every `extern "C"` function runs its body in [`guard`], or in [`verb`] if it is one that can be
//!   made to fail: a panic ends there as `EIO`, and the device [fails](crate::nic::Nic::fatal). The device of a
//!   forked child answers `EIO` at once.
//! - Every exported function first asks whether the object is ours, and else hands the call to the
//!   real library: [`forward!`](real::forward). One pointer is compared.
//! - Functions that are reached only through the tables of our own contexts get only our objects.
//!
//! ```text
//! #[unsafe(no_mangle)]
//! pub(crate) unsafe extern "C" fn ibv_query_qp(qp: *mut ibv_qp, ...) -> c_int {
//!     // SAFETY: the caller gives a queue pair of some library.
//!     unsafe { forward!((*qp).context, ibv_query_qp(qp, attr, mask, init)) };
//!     verb(Verb::QueryQp, number, || ...)
//! }
//! ```

pub(crate) mod ah;
mod answer;
mod buffer;
pub(crate) mod completion;
mod context;
pub(crate) mod device;
mod device_memory;
pub(crate) mod exit;
mod extended_poll;
mod extended_post;
pub(crate) mod fork;
pub(crate) mod gid;
pub(crate) mod guard;
mod in_place;
mod inherited;
mod install;
mod marshal;
mod memory;
mod multicast;
pub(crate) mod open;
pub(crate) mod pd;
mod query;
pub(crate) mod queue_pair;
pub(crate) mod real;
pub(crate) mod srq;
mod symbols;
mod tables;
mod text;
mod unsupported;
mod window;
mod work_completion;
mod work_request;
pub(crate) mod xrc;

pub(crate) use device::is_ours;
pub(crate) use guard::{errno, fail, guard, minus_one, number, set_errno, verb};
pub use install::install;
pub(crate) use real::forward;
