//! Addresses of datagrams: address vectors, address handles, multicast groups, and flow steering.
//!
//! A datagram queue pair has no fixed peer, so each of its requests contains a [`Destination`]: an
//! [`AddressHandle`] (the path to a port), the queue pair number and the Q_Key. The handle is
//! created from an [`AddressVector`], or from a received datagram for a reply.

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
