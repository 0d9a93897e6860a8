use std::sync::Once;

use super::guard;
use crate::nic::Nic;

/// Registers a handler that sends delayed acknowledgements to peers when the process exits.
///
/// Must be called at the first use of the device.
pub(crate) fn register_handler() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler may run at any time after this. A library that contains it is not
        // unloaded before, because the engine thread runs its code.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    guard((), Nic::send_delayed_responses);
}
