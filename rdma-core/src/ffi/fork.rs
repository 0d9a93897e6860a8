//! What `fork` does to registered memory.

use ibverbs_sys as sys;

use super::context::positive;
use crate::error::{Error, Result};

/// `ibv_fork_init`.
pub(crate) fn fork_init() -> Result<()> {
    // SAFETY: there are no arguments; the call changes what the library does from now on.
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

/// `ibv_is_fork_initialized`.
pub(crate) fn fork_status() -> sys::ibv_fork_status {
    // SAFETY: there are no arguments.
    unsafe { sys::ibv_is_fork_initialized() }
}
