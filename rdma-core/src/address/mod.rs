//! Where datagrams go and come from: address vectors and handles, groups, steering of packets.
//!
//! A datagram queue pair is connected to nobody, so each of its requests says where it goes: a
//! [`Destination`], which is an [`AddressHandle`] (the way to a port), the queue pair's number and
//! its Q_Key. The handle is made from an [`AddressVector`], or from a datagram that came from there.

#![forbid(unsafe_code)]

mod counters;
mod flow;
mod flow_rule;
mod group;
mod handle;
mod header;
mod rate;
mod vector;

pub use counters::{Counter, Counters};
pub use flow::Flow;
pub use flow_rule::{EthernetMatch, FlowRule, Ipv4Match, Ipv6Match, PortMatch};
pub use group::{GroupMembership, multicast_gid};
pub use handle::{AddressHandle, Destination};
pub use header::{DatagramHeader, GlobalRouteHeader, Ipv4Header};
pub use rate::StaticRate;
pub use vector::AddressVector;
