//! Asynchronous events: what happens at a device and no completion tells.

#![forbid(unsafe_code)]

mod kind;
mod object;
mod source;

pub use kind::AsyncEvent;
pub use object::AsyncEventObject;
pub use source::AsyncEvents;
