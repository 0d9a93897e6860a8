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
//! | `nic` | the process's one NIC, which all of this is on |
//! | `net`, `engine` | its sockets, GIDs and packets with their ICRC; the thread that is there when nobody polls |
//! | [`config`], [`fault`], [`mod@counters`] | what the environment says; accidents at will; what is counted |
//! | [`proto`] | the transport, free of input and output: RC, UC, UD and XRC queue pairs as state machines |
//! | `sim` (feature `sim`) | a network in virtual time that the transport is tested on |

mod abi;
mod capture;
mod census;
pub mod completion;
pub mod config;
pub mod context;
pub mod counters;
mod engine;
pub mod fault;
pub mod limits;
pub mod memory;
pub mod multicast;
mod net;
mod nic;
pub mod proto;
pub mod queue_pair;
pub mod receive;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod wire;
pub mod xrc;

pub use abi::install;
pub use census::{Kind, objects};
pub use counters::counters;
pub use fault::faults;
