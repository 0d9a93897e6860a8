//! The kernel's Soft-RoCE on this machine.

pub(crate) mod device;
