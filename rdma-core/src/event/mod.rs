//! Asynchronous events: changes and failures of a device that are not reported by completions.

#![forbid(unsafe_code)]

mod kind;
mod object;
mod source;

pub use kind::AsyncEvent;
pub use object::AsyncEventObject;
pub use source::AsyncEvents;
