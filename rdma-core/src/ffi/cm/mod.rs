//! The connection manager's objects: librdmacm's event channels and identifiers.
//!
//! librdmacm locks the data that identifiers share, but not an identifier itself. Reading an event
//! writes addresses and the device into the identifier of the event, and the caller does not know
//! in advance which identifier that is. Therefore each channel has a lock. Every operation on the
//! channel, or on an identifier on the channel, holds that lock: reading an event, every call, and
//! destruction.
//!
//! No call waits for a peer while it holds the lock. The channel's descriptor is non-blocking, and
//! a thread waits by `poll(2)` without the lock. An event is copied and acknowledged before the
//! lock is released, so that destroying an identifier never waits for an event. (On InfiniBand,
//! resolving a route queries the daemon ibacm if it runs.)

mod address_info;
mod calls;
mod channel;
mod event;
mod id;
mod socket_address;

pub(crate) use address_info::{InfoQuery, RawInfo, address_info};
pub(crate) use channel::EventChannelHandle;
pub(crate) use event::{RawEvent, RawParameters};
pub(crate) use id::IdHandle;

use crate::error::{Errno, Error, Result};

/// Returns the error of the call `verb` on `object`, which has just failed. Reads the error number
/// from `errno`.
fn failed(verb: &'static str, object: impl Into<String>) -> Error {
    Error::verb(verb, object, Errno::last())
}

/// Converts the return value of a librdmacm call to a `Result`. The value is 0 on success, or -1
/// with the error number in `errno`. The error contains the name `verb` of the call, and the
/// description that `object` returns.
fn checked(returned: i32, verb: &'static str, object: impl FnOnce() -> String) -> Result<()> {
    if returned == 0 {
        Ok(())
    } else {
        // Building the description may change `errno`.
        let errno = Errno::last();
        Err(Error::verb(verb, object(), errno))
    }
}
