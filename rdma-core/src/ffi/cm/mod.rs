//! The connection manager's objects: librdmacm's event channels and identifiers.
//!
//! librdmacm locks what identifiers share, but not an identifier: taking an event writes the
//! addresses and the device into the identifier that it is about, and into one that the caller does
//! not know before. So each channel has a lock, and everything that is done with the channel or with
//! an identifier on it is done under that lock: taking an event, every call, and destruction. No
//! call waits for a peer under it: the channel's descriptor is non-blocking, waiting is `poll(2)`
//! without the lock, and an event is copied and acknowledged before the lock is released, so that
//! destroying an identifier finds no event to wait for. (Resolving a route asks the daemon ibacm, on
//! InfiniBand and where it runs.)

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

/// The error of a call that says -1 and sets `errno`.
fn failed(verb: &'static str, object: impl Into<String>) -> Error {
    Error::verb(verb, object, Errno::last())
}

/// The result of a call that returns 0, or -1 with `errno` set.
fn checked(returned: i32, verb: &'static str, object: impl FnOnce() -> String) -> Result<()> {
    if returned == 0 {
        Ok(())
    } else {
        Err(failed(verb, object()))
    }
}
