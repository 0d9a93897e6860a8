#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;

use super::endpoint::{Endpoint, Endpoints};
use super::network::Network;
use super::route::gid_of;
use super::socket::{Message, Ring};
use super::tunnel;
use crate::address;
use crate::descriptor;
use crate::multicast::canonical;
use crate::proto::{Arrival, Counter};
use crate::wire::ip::{Headers, Route};
use crate::wire::{IcrcDifferences, Packet, Run, icrc};

/// Buffers and caches with which a thread receives packets from the sockets. Used by one thread at
/// a time.
pub(crate) struct Inbox {
    ring: Ring,
    /// Cached copy of the network's list of sockets, with the number of changes to the network's
    /// list at the time of the copy. If the network has counted more changes, the copy is outdated.
    endpoints: Option<(u64, Arc<Endpoints>)>,
    /// For each socket of the list, the number of consecutive checks that found no packet.
    empty: Vec<u32>,
    origins: HeaderCache,
    identifications: IcrcDifferences,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            ring: Ring::new(),
            endpoints: None,
            empty: Vec::new(),
            origins: HeaderCache::default(),
            identifications: IcrcDifferences::default(),
        }
    }
}

/// Cache of the last two different IP and UDP headers of received datagrams, with the results of
/// their check. If the next datagram has the same headers, the headers are not checked again, and
/// their part of the checksum (ICRC) is not computed again.
#[derive(Default)]
struct HeaderCache {
    known: [Option<(HeaderKey, CheckedHeaders)>; 2],
    /// Index of the entry that was added most recently.
    newest: usize,
}

/// Key of an entry of the [`HeaderCache`]: all properties of a datagram that determine the IP and
/// UDP headers of the datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HeaderKey {
    from: SocketAddr,
    local: SocketAddr,
    gid: u8,
    len: usize,
    traffic_class: u8,
    hop_limit: u8,
}

/// IP and UDP headers of a received datagram, with their part of the checksum (ICRC) and the result
/// of their check. The result is the sender and the GID of the packet ([`Arrival`]), or the counter
/// for the reason why the packet is dropped.
#[derive(Clone, Copy)]
struct CheckedHeaders {
    headers: Headers,
    icrc: icrc::PartialIcrc,
    arrival: Result<Arrival, Counter>,
}

/// Iterator over the valid packets in a message of the UDP socket, in which the kernel has merged
/// one or more datagrams. Each item is a run: consecutive packets of equal size, or a single
/// packet. Counts and skips invalid packets.
pub(crate) struct ReceivedRuns<'a> {
    network: &'a Network,
    endpoint: &'a Endpoint,
    message: Message<'a>,
    /// Index of the next datagram in the message.
    number: usize,
    origins: &'a mut HeaderCache,
    identifications: &'a mut IcrcDifferences,
}

impl ReceivedRuns<'_> {
    /// Returns the number of datagrams in the received message, valid or not.
    pub(crate) fn datagrams(&self) -> usize {
        self.message.datagrams()
    }
}

impl<'a> Iterator for ReceivedRuns<'a> {
    type Item = (Arrival, Run<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let payload = self.message.datagram(self.number)?;
            let admitted = self.admit(payload);
            let counters = &self.network.counters;
            match admitted {
                Ok((arrival, run)) => {
                    self.number += run.count();
                    counters.count(Counter::ReceivedPackets, run.count() as u64);
                    return Some((arrival, run));
                }
                Err(Some(reason)) => counters.count(reason, 1),
                Err(None) => {}
            }
            self.number += 1;
        }
    }
}

impl<'a> ReceivedRuns<'a> {
    /// Checks the packet in the next datagram, whose bytes are `payload`. Returns the packet's
    /// sender and GID ([`Arrival`]), and a run: this packet, and following packets of equal size
    /// that can be handled together with it.
    ///
    /// If the packet must be dropped, returns as the error the counter for the reason, or `None` if
    /// the drop is not counted.
    fn admit(&mut self, payload: &'a [u8]) -> Result<(Arrival, Run<'a>), Option<Counter>> {
        let (network, endpoint) = (self.network, self.endpoint);
        if !network.faults.link_is_up() {
            return Err(None);
        }
        if self.message.truncated {
            return Err(Some(Counter::Malformed));
        }
        let (outer, bytes) = match endpoint.tunnelled {
            Some(gid) if tunnel::is_tunnelled(payload) => {
                let (headers, bytes) = tunnel::open(payload).ok_or(Counter::Malformed)?;
                let outer = CheckedHeaders {
                    headers,
                    icrc: headers.begin_icrc(),
                    arrival: self.arrival(gid, &headers),
                };
                (outer, bytes)
            }
            _ => (self.outer(payload.len()), payload),
        };
        let headers = outer.headers;
        network.capture(&headers, bytes);
        let (transport, sent) = icrc::split(bytes).ok_or(Counter::Malformed)?;
        network
            .counters
            .count(Counter::ReceivedBytes, bytes.len() as u64);
        // The cheaper check is made before that of the ICRC.
        let arrival = outer.arrival?;
        let from = self.message.from;
        let hides = hides_identification(&headers, from);
        let identifications = &mut *self.identifications;
        let mut is_right = |transport: &[u8], sent: u32| {
            let difference = outer.icrc.finish(transport) ^ sent;
            difference == 0 || hides && identifications.is_explained(difference, transport.len())
        };
        if !is_right(transport, sent) {
            return Err(Some(Counter::WrongIcrc));
        }
        network.hosts.record(network.base, from);
        let packet = Packet::parse(transport).map_err(|_| Counter::Malformed)?;
        if network.receive_trial(endpoint.socket.local().ip(), &arrival, &packet.header) {
            return Err(None);
        }
        // Captured packets are not merged to runs, since each is recorded separately. Packets in a
        // tunnel are not merged either, since each has its own headers.
        if network.is_captured() || bytes.len() != self.message.segment {
            return Ok((arrival, Run::of_packet(packet)));
        }
        let rest = &self.message.bytes[self.number * self.message.segment..];
        let run = Run::gather(packet, rest, self.message.segment, |datagram| {
            icrc::split(datagram).is_some_and(|(transport, sent)| is_right(transport, sent))
        });
        let others = (run.count() - 1) * bytes.len();
        if others > 0 {
            let counters = &network.counters;
            counters.count(Counter::ReceivedBytes, others as u64);
        }
        Ok((arrival, run))
    }

    /// Checks the IP and UDP headers of a packet that arrived at the GID with the index `gid`.
    /// Returns the packet's arrival data for the transport. If the packet must be dropped, returns
    /// the counter for the reason.
    fn arrival(&self, gid: u8, headers: &Headers) -> Result<Arrival, Counter> {
        let route = headers.route();
        let from = self.message.from;
        let slot = if Some(gid) != self.endpoint.tunnelled {
            address::slot_of_sender(self.network.base, from).map_err(|_| Counter::Unaddressed)?
        } else if is_sender(&route, from) {
            // The GID of a tunnel contains the port.
            None
        } else {
            return Err(Counter::Malformed);
        };
        let own = self.network.table.get(gid.into());
        let own = own.ok_or(Counter::Unaddressed)?.gid.address;
        let destination = match canonical(route.destination) {
            Some(group) => group,
            None if route.destination == own => own,
            None => return Err(Counter::Unaddressed),
        };
        Ok(Arrival {
            local: gid,
            source: route.source,
            destination,
            route: headers.global_route(),
            slot,
            private: false,
        })
    }

    /// Returns the IP and UDP headers of a received datagram of `len` bytes, and the result of
    /// their check. The datagram contains no tunnelled packet (IPv6 packet in an IPv4 datagram).
    /// Uses the cached result of an earlier datagram with the same sender, destination, length,
    /// traffic class and hop limit, if there is one.
    fn outer(&mut self, len: usize) -> CheckedHeaders {
        let (endpoint, message) = (self.endpoint, &self.message);
        let origin = HeaderKey {
            from: message.from,
            local: endpoint.socket.local(),
            gid: endpoint.gid,
            len,
            traffic_class: message.traffic_class,
            hop_limit: message.hop_limit,
        };
        let is_known = |(known, _): &&(HeaderKey, CheckedHeaders)| *known == origin;
        if let Some((_, outer)) = self.origins.known.iter().flatten().find(is_known) {
            return *outer;
        }
        let headers = outer(endpoint, message, len);
        let found = CheckedHeaders {
            headers,
            icrc: headers.begin_icrc(),
            arrival: self.arrival(endpoint.gid, &headers),
        };
        // Senders whose packets are dropped do not displace accepted ones from the cache.
        if found.arrival.is_ok() {
            self.origins.newest ^= 1;
            self.origins.known[self.origins.newest] = Some((origin, found));
        }
        found
    }
}

/// Number of consecutive checks that must find a socket empty before a polling thread checks the
/// socket less often. A lower number would delay packets to sockets that are used occasionally. A
/// higher number would cost more time for unused sockets.
const EMPTY_CHECKS: u32 = 64;

/// Number of polls from one check of an unused socket to the next. A socket counts as unused if
/// more than [`EMPTY_CHECKS`] consecutive checks have found no packet. Polls thus spend little time
/// on unused sockets, and a packet to such a socket waits only for a few polls.
const SKIP_INTERVAL: u32 = 16;

impl Network {
    /// Receives one batch of datagrams from each socket, into the buffers of `inbox`. Calls
    /// `deliver` for each received message, which may contain several datagrams. Returns the number
    /// of received datagrams, valid or not.
    ///
    /// If `is_thorough` is not set, a socket that has been empty for some time is checked only in
    /// one of [`SKIP_INTERVAL`] calls. A polling thread thus spends little time on unused
    /// addresses. A single socket is always checked.
    pub(crate) fn receive(
        &self,
        inbox: &mut Inbox,
        is_thorough: bool,
        mut deliver: impl FnMut(ReceivedRuns<'_>),
    ) -> usize {
        let mut datagrams = 0;
        let Inbox {
            ring,
            endpoints: known,
            empty,
            origins,
            identifications,
        } = inbox;
        let changes = self.endpoints_changes();
        if known.as_ref().is_none_or(|(of, _)| *of != changes) {
            *known = None;
        }
        let (_, endpoints) = known.get_or_insert_with(|| {
            let endpoints = self.endpoints();
            empty.clear();
            empty.resize(endpoints.iter().count(), 0);
            (changes, endpoints)
        });
        let is_alone = empty.len() == 1;
        for (endpoint, empty) in endpoints.iter().zip(empty.iter_mut()) {
            let rests = (EMPTY_CHECKS + 1..EMPTY_CHECKS + SKIP_INTERVAL).contains(empty);
            if rests && !is_thorough && !is_alone {
                *empty += 1;
                continue;
            }
            // Probably a socket that was empty is empty again.
            let received = endpoint.socket.receive(ring, *empty > 0);
            let count = received.unwrap_or_else(|error| {
                // Other errors belong to an earlier datagram, or are a temporary lack of memory.
                if matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK)) {
                    descriptor::report_loss();
                }
                0
            });
            *empty = match count {
                0 if *empty < EMPTY_CHECKS + SKIP_INTERVAL => *empty + 1,
                0 => EMPTY_CHECKS + 1,
                _ => 0,
            };
            for index in 0..count {
                let message = ring.message(index);
                datagrams += message.datagrams();
                deliver(ReceivedRuns {
                    network: self,
                    endpoint,
                    message,
                    number: 0,
                    origins,
                    identifications,
                });
            }
        }
        datagrams
    }
}

/// Reconstructs and returns the IP and UDP headers of a received datagram of `len` bytes. The
/// checksum of the packet (ICRC) covers the headers, but a UDP socket does not report them.
fn outer(endpoint: &Endpoint, message: &Message<'_>, len: usize) -> Headers {
    let local = endpoint.socket.local();
    let route = Route {
        source: gid_of(message.from.ip()),
        destination: gid_of(local.ip()),
        source_port: message.from.port(),
        destination_port: local.port(),
        traffic_class: message.traffic_class,
        hop_limit: message.hop_limit,
        flow_label: 0,
    };
    route.headers(len.saturating_sub(4))
}

/// Returns whether the IPv4 identification of a received packet is unknown. The checksum (ICRC)
/// covers this header field, but a UDP socket does not report its value. `headers` are the headers
/// of the packet. Returns `false` for IPv6, which has no identification, and for senders in 127/8,
/// which always use 0.
fn hides_identification(headers: &Headers, from: SocketAddr) -> bool {
    matches!(headers, Headers::V4 { .. }) && !from.ip().is_loopback()
}

/// Returns whether the source GID of a tunnelled packet (IPv6 packet in an IPv4 datagram) belongs
/// to the sender of the datagram. The GID contains an IPv4 address and a UDP port. Both values must
/// equal those of `from`, the address from which the datagram came. Otherwise the GID is forged.
fn is_sender(route: &Route, from: SocketAddr) -> bool {
    let address_in_gid = address::address_in_gid(route.source).map(SocketAddr::V4);
    address_in_gid == Some(from) && route.source_port == from.port()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Returns whether a receiver that does not know the IPv4 identification of a packet from
    /// `from` accepts the packet. The checksum (ICRC) is computed with the identification
    /// `identification`. Then one byte is changed by an exclusive or with `damage`. The receiver
    /// accepts each packet whose checksum is correct for some identification.
    fn excused(from: Ipv4Addr, identification: u16, damage: u8) -> bool {
        let route = Route {
            source: from.to_ipv6_mapped(),
            destination: Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped(),
            source_port: 0xc000,
            destination_port: 4791,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let transport = [7; 40];
        let Headers::V4 { mut ip, udp } = route.headers(transport.len()) else {
            panic!("IPv4")
        };
        ip[4..6].copy_from_slice(&identification.to_be_bytes());
        let sent = icrc::ipv4(&ip, &udp, &transport);
        let mut arrived = transport;
        arrived[30] ^= damage;
        let from = SocketAddr::from((from, 0xc000));
        let headers = route.headers(transport.len());
        let difference = headers.icrc(&arrived) ^ sent;
        hides_identification(&headers, from)
            && IcrcDifferences::default().is_explained(difference, transport.len())
    }

    #[test]
    fn the_identification_of_a_remote_sender_is_unknown() {
        let elsewhere = Ipv4Addr::new(10, 0, 0, 1);
        assert!(excused(elsewhere, 0x1234, 0));
        assert!(!excused(elsewhere, 0x1234, 1));
        assert!(!excused(Ipv4Addr::new(127, 1, 1, 1), 0x1234, 0));
    }
}
