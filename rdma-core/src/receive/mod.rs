//! Receives shared by many queue pairs, and the domains that XRC shares them in.
//!
//! A [`SharedReceiveQueue`] holds memory for messages of every queue pair made with it, so a server
//! posts receives once for all of its clients. Of a shared queue that is [of an XRC
//! domain](SharedReceiveQueueBuilder::xrc), senders say the number with each request, so that one
//! connection serves every process of a machine.

#![forbid(unsafe_code)]

mod batch;
mod shared;
mod xrc_domain;

pub use batch::SharedReceiveBatch;
pub use shared::{
    SharedReceiveQueue, SharedReceiveQueueAttributes, SharedReceiveQueueBuilder,
    SharedReceiveQueueId,
};
pub use xrc_domain::{XrcDomain, XrcDomainOpening};
