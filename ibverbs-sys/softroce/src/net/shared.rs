#![forbid(unsafe_code)]
//! Packets and ring messages (short messages without packet headers) that arrive through shared
//! memory.

use std::net::Ipv6Addr;
use std::sync::Arc;

use super::network::Network;
use crate::counters::{Flow, Tally};
use crate::memory::Piece;
use crate::proto::{Arrival, Counter, Path};
use crate::same_host::{Link, Received};
use crate::transfer::{RingMessage, Volume};
use crate::wire::Packet;
use crate::wire::ip::Route;

/// Maximum number of messages that are received from a link (shared memory with another process)
/// before they are acknowledged. With a larger number, the send queue of a peer could become full
/// before the first acknowledgement arrives, and the peer would wait.
const BATCH: usize = 16;

/// Returns the tag that accompanies packets on `path` in the shared memory of `link`. The tag
/// contains the indices of the source and destination GID in the GID tables of the two processes,
/// in 4 bits each. Returns `None` if the peer does not have the destination GID, or if an index
/// does not fit.
pub(crate) fn tag(path: &Path, link: &Link) -> Option<u16> {
    let mut gids = link.gids().iter();
    let to = gids.position(|gid| *gid == path.destination)?;
    (path.source < 16 && to < 16).then_some(0x100 | u16::from(path.source) << 4 | to as u16)
}

/// Encodes the flow label, the hop limit and the traffic class of a datagram in a 64-bit word. The
/// word accompanies a datagram that is sent through shared memory. The peer process decodes the
/// word by [`route()`].
pub(super) fn annotation(route: &Route) -> u64 {
    u64::from(route.flow_label & 0xf_ffff) << 16
        | u64::from(route.hop_limit) << 8
        | u64::from(route.traffic_class)
}

/// Decodes the route of a datagram that arrived through shared memory. `annotation` contains the
/// datagram's flow label, hop limit and traffic class, as encoded by the function [`annotation`].
/// `source` and `destination` are the datagram's GIDs.
fn route(annotation: u64, source: Ipv6Addr, destination: Ipv6Addr) -> Route {
    Route {
        source,
        destination,
        source_port: 0,
        destination_port: 0,
        traffic_class: annotation as u8,
        hop_limit: (annotation >> 8) as u8,
        flow_label: (annotation >> 16) as u32 & 0xf_ffff,
    }
}

fn gids_of(tag: u16) -> (usize, usize) {
    (usize::from(tag >> 4 & 0xf), usize::from(tag & 0xf))
}

/// A packet or ring message (short message without packet headers) that has arrived through shared
/// memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Delivery<'a> {
    Packet(Packet<'a>),
    /// A ring message (short message without packet headers), and the memory of its payload in the
    /// shared ring.
    RingMessage(&'a RingMessage<'a>, &'a [Piece<'a>]),
}

impl Network {
    /// Receives packets and ring messages (short messages without packet headers) from all `links`
    /// (memory shared with other processes), and passes them to `deliver`. Calls `go_on` with the
    /// number of each queue pair that can send again because a full link now has space. Returns the
    /// number of received packets and messages.
    pub(crate) fn receive_shared(
        &self,
        links: &[Arc<Link>],
        tally: &mut Tally,
        mut deliver: impl FnMut(&Arrival, &Delivery<'_>),
        mut go_on: impl FnMut(u32),
    ) -> usize {
        let mut count = 0;
        for link in links {
            let (mut packets, mut bytes, mut volume) = (0, 0, Volume::default());
            let received = link.receive(BATCH, |tag, said| {
                match self.admit_shared(link, tag, said) {
                    Ok((arrival, delivery)) => {
                        packets += 1;
                        bytes += match said {
                            Received::Packet(bytes, _) => bytes.len(),
                            Received::RingMessage(ring_message, _) => ring_message.bytes(),
                        } as u64;
                        if let Delivery::Packet(packet) = &delivery {
                            volume.add_packet(packet.header.bth.opcode, packet.payload.len());
                        }
                        deliver(&arrival, &delivery);
                    }
                    Err(Some(reason)) => self.counters.count(reason, 1),
                    Err(None) => {}
                }
            });
            if packets > 0 {
                tally.count(Counter::ReceivedPackets, packets);
                tally.count(Counter::SharedReceivedPackets, packets);
                tally.count(Counter::ReceivedBytes, bytes);
                tally.add(Flow::RingReceived, &volume);
            }
            count += received.unwrap_or(0);
            link.resume(&mut go_on);
        }
        count
    }

    fn admit_shared<'a>(
        &self,
        link: &Link,
        tag: u16,
        said: Received<'a>,
    ) -> Result<(Arrival, Delivery<'a>), Option<Counter>> {
        if !self.faults.link_is_up() {
            return Err(None);
        }
        let (from, to) = gids_of(tag);
        let source = *link.gids().get(from).ok_or(Counter::Malformed)?;
        let destination = self.table.get(to).ok_or(Counter::Malformed)?.gid.address;
        // Only datagrams have a GRH.
        let mut global_route = [0; 40];
        let delivery = match said {
            Received::Packet(bytes, annotation) => {
                let packet = Packet::parse(bytes).map_err(|_| Counter::Malformed)?;
                if packet.header.deth.is_some() {
                    let route = route(annotation, source, destination);
                    global_route = route.headers(bytes.len()).global_route();
                }
                Delivery::Packet(packet)
            }
            Received::RingMessage(message, chunks) => Delivery::RingMessage(message, chunks),
        };
        let arrival = Arrival {
            local: to as u8,
            source,
            destination,
            route: global_route,
            slot: link.slot(),
            private: true,
        };
        Ok((arrival, delivery))
    }
}
