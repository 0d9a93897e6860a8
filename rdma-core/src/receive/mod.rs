//! Shared receive queues, and the XRC domains in which connections share them.
//!
//! A [`SharedReceiveQueue`] provides receives for every queue pair that is created with it, so a
//! server posts receives once for all of its clients. A shared receive queue [of an XRC
//! domain](SharedReceiveQueueBuilder::xrc) has a number, which senders put into each request. One
//! connection can then reach the shared receive queues of every process of a machine.

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
