//! Objects on which all other verbs objects depend: the opened device with its asynchronous events,
//! the domains, the address handles, and the usage counts of objects.
#![forbid(unsafe_code)]

mod address_handle;
mod device_context;
mod domain;
mod element;
mod event_queue;
mod refusal;
mod usage;

pub use address_handle::AddressHandle;
pub use device_context::{AsyncEvent, Context, Subject};
pub use domain::{DomainId, ProtectionDomain, ThreadDomain};
pub use element::Element;
pub use event_queue::EventQueue;
pub(crate) use event_queue::decrement;
pub use refusal::Refusal;
pub use usage::{HasUsage, InUse, Usage};
