//! A QEMU guest with Debian's kernel, booted for one command.
//!
//! The host's root is the guest's root, read through 9p. Writes of the guest go to an overlay in
//! memory. The guest has its own kernel, with modules that the host's kernel may lack, and so it has a
//! Soft-RoCE device.

mod accelerator;
mod bzimage;
mod counter;
mod cpio;
mod initramfs;
pub(crate) mod job;
pub(crate) mod kernel;
mod modules;
mod qemu;
mod session;
mod stream;

pub(crate) use session::{Ended, Guest};
