//! The kernel's Soft-RoCE on this machine: `cargo xtask softroce-setup`.

mod check;
pub(crate) mod device;
mod gid;
mod kernel_module;
mod netdev;
mod setup;

pub(crate) use check::check;
pub(crate) use setup::{Request, setup};
