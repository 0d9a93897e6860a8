//! Effects of `fork` on a process that has registered memory.

use ibverbs_sys::ibv_fork_status;

use crate::error::Result;
use crate::ffi;

/// The effect of `fork` on registered memory of this process.
#[doc(alias = "ibv_fork_status")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForkStatus {
    /// Forking is unsafe for registered memory, because the program has not called [`fork_init`]:
    /// after a fork, the pages that this process writes to may differ from the pages that the
    /// device accesses.
    Unprepared,
    /// Forking is safe: registered memory is not inherited by child processes.
    Prepared,
    /// Forking is safe: the kernel copies registered pages for the child when it forks.
    Unneeded,
    /// A value from libibverbs that this crate does not know.
    Unknown(u32),
}

/// Prepares the process for calls of `fork` while memory is registered (`ibv_fork_init(3)`). The
/// program must call this function before it registers any memory. Every later registration costs
/// an additional system call, unless the kernel needs no preparation.
///
/// The preparation protects only the parent process of a fork. A child process must not use devices
/// that its parent opened. The child may only call `exec` or `_exit`: see the
/// [module](crate::memory).
///
/// # Errors
///
/// The error of `ibv_fork_init`, for example `EINVAL` if memory is already registered.
#[doc(alias = "ibv_fork_init")]
pub fn fork_init() -> Result<()> {
    ffi::fork_init()
}

/// Returns the effect that `fork` currently has on registered memory of this process.
#[doc(alias = "ibv_is_fork_initialized")]
pub fn fork_status() -> ForkStatus {
    match ffi::fork_status() {
        ibv_fork_status::IBV_FORK_DISABLED => ForkStatus::Unprepared,
        ibv_fork_status::IBV_FORK_ENABLED => ForkStatus::Prepared,
        ibv_fork_status::IBV_FORK_UNNEEDED => ForkStatus::Unneeded,
        ibv_fork_status(other) => ForkStatus::Unknown(other as _),
    }
}
