//! The network below the transport: UDP sockets, which GIDs they are reached by, and packets with
//! their ICRC on their way out and in.
//!
//! ```text
//!  poll_transmit ──> Outbox ── ICRC, accidents, capture ──> bursts ── sendmmsg ──┐
//!                                                                                │ UDP
//!  QueuePair::receive <── Arrival, Packet <── capture, ICRC check <── recvmmsg <──┘
//! ```
//!
//! # GIDs
//! By default a process has an IPv4 address of its own in 127/8. GID 0 is that address, IPv4-mapped.
//! GID 1 is a unique local IPv6 address (RFC 4193) that carries the IPv4 address and the UDP port:
//! packets between such GIDs travel over the same socket with a whole IPv6 and UDP header
//! [in front of the BTH](tunnel), so the receiver has an IPv6 GRH. With `SOFTROCE_ADDRESS` it is the host's
//! own addresses, which is how kernel drivers and network cards are reached.

mod bind;
mod bursts;
mod delay;
mod endpoint;
mod groups;
mod inbox;
mod limits;
mod network;
mod outbox;
mod peers;
mod route;
mod shared;
mod socket;
#[cfg(test)]
mod tests;
mod tunnel;

use crate::wire::BASE;

pub(crate) use endpoint::Endpoints;
pub(crate) use inbox::Inbox;
pub(crate) use network::{DELAY, Network};
pub(crate) use outbox::{Outbox, Shares};
pub(crate) use shared::{Delivery, tag};
pub(crate) use socket::Socket;

/// Payloads of sends and writes lie at multiples of this, where processors copy them fastest: elsewhere some copies
/// take twice the time.
const GRAIN: usize = 16;

/// Distance from such a multiple to a packet's begin that puts payloads there: before the payload is the BTH, and
/// perhaps a RETH, which is as long as the grain. Payloads behind other headers, of immediate data or of a response,
/// lie elsewhere.
const FRONT: usize = GRAIN - BASE % GRAIN;

const _: () = assert!(
    tunnel::OVERHEAD.is_multiple_of(GRAIN),
    "or packets begin elsewhere than what is in front of them"
);
