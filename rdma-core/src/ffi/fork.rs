//! Protection of registered memory from the effects of `fork`.

use ibverbs_sys as sys;

use super::context::positive;
use crate::error::{Error, Result};

/// Protects registered memory from the effects of `fork`, by `ibv_fork_init`. The device then
/// continues to access the pages of the parent process after a fork.
pub(crate) fn fork_init() -> Result<()> {
    // SAFETY: the call has no arguments, and only changes how the library registers memory later.
    let errno = unsafe { sys::ibv_fork_init() };
    if errno == 0 {
        return Ok(());
    }
    Err(Error::verb(
        "ibv_fork_init",
        "this process",
        positive(errno),
    ))
}

/// Returns whether registered memory is protected from `fork`, as `ibv_is_fork_initialized` reports
/// it.
pub(crate) fn fork_status() -> sys::ibv_fork_status {
    // SAFETY: the call has no arguments.
    unsafe { sys::ibv_is_fork_initialized() }
}
