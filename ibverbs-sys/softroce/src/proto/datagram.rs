use super::endpoint::Endpoint;
use super::{
    Arrival, Completion, CompletionOpcode, CompletionStatus, Counter, Host, NetworkHeader,
};
use crate::wire::Packet;

/// Header fields of a datagram. The receiving queue pair checks the fields, or reports them in the
/// completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramFields {
    pub(super) queue_key: u32,
    pub(super) source: u32,
    pub(super) immediate: Option<[u8; 4]>,
    pub(super) solicited: bool,
}

/// Copies the payload of a datagram packet to the next posted receive, and completes this receive.
/// Drops the datagram, and returns `Ok`, if its queue key is wrong, if its payload is too long, or
/// if no receive is posted (IBTA 9.8.3.2).
///
/// # Errors
/// Returns the status of a receive that failed. The completion of this receive has already been
/// generated.
pub(super) fn receive(
    endpoint: &Endpoint,
    arrival: &Arrival,
    packet: &Packet<'_>,
    host: &mut impl Host,
) -> Result<(), CompletionStatus> {
    let label = packet.header.deth.map(|deth| DatagramFields {
        queue_key: deth.queue_key,
        source: deth.source,
        immediate: packet.header.immediate,
        solicited: packet.header.bth.solicited,
    });
    deliver(endpoint, &arrival.route, label, packet.payload, host)
}

/// Copies the payload of a datagram to the next posted receive, and completes this receive. `route`
/// is the GRH, which is stored in the first 40 bytes of the receive. `label` has the fields of the
/// datagram's transport headers.
///
/// Drops the datagram, and returns `Ok`, if `label` is `None` or has the wrong queue key, if the
/// payload is longer than the MTU, or if no receive is posted.
///
/// # Errors
/// Returns the status of a receive that failed. The completion of this receive has already been
/// generated.
pub(super) fn deliver(
    endpoint: &Endpoint,
    route: &[u8; 40],
    label: Option<DatagramFields>,
    payload: &[u8],
    host: &mut impl Host,
) -> Result<(), CompletionStatus> {
    let length = payload.len() as u32;
    let label = label
        .filter(|label| label.queue_key == endpoint.attributes.queue_key)
        .filter(|_| length <= endpoint.mtu());
    let Some(label) = label else {
        host.count(Counter::ReceiveDropped, 1);
        return Ok(());
    };
    let Some(receive) = host.next_receive(None) else {
        host.count(Counter::ReceiveDropped, 1);
        return Ok(());
    };
    // The payload is stored after 40 bytes for the GRH. These bytes are always filled, because
    // every RoCEv2 packet has a GRH or an IPv4 header.
    let before = route.len() as u32;
    let total = before + length;
    let scattered = if u64::from(total) > receive.length {
        Err(CompletionStatus::LocalLength)
    } else {
        host.scatter(&receive.segments, 0, route)
            .and_then(|()| match length {
                0 => Ok(()),
                _ => host.scatter(&receive.segments, before, payload),
            })
            .map_err(|_| CompletionStatus::LocalProtection)
    };
    let status = scattered.err().unwrap_or(CompletionStatus::Success);
    let mut completion = Completion::new(receive.id, status, CompletionOpcode::Receive);
    if scattered.is_ok() {
        completion = Completion {
            length: total,
            immediate: label.immediate,
            source: label.source,
            network: Some(NetworkHeader::of(route)),
            solicited: label.solicited,
            ..completion
        };
    }
    host.complete_receive(completion, None);
    scattered
}

#[cfg(test)]
mod tests {
    use crate::proto::testing::{
        Direction, Node, Pair, WireEffect, arrival, path, pattern, request,
    };
    use crate::proto::{CompletionStatus as S, Counter, Path, SendOperation, Service, State, Time};
    use crate::wire::{Packet, Transport};

    const UD: Service = Service::UnreliableDatagram;

    fn datagram(destination: u32, queue_key: u32) -> SendOperation {
        SendOperation::Datagram {
            immediate: Some([1, 2, 3, 4]),
            path: path(),
            destination,
            queue_key,
        }
    }

    fn post(node: &mut Node, id: u64, length: usize, operation: SendOperation) {
        let key = node.machine.register(pattern(length));
        let list = [node.machine.segment(key, 0, length as u32)];
        let mut request = request(id, operation, &list);
        request.solicited = true;
        node.post(request);
    }

    #[test]
    fn a_datagram_is_received_after_its_global_routing_header() {
        let mut pair = Pair::new(UD);
        let key = pair.b.machine.post_receive(1, 296);
        post(&mut pair.a, 1, 256, datagram(2, 0x1234));
        pair.run();
        assert_eq!(pair.a.machine.ends(), [(1, S::Success)]);
        let bytes = pair.b.machine.bytes(key);
        assert_eq!(bytes[..40], arrival().route);
        assert_eq!(bytes[40..], pattern(256));
        let (completion, _) = &pair.b.machine.received[0];
        assert_eq!((completion.length, completion.source), (296, 1));
        assert_eq!(completion.immediate, Some([1, 2, 3, 4]));
        assert!(completion.network.is_some() && completion.solicited);
    }

    #[test]
    fn a_datagram_is_sent_to_the_address_of_the_request() {
        let mut node = Node::ready_to_send(1, UD);
        let other = Path {
            flow_label: 77,
            ..path()
        };
        let operation = SendOperation::Datagram {
            immediate: None,
            path: other,
            destination: 9,
            queue_key: 1 << 31 | 5,
        };
        post(&mut node, 1, 8, operation);
        let mut out = Vec::new();
        let way = node
            .queue_pair
            .poll_transmit(Time::default(), &mut node.machine, &mut out);
        assert_eq!(way, Some(other));
        let header = Packet::parse(&out).unwrap().header;
        assert_eq!(header.bth.destination, 9);
        // The top bit of the requested queue key selects the key of the sending queue pair.
        assert_eq!(header.deth.unwrap().queue_key, 0x1234);
        assert_eq!(header.deth.unwrap().source, 1);
    }

    #[test]
    fn a_datagram_with_a_wrong_queue_key_or_without_a_receive_is_dropped() {
        let mut pair = Pair::new(UD);
        post(&mut pair.a, 1, 8, datagram(2, 0x1234));
        pair.run();
        pair.b.machine.post_receive(1, 100);
        post(&mut pair.a, 2, 8, datagram(2, 0x1235));
        post(&mut pair.a, 3, 8, datagram(3, 0x1234));
        pair.run();
        assert_eq!(pair.b.machine.received.len(), 0);
        assert_eq!(pair.b.machine.counted(Counter::ReceiveDropped), 2);
        assert_eq!(pair.b.machine.counted(Counter::Unaddressed), 1);
        // Datagrams to a multicast group, and duplicates, are delivered like others.
        pair.b.machine.post_receive(2, 100);
        post(&mut pair.a, 4, 8, datagram(0xff_ffff, 0x1234));
        pair.run_with(|_, _| WireEffect::Duplicate);
        assert_eq!(pair.b.machine.received.len(), 2);
        assert_eq!(pair.b.machine.events, []);
    }

    #[test]
    fn datagrams_are_sent_at_the_rate_of_their_receiver() {
        let mut pair = Pair::new(UD);
        for id in 0..1000 {
            pair.b.machine.post_receive(id, 100);
            post(&mut pair.a, id, 8, datagram(2, 0x1234));
        }
        let mut burst = 0;
        pair.run_with(|from, packet| {
            let own = packet.header.bth.opcode.transport == Transport::Manufacturer;
            burst = match from {
                Direction::A => burst + u32::from(!own),
                Direction::B => 0,
            };
            assert!(burst <= 128);
            assert!(from == Direction::A || packet.header.bth.destination == 1);
            WireEffect::Deliver
        });
        assert_eq!(pair.b.machine.received.len(), 1000);
        assert_eq!(pair.now, Time::default());
    }

    #[test]
    fn no_receipts_are_exchanged_with_groups_and_other_devices() {
        let mut node = Node::ready_to_send(1, UD);
        for id in 0..500 {
            post(&mut node, id, 8, datagram(0xff_ffff, 0x1234));
        }
        let burst = node.transmit_all(Time::default());
        assert_eq!(burst.len(), 128);
        let mut asker = Node::ready_to_send(2, UD);
        asker.queue_pair.attributes_mut().queue_key = 5;
        for id in 0..100 {
            post(&mut asker, id, 8, datagram(1, 0x1234));
        }
        for bytes in asker.transmit_all(Time::default()) {
            node.receive(Time::default(), &bytes);
        }
        assert!(node.transmit(Time::default()).is_none());
    }

    #[test]
    fn a_receive_must_have_space_for_the_global_routing_header() {
        for length in [39, 47] {
            let mut pair = Pair::new(UD);
            pair.b.machine.post_receive(1, length);
            post(&mut pair.a, 1, 8, datagram(2, 0x1234));
            pair.run();
            assert_eq!(pair.b.machine.receive_ends(), [(1, S::LocalLength)]);
            assert_eq!(pair.b.queue_pair.state(), State::Error);
        }
    }

    #[test]
    fn a_datagram_longer_than_the_mtu_is_refused() {
        let mut node = Node::ready_to_send(1, UD);
        post(&mut node, 1, 257, datagram(2, 0x1234));
        assert!(node.transmit(Time::default()).is_none());
        assert_eq!(node.machine.ends(), [(1, S::Success)]);
        assert_eq!(node.queue_pair.state(), State::ReadyToSend);
    }
}
