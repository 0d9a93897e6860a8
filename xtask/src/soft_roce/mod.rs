//! The kernel's Soft-RoCE on this machine: `cargo xtask softroce-setup`.

pub(crate) mod device;
mod doctor;
mod gid;
mod kernel_module;
mod netdev;
mod setup;

pub(crate) use doctor::check;
pub(crate) use setup::{Wish, setup};
