//! The C ABI of the device: the symbols of `libibverbs.so.1`, and the tables of functions that its
//! inline functions call.
//!
//! # Rules of this module
//! - Every `extern "C"` function runs its body in [`guard`](guard()), or in [`verb`] if faults can
//!   be injected: a panic results in `EIO`, and the device
//!   [fails](crate::nic::Nic::fail_permanently). In a forked child, functions on inherited objects
//!   return `EIO` immediately.
//! - Every exported function first checks whether the object belongs to this device, and otherwise
//!   calls the real library: [`forward!`](real::forward). The check compares one pointer.
//! - Functions that are only in the tables of this device's contexts get only objects of this
//!   device.
//!
//! ```text
//! #[unsafe(no_mangle)]
//! pub(crate) unsafe extern "C" fn ibv_query_qp(qp: *mut ibv_qp, ...) -> c_int {
//!     // SAFETY: the C API requires the caller to pass a valid queue pair.
//!     unsafe { forward!((*qp).context, ibv_query_qp(qp, attr, mask, init)) };
//!     verb(Verb::QueryQp, number, || ...)
//! }
//! ```

pub(crate) mod ah;
mod answer;
mod buffer;
mod command_file;
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
mod newer;
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
