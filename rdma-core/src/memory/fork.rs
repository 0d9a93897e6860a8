//! Registered memory and `fork`.

use ibverbs_sys::ibv_fork_status;

use crate::error::Result;
use crate::ffi;

/// Whether this process can fork while memory is registered, and go on using it.
#[doc(alias = "ibv_fork_status")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForkStatus {
    /// It cannot: after a fork, the pages that this process writes to may no longer be those that
    /// the device knows. [`fork_init`] was not called.
    Unprepared,
    /// It can: registered memory is kept away from children, which do not have it at all.
    Prepared,
    /// It can: the kernel copies registered memory for children when they are made.
    Unneeded,
    /// The library says something that this crate does not know.
    Unknown(u32),
}

/// Prepares the process for forking while memory is registered (`ibv_fork_init(3)`). To be called
/// before memory is registered; costs a system call for every registration from then on, unless the
/// kernel needs no preparation.
///
/// It is about the parent. A child that does more than `exec` cannot use devices that its parent
/// opened, by whatever library: see the [module](crate::memory).
///
/// # Errors
///
/// The verb's: `EINVAL` when memory has been registered already.
#[doc(alias = "ibv_fork_init")]
pub fn fork_init() -> Result<()> {
    ffi::fork_init()
}

/// Whether this process can fork while memory is registered.
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_status() -> ForkStatus {
    match ffi::fork_status() {
        ibv_fork_status::IBV_FORK_DISABLED => ForkStatus::Unprepared,
        ibv_fork_status::IBV_FORK_ENABLED => ForkStatus::Prepared,
        ibv_fork_status::IBV_FORK_UNNEEDED => ForkStatus::Unneeded,
        ibv_fork_status(other) => ForkStatus::Unknown(other as _),
    }
}
