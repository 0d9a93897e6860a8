//! Rules of flow steering: match conditions and actions.

use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr};

use ibverbs_sys as sys;

use super::Counters;
use crate::error::{Error, Result};

/// A rule of flow steering: the conditions that select the packets of a [`Flow`](super::Flow), and
/// the actions on these packets. A packet matches if its headers meet every condition of the rule.
///
/// ```
/// use rdma_core::address::{EthernetMatch, FlowRule, PortMatch};
///
/// let ethernet = EthernetMatch { destination: Some([2, 0, 0, 0, 0, 1]), ..Default::default() };
/// let udp = PortMatch { destination: Some(4791), ..Default::default() };
/// let rule = FlowRule::matching(1).ethernet(&ethernet).udp(&udp).priority(2);
/// # drop(rule);
/// ```
#[doc(alias = "ibv_flow_attr")]
#[derive(Debug, Clone)]
#[must_use = "a rule does nothing until a queue pair is steered by it"]
pub struct FlowRule {
    kind: sys::ibv_flow_attr_type,
    port: u8,
    priority: u16,
    flags: u32,
    count: usize,
    /// The C structs of the conditions and actions, without gaps between them.
    layers: Vec<u8>,
    counters: Vec<Counters>,
}

/// Conditions on the Ethernet header of a packet. `None` matches every value.
#[doc(alias = "ibv_flow_spec_eth")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EthernetMatch {
    /// The destination MAC address.
    pub destination: Option<[u8; 6]>,
    /// The source MAC address.
    pub source: Option<[u8; 6]>,
    /// The EtherType. If the frame has a VLAN tag, the EtherType after the tag.
    pub ether_type: Option<u16>,
    /// The VLAN tag, 12 bits.
    pub vlan: Option<u16>,
}

/// Conditions on the IPv4 header of a packet. `None` matches every value. The prefix length of an
/// address is the number of its leading bits that must match, up to 32.
#[doc(alias = "ibv_flow_spec_ipv4_ext")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ipv4Match {
    /// The source address, with its prefix length.
    pub source: Option<(Ipv4Addr, u8)>,
    /// The destination address, with its prefix length.
    pub destination: Option<(Ipv4Addr, u8)>,
    /// The protocol of the payload.
    pub protocol: Option<u8>,
    /// The type of service: DSCP and ECN.
    pub traffic_class: Option<u8>,
    /// The time to live.
    pub time_to_live: Option<u8>,
}

/// Conditions on the IPv6 header of a packet. `None` matches every value. The prefix length of an
/// address is the number of its leading bits that must match, up to 128.
#[doc(alias = "ibv_flow_spec_ipv6")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ipv6Match {
    /// The source address, with its prefix length.
    pub source: Option<(Ipv6Addr, u8)>,
    /// The destination address, with its prefix length.
    pub destination: Option<(Ipv6Addr, u8)>,
    /// The flow label, 20 bits.
    pub flow_label: Option<u32>,
    /// The type of the next header.
    pub next_header: Option<u8>,
    /// The traffic class.
    pub traffic_class: Option<u8>,
    /// The hop limit.
    pub hop_limit: Option<u8>,
}

/// Conditions on the TCP or UDP header of a packet. `None` matches every value.
#[doc(alias = "ibv_flow_spec_tcp_udp")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PortMatch {
    /// The source port.
    pub source: Option<u16>,
    /// The destination port.
    pub destination: Option<u16>,
}

impl FlowRule {
    fn new(kind: sys::ibv_flow_attr_type, port: u8) -> Self {
        Self {
            kind,
            port,
            priority: 0,
            flags: 0,
            count: 0,
            layers: Vec::new(),
            counters: Vec::new(),
        }
    }

    /// Creates a rule for packets that the device port with the number `port` receives. A packet
    /// matches if it meets all conditions that are added to the rule, for example by
    /// [`Self::ipv4`].
    #[doc(alias = "IBV_FLOW_ATTR_NORMAL")]
    pub fn matching(port: u8) -> Self {
        Self::new(sys::ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL, port)
    }

    /// Creates a rule for all received packets of the port `port` that match no other rule.
    #[doc(alias = "IBV_FLOW_ATTR_ALL_DEFAULT")]
    pub fn all_others(port: u8) -> Self {
        Self::new(sys::ibv_flow_attr_type::IBV_FLOW_ATTR_ALL_DEFAULT, port)
    }

    /// Creates a rule for all received multicast packets of the port `port` that match no other
    /// rule.
    #[doc(alias = "IBV_FLOW_ATTR_MC_DEFAULT")]
    pub fn multicast_others(port: u8) -> Self {
        Self::new(sys::ibv_flow_attr_type::IBV_FLOW_ATTR_MC_DEFAULT, port)
    }

    /// Creates a rule that delivers a copy of every packet of the port `port` to the queue pair of
    /// the flow.
    #[doc(alias = "IBV_FLOW_ATTR_SNIFFER")]
    pub fn sniffer(port: u8) -> Self {
        Self::new(sys::ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER, port)
    }

    /// Sets the priority of the rule. If several rules match a packet, the rule with the smallest
    /// number applies. The default is 0.
    pub fn priority(mut self, priority: u16) -> Self {
        self.priority = priority;
        self
    }

    /// Makes the rule pass matching packets on. Rules with larger priority numbers can then match
    /// the same packets.
    #[doc(alias = "IBV_FLOW_ATTR_FLAGS_DONT_TRAP")]
    pub fn pass_on(mut self) -> Self {
        self.flags |= sys::ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_DONT_TRAP.0;
        self
    }

    /// Applies the rule to packets that the port sends. By default a rule applies to received
    /// packets.
    #[doc(alias = "IBV_FLOW_ATTR_FLAGS_EGRESS")]
    pub fn egress(mut self) -> Self {
        self.flags |= sys::ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_EGRESS.0;
        self
    }

    /// Adds conditions on the Ethernet header. The rule then matches only packets that meet these
    /// conditions.
    #[doc(alias = "IBV_FLOW_SPEC_ETH")]
    pub fn ethernet(self, frames: &EthernetMatch) -> Self {
        type Spec = sys::ibv_flow_spec_eth;
        type Filter = sys::ibv_flow_eth_filter;
        let value = offset_of!(Spec, val);
        let mask = offset_of!(Spec, mask);
        self.layer(
            sys::ibv_flow_spec_type::IBV_FLOW_SPEC_ETH,
            size_of::<Spec>(),
            |layer| {
                let mut field =
                    |at, bytes: Option<&[u8]>| layer.exact(value + at, mask + at, bytes);
                let numbers = [frames.ether_type, frames.vlan].map(|it| it.map(u16::to_be_bytes));
                field(offset_of!(Filter, dst_mac), slice(&frames.destination));
                field(offset_of!(Filter, src_mac), slice(&frames.source));
                field(offset_of!(Filter, ether_type), slice(&numbers[0]));
                field(offset_of!(Filter, vlan_tag), slice(&numbers[1]));
            },
        )
    }

    /// Adds conditions on the IPv4 header. The rule then matches only packets that meet these
    /// conditions.
    #[doc(alias = "IBV_FLOW_SPEC_IPV4_EXT")]
    pub fn ipv4(self, packets: &Ipv4Match) -> Self {
        type Spec = sys::ibv_flow_spec_ipv4_ext;
        type Filter = sys::ibv_flow_ipv4_ext_filter;
        let value = offset_of!(Spec, val);
        let mask = offset_of!(Spec, mask);
        let kind = sys::ibv_flow_spec_type::IBV_FLOW_SPEC_IPV4_EXT;
        self.layer(kind, size_of::<Spec>(), |layer| {
            let addresses = [
                (offset_of!(Filter, src_ip), packets.source),
                (offset_of!(Filter, dst_ip), packets.destination),
            ];
            for (at, address) in addresses {
                if let Some((address, bits)) = address {
                    layer.masked(value + at, mask + at, &address.octets(), &leading(bits));
                }
            }
            let bytes = [
                (offset_of!(Filter, proto), packets.protocol),
                (offset_of!(Filter, tos), packets.traffic_class),
                (offset_of!(Filter, ttl), packets.time_to_live),
            ];
            for (at, byte) in bytes {
                layer.exact(value + at, mask + at, slice(&byte.map(|byte| [byte])));
            }
        })
    }

    /// Adds conditions on the IPv6 header. The rule then matches only packets that meet these
    /// conditions.
    #[doc(alias = "IBV_FLOW_SPEC_IPV6")]
    pub fn ipv6(self, packets: &Ipv6Match) -> Self {
        type Spec = sys::ibv_flow_spec_ipv6;
        type Filter = sys::ibv_flow_ipv6_filter;
        let value = offset_of!(Spec, val);
        let mask = offset_of!(Spec, mask);
        let kind = sys::ibv_flow_spec_type::IBV_FLOW_SPEC_IPV6;
        self.layer(kind, size_of::<Spec>(), |layer| {
            let addresses = [
                (offset_of!(Filter, src_ip), packets.source),
                (offset_of!(Filter, dst_ip), packets.destination),
            ];
            for (at, address) in addresses {
                if let Some((address, bits)) = address {
                    layer.masked(value + at, mask + at, &address.octets(), &leading(bits));
                }
            }
            if let Some(label) = packets.flow_label {
                let at = offset_of!(Filter, flow_label);
                let significant = 0xf_ffff_u32.to_be_bytes();
                layer.masked(value + at, mask + at, &label.to_be_bytes(), &significant);
            }
            let bytes = [
                (offset_of!(Filter, next_hdr), packets.next_header),
                (offset_of!(Filter, traffic_class), packets.traffic_class),
                (offset_of!(Filter, hop_limit), packets.hop_limit),
            ];
            for (at, byte) in bytes {
                layer.exact(value + at, mask + at, slice(&byte.map(|byte| [byte])));
            }
        })
    }

    /// Adds conditions on the UDP header. The rule then matches only packets that meet these
    /// conditions.
    #[doc(alias = "IBV_FLOW_SPEC_UDP")]
    pub fn udp(self, packets: &PortMatch) -> Self {
        self.ports(sys::ibv_flow_spec_type::IBV_FLOW_SPEC_UDP, packets)
    }

    /// Adds conditions on the TCP header. The rule then matches only packets that meet these
    /// conditions.
    #[doc(alias = "IBV_FLOW_SPEC_TCP")]
    pub fn tcp(self, packets: &PortMatch) -> Self {
        self.ports(sys::ibv_flow_spec_type::IBV_FLOW_SPEC_TCP, packets)
    }

    fn ports(self, kind: sys::ibv_flow_spec_type, packets: &PortMatch) -> Self {
        type Spec = sys::ibv_flow_spec_tcp_udp;
        type Filter = sys::ibv_flow_tcp_udp_filter;
        let value = offset_of!(Spec, val);
        let mask = offset_of!(Spec, mask);
        self.layer(kind, size_of::<Spec>(), |layer| {
            let ports = [
                (offset_of!(Filter, src_port), packets.source),
                (offset_of!(Filter, dst_port), packets.destination),
            ];
            for (at, port) in ports {
                layer.exact(value + at, mask + at, slice(&port.map(u16::to_be_bytes)));
            }
        })
    }

    /// Adds the tag `number` to the packets that match this flow rule. The completion of such a
    /// packet reports the tag.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_TAG")]
    pub fn tag(self, number: u32) -> Self {
        type Spec = sys::ibv_flow_spec_action_tag;
        let kind = sys::ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_TAG;
        self.layer(kind, size_of::<Spec>(), |layer| {
            layer.put(offset_of!(Spec, tag_id), &number.to_ne_bytes());
        })
    }

    /// Makes the device discard packets that match this rule.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_DROP")]
    pub fn discard(self) -> Self {
        type Spec = sys::ibv_flow_spec_action_drop;
        let kind = sys::ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_DROP;
        self.layer(kind, size_of::<Spec>(), |_| {})
    }

    /// Makes the device count the packets that match this rule in `counters`. The program must call
    /// [`Counters::attach`] first, to select the counted quantity (packets or bytes).
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_COUNT")]
    pub fn count(mut self, counters: &Counters) -> Self {
        type Spec = sys::ibv_flow_spec_counter_action;
        let kind = sys::ibv_flow_spec_type::IBV_FLOW_SPEC_ACTION_COUNT;
        self.counters.push(counters.clone());
        let address = counters.as_raw().expose_provenance().to_ne_bytes();
        self.layer(kind, size_of::<Spec>(), |layer| {
            layer.put(offset_of!(Spec, counters), &address);
        })
    }

    /// Appends a condition or an action to this flow rule, as a C struct of the type `kind` and of
    /// `size` bytes. This method writes the type and the size at the beginning of the struct.
    /// `fill` writes the other fields.
    fn layer(
        mut self,
        kind: sys::ibv_flow_spec_type,
        size: usize,
        fill: impl FnOnce(&mut Layer<'_>),
    ) -> Self {
        type Head = sys::ibv_flow_spec_action_drop;
        let begin = self.layers.len();
        self.layers.resize(begin + size, 0);
        let mut layer = Layer(&mut self.layers[begin..]);
        layer.put(offset_of!(Head, type_), &kind.0.to_ne_bytes());
        // The largest struct is far smaller than 2^16 bytes.
        layer.put(offset_of!(Head, size), &(size as u16).to_ne_bytes());
        fill(&mut layer);
        self.count += 1;
        self
    }

    /// Returns the C struct of the rule, and the bytes of the C structs of the conditions and
    /// actions. In memory, these bytes must directly follow the C struct of the rule.
    pub(crate) fn attributes(&self) -> Result<(sys::ibv_flow_attr, &[u8])> {
        let size = size_of::<sys::ibv_flow_attr>() + self.layers.len();
        let (Ok(size), Ok(count)) = (u16::try_from(size), u8::try_from(self.count)) else {
            let reason = format!("{} layers are more than fit", self.count);
            return Err(Error::invalid("flow rule", reason));
        };
        let attributes = sys::ibv_flow_attr {
            comp_mask: 0,
            type_: self.kind,
            size,
            priority: self.priority,
            num_of_specs: count,
            port: self.port,
            flags: self.flags,
        };
        Ok((attributes, &self.layers))
    }

    pub(crate) fn counters(&self) -> &[Counters] {
        &self.counters
    }
}

/// The bytes of the C struct of one condition or action of a flow rule, while the crate fills in
/// the struct.
struct Layer<'a>(&'a mut [u8]);

impl Layer<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn masked<const N: usize>(
        &mut self,
        value: usize,
        mask: usize,
        bytes: &[u8; N],
        significant: &[u8; N],
    ) {
        self.put(value, bytes);
        self.put(mask, significant);
    }

    /// Adds the condition that a header field equals `bytes`. Does nothing if `bytes` is `None`.
    /// `value` and `mask` are the offsets of the field and of the field's mask in the C struct.
    fn exact(&mut self, value: usize, mask: usize, bytes: Option<&[u8]>) {
        if let Some(bytes) = bytes {
            self.put(value, bytes);
            self.0[mask..mask + bytes.len()].fill(0xff);
        }
    }
}

fn slice<const N: usize>(bytes: &Option<[u8; N]>) -> Option<&[u8]> {
    bytes.as_ref().map(|bytes| bytes.as_slice())
}

/// Returns an array of `N` bytes in which exactly the first `bits` bits are set: a network mask.
fn leading<const N: usize>(bits: u8) -> [u8; N] {
    std::array::from_fn(|at| {
        let here = u32::from(bits).saturating_sub(8 * at as u32).min(8);
        (0xff00_u16 >> here) as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_bits_are_those_of_a_network_mask() {
        assert_eq!(leading(0), [0; 4]);
        assert_eq!(leading(20), [0xff, 0xff, 0xf0, 0]);
        assert_eq!(leading(32), [0xff; 4]);
        assert_eq!(leading(200), [0xff; 4]);
    }

    #[test]
    fn layers_are_c_structs_one_after_the_other() {
        let ethernet = EthernetMatch {
            source: Some([1, 2, 3, 4, 5, 6]),
            ether_type: Some(0x0800),
            ..Default::default()
        };
        let ipv4 = Ipv4Match {
            destination: Some((Ipv4Addr::new(10, 1, 2, 3), 24)),
            protocol: Some(17),
            ..Default::default()
        };
        let rule = FlowRule::matching(2).ethernet(&ethernet).ipv4(&ipv4);
        let rule = rule.tag(7).discard().priority(3);
        let (attributes, layers) = rule.attributes().unwrap();
        assert_eq!(
            (
                attributes.num_of_specs,
                attributes.port,
                attributes.priority
            ),
            (4, 2, 3)
        );
        assert_eq!(usize::from(attributes.size), 20 + layers.len());

        let (eth, rest) = layers.split_at(size_of::<sys::ibv_flow_spec_eth>());
        assert_eq!(eth[..4], 0x20_u32.to_ne_bytes());
        assert_eq!(eth[4..6], 40_u16.to_ne_bytes());
        assert_eq!(eth[6..22], [0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 8, 0, 0, 0]);
        assert_eq!(eth[22..28], [0; 6]);
        assert_eq!(
            eth[28..38],
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]
        );

        let (ip, rest) = rest.split_at(size_of::<sys::ibv_flow_spec_ipv4_ext>());
        assert_eq!(ip[..4], 0x32_u32.to_ne_bytes());
        let value = offset_of!(sys::ibv_flow_spec_ipv4_ext, val);
        let mask = offset_of!(sys::ibv_flow_spec_ipv4_ext, mask);
        assert_eq!(
            ip[value..value + 12],
            [0, 0, 0, 0, 10, 1, 2, 3, 17, 0, 0, 0]
        );
        assert_eq!(
            ip[mask..mask + 12],
            [0, 0, 0, 0, 255, 255, 255, 0, 255, 0, 0, 0]
        );

        let (tag, drop) = rest.split_at(size_of::<sys::ibv_flow_spec_action_tag>());
        assert_eq!(tag[..4], 0x1000_u32.to_ne_bytes());
        assert_eq!(tag[8..12], 7_u32.to_ne_bytes());
        assert_eq!(drop[..4], 0x1001_u32.to_ne_bytes());
    }

    #[test]
    fn more_layers_than_fit_are_refused() {
        let rule = |layers| (0..layers).fold(FlowRule::matching(1), |rule, _| rule.discard());
        assert!(rule(255).attributes().is_ok());
        assert!(rule(256).attributes().is_err());
    }
}
