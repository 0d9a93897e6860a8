//! A user-space RoCEv2 device behind the libibverbs ABI: programs written for RDMA run with no NIC,
//! no kernel module and no root.
//!
//! # Inside
//! | module | is |
//! |---|---|
//! | [`wire`] | the formats: BTH and extension headers, ICRC |
//! | [`memory`], [`completion`], [`receive`], [`context`] | the objects: what they check and what they keep |
//! | [`queue_pair`], [`xrc`], [`multicast`] | queue pairs, and what groups of them share |
//! | [`limits`] | how much of everything there is |
//! | [`proto`] | the transport, free of input and output: RC, UC, UD and XRC queue pairs as state machines |

mod abi;
mod capture;
mod census;
pub mod completion;
pub mod context;
pub mod limits;
pub mod memory;
pub mod multicast;
pub mod proto;
pub mod queue_pair;
pub mod receive;
pub mod wire;
pub mod xrc;

pub use abi::install;
pub use census::{Kind, objects};
