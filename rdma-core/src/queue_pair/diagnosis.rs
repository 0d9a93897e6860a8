//! Diagnosis of a modification that the device refused: finds the mistakes in the modification.

use ibverbs_sys::{ibv_device_cap_flags, ibv_mig_state};

use super::transition::{ignored, successors, transition};
use super::{
    AttributeMask as Set, Modification, ModificationFlaw as Flaw, QueuePairState, Transport,
};
use crate::address::AddressVector;
use crate::context::Context;
use crate::device::{DeviceAttributes, Gid, GidEntry, LinkLayer, PortAttributes, PortState};
use crate::error::Errno;
use crate::ffi::QueuePairHandle;

/// The values of a queue pair and of its device that the diagnosis of a refused modification needs.
/// The values are queried after the refusal. A value is absent if its query failed, and checks that
/// need the value are then skipped.
#[derive(Debug, Clone)]
pub(super) struct QueriedValues {
    kind: Transport,
    state: Option<QueuePairState>,
    draining: bool,
    /// The local port that the queue pair uses; 0 if no port was set yet.
    port: u8,
    device: Option<DeviceAttributes>,
    ports: Vec<PortAttributes>,
    gids: Vec<GidEntry>,
}

impl QueriedValues {
    /// Queries the state and port of the queue pair, and the attributes of its device and ports. A
    /// value whose query fails is absent or has a default.
    pub(super) fn of(handle: &QueuePairHandle) -> Self {
        let context = Context::of(handle.domain().context());
        let attributes = handle.query(Set::STATE | Set::PORT).ok();
        let state = attributes.map(|(now, _)| QueuePairState::from_raw(now.qp_state));
        Self {
            kind: handle.kind(),
            state,
            draining: attributes.is_some_and(|(now, _)| now.sq_draining != 0)
                && state == Some(QueuePairState::SendQueueDrain),
            port: attributes.map_or(0, |(now, _)| now.port_num),
            device: context.attributes().ok(),
            ports: context.ports().unwrap_or_default(),
            gids: context.gids().unwrap_or_default(),
        }
    }

    /// Returns the state of the queue pair at the time of the refused modification, or `None` if
    /// the state could not be queried.
    pub(super) fn state(&self) -> Option<QueuePairState> {
        self.state
    }

    /// Returns the flaws (mistakes) that this crate finds in the modification `wanted`. The device
    /// has refused the modification with `errno`.
    pub(super) fn flaws(&self, wanted: &Modification, errno: Errno) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        self.add_violations(wanted, &mut flaws);
        self.add_unsupported(wanted, &mut flaws);
        self.add_out_of_range(wanted, &mut flaws);
        if let Some(vector) = wanted.vector() {
            self.check_path(wanted, vector, errno, &mut flaws);
        }
        if flaws.is_empty() && self.changes_path_in_drain(wanted) {
            let what = "changes of an unreliable connection's address vector in the state SQD: its \
                        system call also sets the port, which cannot be changed in that state";
            flaws.push(Flaw::NotOnLinux(what));
        }
        if flaws.is_empty() {
            let port = self.local_port(wanted);
            let down = |it: &&PortAttributes| it.state() != PortState::Active;
            flaws.extend(self.port(port).filter(down).map(|_| Flaw::PortDown(port)));
        }
        flaws
    }

    /// Adds a [`Flaw`] to `flaws` for each rule of the specification that the refused modification
    /// `wanted` violates. An example is a missing attribute that the state transition requires.
    /// Adds nothing if the state of the queue pair is not known.
    fn add_violations(&self, wanted: &Modification, flaws: &mut Vec<Flaw>) {
        let Some(from) = self.state else {
            return;
        };
        flaws.extend(wanted.flaws(self.kind, from));
        let ends = [QueuePairState::Reset, QueuePairState::Error];
        let leaves = wanted.state().is_some_and(|to| ends.contains(&to));
        if self.draining && flaws.is_empty() && !leaves {
            flaws.push(Flaw::Draining);
        }
    }

    /// Returns whether `wanted` changes the path of an unreliable connection in the state SQD (send
    /// queue drain). Linux does not support this change: its system call also sets the port, which
    /// the state SQD does not permit.
    fn changes_path_in_drain(&self, wanted: &Modification) -> bool {
        self.state == Some(QueuePairState::SendQueueDrain)
            && self.kind == Transport::UnreliableConnected
            && wanted.vector().is_some()
    }

    /// Adds a [`Flaw`] to `flaws` for each attribute in the refused modification `wanted` that
    /// needs a feature missing from the device of the queue pair.
    fn add_unsupported(&self, wanted: &Modification, flaws: &mut Vec<Flaw>) {
        let Some(device) = &self.device else {
            return;
        };
        let has = |flag: ibv_device_cap_flags| device.as_raw().device_cap_flags & flag.0 != 0;
        let mut lacks = |attribute| {
            if wanted.mask().contains(attribute) && !flaws.contains(&Flaw::Misplaced(attribute)) {
                flaws.push(Flaw::Unsupported(attribute));
            }
        };
        let port = self.port(self.local_port(wanted));
        let ethernet = port.is_some_and(|port| port.link_layer() == LinkLayer::Ethernet);
        let migrates = has(ibv_device_cap_flags::IBV_DEVICE_AUTO_PATH_MIG);
        // Linux supports alternate paths on InfiniBand only, whatever the device reports.
        if !migrates || ethernet {
            lacks(Set::ALTERNATE_PATH);
        }
        if !migrates && wanted.values().path_mig_state != ibv_mig_state::IBV_MIG_MIGRATED {
            lacks(Set::MIGRATION);
        }
        if !has(ibv_device_cap_flags::IBV_DEVICE_RESIZE_MAX_WR) {
            lacks(Set::CAPACITIES);
        }
    }

    /// Adds a [`Flaw`] to `flaws` for each attribute of the modification `wanted` with a value
    /// outside of the range that the specification or the device allows.
    fn add_out_of_range(&self, wanted: &Modification, flaws: &mut Vec<Flaw>) {
        let mut within = |attribute, least: u64, most: u64, limit| {
            let value = wanted.number(attribute).unwrap_or(least);
            if wanted.mask().contains(attribute) && !(least..=most).contains(&value) {
                flaws.push(Flaw::OutOfRange {
                    attribute,
                    value,
                    least,
                    most,
                    limit,
                });
            }
        };
        const BITS: &str = "the specification";
        within(Set::STATE, 0, 6, "verbs");
        within(Set::CURRENT_STATE, 0, 6, "verbs");
        within(Set::ACK_TIMEOUT, 0, 31, BITS);
        within(Set::RETRIES, 0, 7, BITS);
        within(Set::RNR_RETRIES, 0, 7, BITS);
        within(Set::MIN_RNR_TIMER, 0, 31, BITS);
        within(Set::DESTINATION, 0, 0xff_ffff, BITS);
        // The bits that `ibv_access_flags` defines: ten flags, and the optional flags from bit 20
        // on.
        let known = 0x3ff | 0x3ff0_0000;
        if wanted.number(Set::ACCESS).unwrap_or(0) & !known != 0 {
            within(Set::ACCESS, 0, known, "verbs");
        }
        if let Some(device) = &self.device {
            let ports = device.ports().into();
            within(Set::PORT, 1, ports, "the device");
            let outgoing = device.max_outgoing_reads().into();
            within(Set::OUTGOING_READS, 0, outgoing, "the device");
            let incoming = device.max_incoming_reads().into();
            within(Set::INCOMING_READS, 0, incoming, "the device");
        }
        let port = self.port(self.local_port(wanted));
        let mtu = port.and_then(PortAttributes::active_mtu);
        match mtu {
            Some(mtu) => within(Set::PATH_MTU, 1, mtu as u64, "the port's MTU"),
            None => within(Set::PATH_MTU, 1, 5, BITS),
        }
        if let Some(port) = port {
            let last = port.pkey_table_len().saturating_sub(1) as u64;
            within(Set::PKEY_INDEX, 0, last, "the port's table");
        }
    }

    /// Checks the address vector `vector` of the path to the peer, and adds a [`Flaw`] to `flaws`
    /// if the address vector contains a mistake.
    fn check_path(
        &self,
        wanted: &Modification,
        vector: &AddressVector,
        errno: Errno,
        flaws: &mut Vec<Flaw>,
    ) {
        let queue_pair = self.local_port(wanted);
        if vector.port != queue_pair {
            let path = vector.port;
            flaws.push(Flaw::OtherPort { path, queue_pair });
            return;
        }
        let Some(port) = self.port(vector.port) else {
            return;
        };
        let ethernet = port.link_layer() == LinkLayer::Ethernet;
        let Some(destination) = vector.gid else {
            flaws.extend(ethernet.then_some(Flaw::NoGid));
            return;
        };
        let mut own = self.gids.iter().filter(|entry| entry.port == vector.port);
        let Some(source) = own.clone().find(|entry| entry.index == vector.gid_index) else {
            let valid = own.by_ref().map(ToString::to_string).collect();
            let index = vector.gid_index;
            flaws.push(Flaw::NoSuchGid { index, valid });
            return;
        };
        let source = source.gid;
        if !ethernet {
            return;
        }
        let multicast = destination.to_ip().is_multicast() || destination.0[0] == 0xff;
        if multicast || destination.to_ip().is_unspecified() {
            flaws.push(Flaw::NoPeer(destination));
        } else if source.to_ipv4().is_some() != destination.to_ipv4().is_some() {
            flaws.push(Flaw::OtherFamily {
                source,
                destination,
            });
        } else if is_loopback(source) != is_loopback(destination) {
            flaws.push(Flaw::NoLoopback {
                source,
                destination,
            });
        } else if flaws.is_empty() && errno.is_no_route() {
            let source = Some(source);
            flaws.push(Flaw::NoRoute {
                source,
                destination,
            });
        }
    }

    /// Returns the number of the local port after the modification: the port that `wanted` sets or,
    /// if `wanted` sets no port, the current port of the queue pair.
    fn local_port(&self, wanted: &Modification) -> u8 {
        if wanted.mask().contains(Set::PORT) {
            wanted.values().port_num
        } else {
            self.port
        }
    }

    fn port(&self, number: u8) -> Option<&PortAttributes> {
        self.ports.iter().find(|port| port.number() == number)
    }
}

impl Modification {
    /// Returns the flaws (mistakes) in this modification for a queue pair of type `kind` in the
    /// state `from`. The method compares the modification with the specification's tables of states
    /// and attributes. The check covers neither the values of attributes nor the limits of a
    /// device.
    ///
    /// ```
    /// use rdma_core::{QueuePairState, Transport};
    /// use rdma_core::queue_pair::{AttributeMask, Modification, ModificationFlaw};
    ///
    /// let change = Modification::to(QueuePairState::Init).pkey_index(0).port(1);
    /// assert_eq!(change.flaws(Transport::RawPacket, QueuePairState::Reset), [
    ///     ModificationFlaw::Misplaced(AttributeMask::PKEY_INDEX),
    /// ]);
    /// ```
    pub fn flaws(&self, kind: Transport, from: QueuePairState) -> Vec<Flaw> {
        if matches!(kind, Transport::Driver | Transport::Unknown(_)) {
            // Vendor-specific queue pair types have no public requirements.
            return Vec::new();
        }
        let mut flaws = Vec::new();
        let assumed = QueuePairState::from_raw(self.values().cur_qp_state);
        if self.mask().contains(Set::CURRENT_STATE) && assumed != from {
            let actual = from;
            flaws.push(Flaw::OtherState { assumed, actual });
        }
        let to = self.state().unwrap_or(from);
        let Some(rule) = transition(kind, from, to) else {
            let possible = successors(kind, from).collect();
            flaws.push(Flaw::NoTransition { from, to, possible });
            return flaws;
        };
        let set = self.mask() - Set::STATE;
        flaws.extend((rule.required - set).each().map(Flaw::Missing));
        let excess = set - rule.required - rule.optional - ignored(kind);
        flaws.extend(excess.each().map(Flaw::Misplaced));
        flaws
    }
}

fn is_loopback(gid: Gid) -> bool {
    gid.to_ip().is_loopback()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use ibverbs_sys::{ibv_device_attr, ibv_port_attr, ibv_port_state};

    use super::*;
    use crate::device::{GidType, Mtu};

    const EINVAL: Errno = Errno(libc::EINVAL);

    fn gid(address: &str) -> Gid {
        Gid::from(address.parse::<IpAddr>().unwrap())
    }

    fn entry(index: u32, address: &str) -> GidEntry {
        GidEntry {
            index,
            port: 1,
            gid: gid(address),
            kind: GidType::RoceV2,
            interface: 2,
        }
    }

    /// Returns made-up query results for a queue pair of type `kind` in the state `state`, on a
    /// device with one Ethernet port.
    fn known(kind: Transport, state: QueuePairState) -> QueriedValues {
        let device = ibv_device_attr {
            phys_port_cnt: 1,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 8,
            ..ibv_device_attr::default()
        };
        let port = ibv_port_attr {
            state: ibv_port_state::IBV_PORT_ACTIVE,
            active_mtu: Mtu::Mtu1024.to_raw(),
            pkey_tbl_len: 1,
            link_layer: 2,
            ..ibv_port_attr::default()
        };
        QueriedValues {
            kind,
            state: Some(state),
            draining: false,
            port: u8::from(state != QueuePairState::Reset),
            device: Some(DeviceAttributes::new(device)),
            ports: vec![PortAttributes::new(1, port)],
            gids: vec![entry(0, "fe80::1"), entry(1, "10.0.0.1")],
        }
    }

    fn vector(gid_index: u32, destination: &str) -> AddressVector {
        AddressVector {
            port: 1,
            gid: Some(gid(destination)),
            gid_index,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            lid: 0,
            service_level: 0,
            source_path_bits: 0,
            static_rate: crate::address::StaticRate::PORT,
        }
    }

    /// Returns a correct modification from INIT to RTR, for a reliable connection.
    fn to_rtr() -> Modification {
        Modification::to(QueuePairState::ReadyToReceive)
            .address(vector(1, "10.0.0.2"))
            .path_mtu(Mtu::Mtu1024)
            .destination(17)
            .receive_sequence(1)
            .incoming_reads(16)
            .min_rnr_timer(12)
    }

    fn of_rtr(wanted: &Modification) -> Vec<Flaw> {
        let init = known(Transport::ReliableConnected, QueuePairState::Init);
        init.flaws(wanted, EINVAL)
    }

    #[test]
    fn nothing_is_found_where_nothing_is_wrong() {
        assert_eq!(of_rtr(&to_rtr()), []);
    }

    #[test]
    fn each_missing_and_each_misplaced_attribute_is_named() {
        for attribute in (to_rtr().mask() - Set::STATE).each() {
            let flaws = of_rtr(&to_rtr().without(attribute));
            assert_eq!(flaws, [Flaw::Missing(attribute)]);
        }
        let flaws = of_rtr(&to_rtr().qkey(1).send_sequence(2));
        let wanted = [Set::QKEY, Set::SEND_SEQUENCE].map(Flaw::Misplaced);
        assert_eq!(flaws, wanted);
    }

    #[test]
    fn a_forbidden_state_is_reported_with_the_allowed_ones() {
        let reset = known(Transport::Datagram, QueuePairState::Reset);
        let flaws = reset.flaws(&Modification::to(QueuePairState::ReadyToSend), EINVAL);
        let text = flaws.iter().map(ToString::to_string).collect::<String>();
        assert_eq!(text, "RTS does not follow RESET; RESET, INIT can");
        let rts = known(Transport::Datagram, QueuePairState::ReadyToSend);
        let wanted =
            Modification::to(QueuePairState::ReadyToSend).assuming(QueuePairState::SendQueueError);
        let assumed = QueuePairState::SendQueueError;
        let actual = QueuePairState::ReadyToSend;
        assert_eq!(
            rts.flaws(&wanted, EINVAL),
            [Flaw::OtherState { assumed, actual }]
        );
    }

    #[test]
    fn values_out_of_range_are_reported_with_the_range() {
        let attributes: [(Set, Modification, u64, u64); 7] = [
            (Set::PATH_MTU, to_rtr().path_mtu(Mtu::Mtu2048), 1, 3),
            (Set::INCOMING_READS, to_rtr().incoming_reads(17), 0, 16),
            (Set::MIN_RNR_TIMER, to_rtr().min_rnr_timer(32), 0, 31),
            (
                Set::DESTINATION,
                to_rtr().destination(1 << 24),
                0,
                0xff_ffff,
            ),
            (Set::PKEY_INDEX, to_rtr().pkey_index(1), 0, 0),
            (Set::PORT, Modification::new().port(2), 1, 1),
            (Set::PORT, Modification::new().port(0), 1, 1),
        ];
        for (wanted, modification, lowest, highest) in attributes {
            let flaws = of_rtr(&modification);
            assert!(
                matches!(
                    flaws[..],
                    [Flaw::OutOfRange { attribute, least, most, .. }]
                        if (attribute, least, most) == (wanted, lowest, highest)
                ),
                "{wanted}: {flaws:?}"
            );
        }
        let rtr = known(Transport::ReliableConnected, QueuePairState::ReadyToReceive);
        let to_rts = Modification::to(QueuePairState::ReadyToSend)
            .send_sequence(0)
            .ack_timeout_exponent(32)
            .retries(8)
            .rnr_retries(9)
            .outgoing_reads(9);
        let flaws = rtr.flaws(&to_rts, EINVAL);
        assert_eq!(flaws.len(), 4, "{flaws:?}");
        assert!(
            flaws
                .iter()
                .all(|flaw| matches!(flaw, Flaw::OutOfRange { .. }))
        );
    }

    #[test]
    fn mistakes_in_a_path_are_reported() {
        let with = |vector| of_rtr(&to_rtr().address(vector));
        let source = gid("10.0.0.1");
        let valid = vec![
            "0 (fe80::1, RoCE v2)".into(),
            "1 (::ffff:10.0.0.1, RoCE v2)".into(),
        ];
        let cases = [
            (vector(7, "10.0.0.2"), Flaw::NoSuchGid { index: 7, valid }),
            (
                AddressVector {
                    gid: None,
                    ..vector(1, "::")
                },
                Flaw::NoGid,
            ),
            (
                AddressVector {
                    port: 2,
                    ..vector(1, "10.0.0.2")
                },
                Flaw::OtherPort {
                    path: 2,
                    queue_pair: 1,
                },
            ),
            (
                vector(1, "fe80::2"),
                Flaw::OtherFamily {
                    source,
                    destination: gid("fe80::2"),
                },
            ),
            (vector(1, "224.0.0.1"), Flaw::NoPeer(gid("224.0.0.1"))),
            (vector(1, "::"), Flaw::NoPeer(gid("::"))),
            (
                vector(1, "127.0.0.1"),
                Flaw::NoLoopback {
                    source,
                    destination: gid("127.0.0.1"),
                },
            ),
        ];
        for (vector, flaw) in cases {
            assert_eq!(with(vector), [flaw]);
        }
        let init = known(Transport::ReliableConnected, QueuePairState::Init);
        let flaws = init.flaws(&to_rtr(), Errno(libc::EHOSTUNREACH));
        assert!(matches!(flaws[..], [Flaw::NoRoute { .. }]), "{flaws:?}");
    }

    #[test]
    fn missing_features_and_inactive_ports_are_reported() {
        let rts = known(Transport::ReliableConnected, QueuePairState::ReadyToSend);
        let rearm = Modification::new().migration(super::super::MigrationState::Rearm);
        let flaws = rts.flaws(&rearm, EINVAL);
        assert_eq!(flaws, [Flaw::Unsupported(Set::MIGRATION)]);
        let mut init = known(Transport::ReliableConnected, QueuePairState::Init);
        let mut port = *init.ports[0].as_raw();
        port.state = ibv_port_state::IBV_PORT_DOWN;
        init.ports = vec![PortAttributes::new(1, port)];
        assert_eq!(init.flaws(&to_rtr(), EINVAL), [Flaw::PortDown(1)]);
        let mut draining = known(Transport::Datagram, QueuePairState::SendQueueDrain);
        draining.draining = true;
        let resume = Modification::to(QueuePairState::ReadyToSend);
        assert_eq!(draining.flaws(&resume, EINVAL), [Flaw::Draining]);
        assert_eq!(
            draining.flaws(&Modification::to(QueuePairState::Error), EINVAL),
            []
        );
    }

    #[test]
    fn without_queried_values_no_flaw_is_reported() {
        let nothing = QueriedValues {
            kind: Transport::ReliableConnected,
            state: None,
            draining: false,
            port: 1,
            device: None,
            ports: Vec::new(),
            gids: Vec::new(),
        };
        assert_eq!(nothing.flaws(&to_rtr().qkey(1), EINVAL), []);
    }
}
