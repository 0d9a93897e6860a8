//! A QEMU guest with Debian's kernel, booted for one command.
//!
//! The host's root is the guest's root, read through 9p, with a layer of memory on top that takes
//! the writes. The guest has its own kernel and the modules that the host's kernel may lack, and
//! so a Soft-RoCE device.

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
