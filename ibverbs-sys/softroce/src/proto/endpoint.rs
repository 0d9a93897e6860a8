use super::{AccessFlags, Attributes, Sequence, Service, State};
use crate::wire::{Bth, Header, Opcode, Operation, Packet, Transport};

/// Maximum length in bytes of a message, as the device reports. Half of the maximum in the
/// specification, so that the order of sequence numbers stays unambiguous: sequence numbers wrap
/// around, and can be compared only within half of their range. With the smallest MTU (256 bytes),
/// a message uses a quarter of the range.
pub(super) const MAX_MESSAGE: u32 = 1 << 30;

/// Destination queue pair number in the packets to multicast groups (IBTA 10.5.2). No queue pair
/// has this number.
pub(super) const MULTICAST: u32 = 0xff_ffff;

/// State that both halves of a queue pair, the requester and the responder, use: the number,
/// transport service, state and attributes of the queue pair.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) number: u32,
    pub(super) service: Service,
    pub(super) state: State,
    pub(super) attributes: Attributes,
}

impl Endpoint {
    /// Returns whether the transport service of the queue pair is reliable: the peer acknowledges
    /// packets.
    pub(super) fn is_reliable(&self) -> bool {
        match self.service {
            Service::ReliableConnection | Service::XrcInitiator | Service::XrcTarget => true,
            Service::UnreliableConnection | Service::UnreliableDatagram => false,
        }
    }

    fn transport(&self) -> Transport {
        match self.service {
            Service::ReliableConnection => Transport::ReliableConnection,
            Service::UnreliableConnection => Transport::UnreliableConnection,
            Service::UnreliableDatagram => Transport::UnreliableDatagram,
            Service::XrcInitiator | Service::XrcTarget => Transport::ExtendedReliableConnection,
        }
    }

    /// Creates the header of a packet to the peer with the operation `operation` and the sequence
    /// number `sequence`.
    pub(super) fn header(&self, operation: Operation, sequence: Sequence) -> Header {
        let opcode = Opcode::new(self.transport(), operation);
        Header::new(Bth {
            partition_key: self.attributes.partition_key,
            ..Bth::new(opcode, self.attributes.destination, sequence.value())
        })
    }

    /// Returns whether a packet is addressed to this queue pair (IBTA 9.6.1.1). The packet must
    /// contain the number of the queue pair or, for datagrams, the number of multicast groups. The
    /// opcode of the packet must belong to the transport service of the queue pair, or be one of
    /// the manufacturer opcodes for this service. An XRC queue pair accepts only requests or only
    /// responses.
    pub(super) fn is_addressed(&self, packet: &Packet<'_>) -> bool {
        let bth = &packet.header.bth;
        let datagram = self.service == Service::UnreliableDatagram;
        let half = match self.service {
            Service::XrcInitiator => bth.opcode.is_response(),
            Service::XrcTarget => bth.opcode.is_request(),
            _ => true,
        };
        let service = match bth.opcode.transport {
            // Manufacturer opcodes of writes announce skipped sequence numbers of connections, and
            // those of read responses report gaps. The others are receipt requests and receipts of
            // unreliable services.
            Transport::Manufacturer if bth.opcode.is_write() => !datagram,
            Transport::Manufacturer if bth.opcode == Opcode::GAPS => self.is_reliable(),
            Transport::Manufacturer => !self.is_reliable(),
            transport => transport == self.transport(),
        };
        service
            && (bth.destination == self.number || datagram && bth.destination == MULTICAST)
            && half
    }

    /// Returns whether a packet with the partition key `partition_key` belongs to the partition of
    /// this queue pair.
    pub(super) fn is_of_partition(&self, partition_key: u16) -> bool {
        is_of_partition(self.attributes.partition_key, partition_key)
    }

    /// Returns whether this queue pair and `other` may exchange messages, because they are in the
    /// same partition. A partition is a group of queue pairs with matching partition keys.
    pub(super) fn shares_partition(&self, other: &Self) -> bool {
        is_of_partition(
            self.attributes.partition_key,
            other.attributes.partition_key,
        )
    }

    /// Returns whether the access rights of this queue pair allow RDMA writes by the peer.
    pub(super) fn allows_remote_write(&self) -> bool {
        (self.attributes.access).contains(AccessFlags::REMOTE_WRITE)
    }

    /// Returns the maximum payload of a packet in bytes: the path MTU of the queue pair.
    pub(super) fn mtu(&self) -> u32 {
        self.attributes.path_mtu.bytes() as u32
    }

    /// Returns the number of packets of a message of `length` bytes, each with at most the path MTU
    /// of payload. An empty message has one packet.
    #[inline]
    pub(super) fn packets(&self, length: u32) -> u32 {
        // 256 bytes is the smallest MTU. Most messages are shorter, and need no division.
        if length <= 256 {
            1
        } else {
            length.div_ceil(self.mtu())
        }
    }
}

/// Returns whether two partition keys match. Two keys match if both have the same partition number,
/// and at least one of them has full membership (IBTA 10.9.3).
fn is_of_partition(own: u16, other: u16) -> bool {
    let (key, full) = (0x7fff, 0x8000);
    own & key == other & key && own & key != 0 && (own | other) & full != 0
}

#[cfg(test)]
mod tests {
    use super::Endpoint;
    use crate::proto::{Attributes, Mtu, Service, State};

    fn endpoint() -> Endpoint {
        Endpoint {
            number: 7,
            service: Service::UnreliableDatagram,
            state: State::ReadyToSend,
            attributes: Attributes::default(),
        }
    }

    #[test]
    fn partition_keys_match_if_at_least_one_is_a_full_member() {
        let mut endpoint = endpoint();
        let cases = [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0xffff, true),
            (0x7fff, 0x7fff, false),
            (0xffff, 0x8001, false),
            (0x8000, 0x8000, false),
        ];
        for (own, other, expected) in cases {
            endpoint.attributes.partition_key = own;
            assert_eq!(
                endpoint.is_of_partition(other),
                expected,
                "{own:x} {other:x}"
            );
        }
    }

    #[test]
    fn an_empty_message_has_one_packet() {
        let mut endpoint = endpoint();
        endpoint.attributes.path_mtu = Mtu::Mtu256;
        let lengths = [0, 1, 256, 257, 1 << 30];
        assert_eq!(
            lengths.map(|length| endpoint.packets(length)),
            [1, 1, 1, 2, 1 << 22]
        );
    }
}
