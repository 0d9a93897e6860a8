//! One open context for each device that connections go through.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::context::Context;
use crate::error::Result;
use crate::ffi::ContextHandle;

/// The contexts that were opened for connections and are still open.
static OPEN: Mutex<Vec<Weak<ContextHandle>>> = Mutex::new(Vec::new());

/// The device of this name, open.
///
/// librdmacm has an open context of its own for each device, and closes it when it likes. A queue
/// pair may be of any context of the device: the connection manager is told its number.
pub(super) fn of_device(name: &str) -> Result<Context> {
    let mut open = OPEN.lock();
    open.retain(|context| context.strong_count() > 0);
    let found = open
        .iter()
        .filter_map(Weak::upgrade)
        .find(|context| context.name() == name);
    if let Some(handle) = found {
        return Ok(Context::from_shared(handle));
    }
    let context = Context::open(name)?;
    open.push(Arc::downgrade(context.handle()));
    Ok(context)
}
