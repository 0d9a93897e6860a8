//! The guest: a QEMU virtual machine with Debian's kernel, which is booted to run one command.
//!
//! The guest reads the host's root directory through 9p as its own root. The guest's writes go to
//! an overlay in memory. The guest's kernel has modules that the host's kernel may lack, so the
//! guest can have a Soft-RoCE device.

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

pub(crate) use session::{CommandEnd, Guest};
