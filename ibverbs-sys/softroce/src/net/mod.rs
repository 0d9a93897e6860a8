//! The network below the transport: UDP sockets, the GIDs of the port, and packets with their ICRC
//! in both directions.
//!
//! ```text
//!     poll_transmit ──> Outbox ── ICRC, faults, capture ─────> bursts ── sendmmsg ──┐
//!                                                                                   │ UDP
//!     QueuePair::receive <── Arrival, Packet <── capture, ICRC check <── recvmmsg <──┘
//! ```
//!
//! # GIDs
//! A process has an IPv4 address of its own in 127/8. GID 0 is that address, IPv4-mapped. GID 1 is
//! a unique local IPv6 address (RFC 4193) that contains the IPv4 address and the UDP port. Packets
//! between such GIDs use the same socket, with a complete IPv6 and UDP header [in front of the
//! BTH](tunnel), so the receiver has an IPv6 GRH. The other GIDs are the addresses of the host's
//! interfaces, by which the process reaches other hosts. With `SOFTROCE_ADDRESS`, a process has
//! only the given addresses.
//!
//! The process binds all its addresses to one UDP port when the device is opened, because the port
//! is part of its queue pair numbers. A socket for packets is [opened](Network::activate) when the
//! first queue pair uses the address, so a process that only uses its loopback address receives
//! from one socket.

mod bind;
mod bursts;
mod delay;
mod endpoint;
mod follow;
mod gid_table;
mod groups;
mod hosts;
mod inbox;
mod limits;
mod network;
mod outbox;
mod path_mtu_checks;
mod peers;
mod port_holder;
mod route;
mod shared;
mod socket;
#[cfg(test)]
pub(crate) mod tests;
mod trial;
mod tunnel;

use crate::wire::BASE;

pub(crate) use endpoint::Endpoints;
pub(crate) use gid_table::GIDS;
pub(crate) use inbox::Inbox;
pub(crate) use network::{DELAY_TIMER, Network};
pub(crate) use outbox::{Outbox, SharedVolume};
pub(crate) use shared::{Delivery, tag};
pub(crate) use socket::Socket;

/// Alignment in bytes of packet payloads in buffers. Copying an unaligned payload can take twice
/// the time.
const ALIGN: usize = 16;

/// Offset at which a packet begins in a buffer, relative to a multiple of [`ALIGN`] bytes. The 12
/// bytes of the base transport header (BTH) then end at a multiple of `ALIGN`. So a payload that
/// follows the BTH, or a 16-byte RETH behind the BTH, is aligned.
const OFFSET: usize = ALIGN - BASE % ALIGN;

const _: () = assert!(
    tunnel::OVERHEAD.is_multiple_of(ALIGN),
    "or packets begin elsewhere than what is in front of them"
);
