use std::sync::Once;

use super::guard;
use crate::nic::Nic;

/// From now on what is owed to peers goes when the process ends by itself.
///
/// Called when the device is used for the first time.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler may run at any time after this, and a library that holds it is never unloaded before, since
        // the engine thread runs its code.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    guard((), Nic::farewell);
}
