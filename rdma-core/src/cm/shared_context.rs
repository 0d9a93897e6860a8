//! Contexts (open devices) that all connections of one device share.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::context::Context;
use crate::error::Result;
use crate::ffi::ContextHandle;

/// Weak references to the contexts that [`of_device`] has opened. [`of_device`] removes the
/// references to contexts that are no longer in use.
static OPEN: Mutex<Vec<Weak<ContextHandle>>> = Mutex::new(Vec::new());

/// Returns the shared context of the device with this name. Opens the device if no context from an
/// earlier call is still in use.
///
/// The crate does not use the contexts of librdmacm, because librdmacm may close them at any time.
/// A queue pair works with any context of the device: the connection manager only needs the queue
/// pair number.
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
