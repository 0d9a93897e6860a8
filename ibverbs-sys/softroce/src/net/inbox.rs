#![forbid(unsafe_code)]

use std::net::SocketAddr;

use super::network::{Endpoint, Network};
use super::route::gid_of;
use super::socket::{Message, Ring};
use super::{address, tunnel};
use crate::multicast::canonical;
use crate::proto::{Arrival, Counter};
use crate::wire::ip::{Headers, Route};
use crate::wire::{Packet, icrc};

/// Where packets are received to; for one who receives at a time.
pub(crate) struct Inbox {
    ring: Ring,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { ring: Ring::new() }
    }
}

/// The packets of datagrams that came together, those that are right. The others are counted.
pub(crate) struct Arrived<'a> {
    network: &'a Network,
    endpoint: &'a Endpoint,
    message: Message<'a>,
    /// That of the next datagram.
    number: usize,
    /// The headers that datagrams of a length come with: most have the same.
    outer: Option<(usize, Headers)>,
    /// What was found in the headers of the last packet.
    arrival: Option<(Headers, Arrival)>,
}

impl Arrived<'_> {
    /// Whether it is no more than one datagram.
    pub(crate) fn is_alone(&self) -> bool {
        self.message.datagrams() == 1
    }
}

impl<'a> Iterator for Arrived<'a> {
    type Item = (Arrival, Packet<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let payload = self.message.datagram(self.number)?;
            let admitted = self.admit(payload);
            self.number += 1;
            let counters = &self.network.counters;
            match admitted {
                Ok(admitted) => {
                    counters.count(Counter::ReceivedPackets, 1);
                    return Some(admitted);
                }
                Err(Some(reason)) => counters.count(reason, 1),
                Err(None) => {}
            }
        }
    }
}

impl<'a> Arrived<'a> {
    /// The packet in the next datagram if it is right; else what it counts as.
    fn admit(&mut self, payload: &'a [u8]) -> Result<(Arrival, Packet<'a>), Option<Counter>> {
        let (network, endpoint) = (self.network, self.endpoint);
        if !network.faults.link_is_up() {
            return Err(None);
        }
        if self.message.truncated {
            return Err(Some(Counter::Malformed));
        }
        let (gid, headers, bytes) = match endpoint.tunnelled {
            Some(gid) if tunnel::is_tunnelled(payload) => {
                let opened = tunnel::open(payload).ok_or(Counter::Malformed)?;
                (gid, opened.0, opened.1)
            }
            _ => (endpoint.gid, self.outer(payload.len()), payload),
        };
        network.capture(&headers, bytes);
        let (transport, sent) = icrc::split(bytes).ok_or(Counter::Malformed)?;
        network
            .counters
            .count(Counter::ReceivedBytes, bytes.len() as u64);
        let from = self.message.from;
        let difference = headers.icrc(transport) ^ sent;
        if difference != 0 && !is_excused(&headers, from, transport.len(), difference) {
            return Err(Some(Counter::WrongIcrc));
        }
        let arrival = match self.arrival {
            Some((known, arrival)) if known == headers => arrival,
            _ => {
                let arrival = self.arrival(gid, &headers)?;
                self.arrival = Some((headers, arrival));
                arrival
            }
        };
        let packet = Packet::parse(transport).map_err(|_| Counter::Malformed)?;
        Ok((arrival, packet))
    }

    /// What headers say of a packet to this GID, if they may.
    fn arrival(&self, gid: u8, headers: &Headers) -> Result<Arrival, Counter> {
        let route = headers.route();
        if Some(gid) == self.endpoint.tunnelled && !is_sender(&route, self.message.from) {
            return Err(Counter::Malformed);
        }
        let own = self.network.addresses()[usize::from(gid)];
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
        })
    }

    /// The headers that a datagram of so many bytes must have come with.
    fn outer(&mut self, len: usize) -> Headers {
        match self.outer {
            Some((known, headers)) if known == len => headers,
            _ => {
                let headers = outer(self.endpoint, &self.message, len);
                self.outer = Some((len, headers));
                headers
            }
        }
    }
}

impl Network {
    /// Takes one batch of what has come to each socket, and hands on what came together: to whom the packets
    /// are is not looked at here. How many datagrams came, right or wrong.
    pub(crate) fn receive(&self, inbox: &mut Inbox, mut deliver: impl FnMut(Arrived<'_>)) -> usize {
        let mut datagrams = 0;
        let endpoints = self.endpoints();
        for endpoint in endpoints.iter() {
            // An error is that of an earlier datagram, or want of memory; the next time there is another answer.
            let count = endpoint.socket.receive(&mut inbox.ring).unwrap_or(0);
            for index in 0..count {
                let message = inbox.ring.message(index);
                datagrams += message.datagrams();
                deliver(Arrived {
                    network: self,
                    endpoint,
                    message,
                    number: 0,
                    outer: None,
                    arrival: None,
                });
            }
        }
        datagrams
    }
}

/// The headers that a datagram of so many bytes must have come with.
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

/// Whether an ICRC that does not fit may be right all the same: the sender's IPv4 header has an identification that a UDP
/// socket does not show. Senders in 127/8 are such as this one, whose identification is 0.
fn is_excused(headers: &Headers, from: SocketAddr, transport: usize, difference: u32) -> bool {
    match headers {
        Headers::V4 { .. } if !from.ip().is_loopback() => {
            icrc::is_identification(difference, transport)
        }
        _ => false,
    }
}

/// Whether a packet in a tunnel says that it comes from where it comes from.
fn is_sender(route: &Route, from: SocketAddr) -> bool {
    let carried = address::carried(route.source).map(SocketAddr::V4);
    carried == Some(from) && route.source_port == from.port()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Whether an ICRC that was made with an identification is excused, from a sender.
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
        is_excused(&headers, from, transport.len(), difference)
    }

    #[test]
    fn the_identification_of_a_sender_elsewhere_is_not_known() {
        let elsewhere = Ipv4Addr::new(10, 0, 0, 1);
        assert!(excused(elsewhere, 0x1234, 0));
        assert!(!excused(elsewhere, 0x1234, 1));
        assert!(!excused(Ipv4Addr::new(127, 1, 1, 1), 0x1234, 0));
    }
}
