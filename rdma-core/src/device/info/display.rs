//! The `Display` output of device information, in the format of the program `ibv_devinfo`.

use std::fmt::{self, Formatter, Write};

use bitflags::Flags;
use ibverbs_sys as sys;

use super::{DeviceInfo, PortInfo, names};
use crate::device::{
    DeviceCapabilities, GidEntry, GidType, LinkLayer, OnDemandOperations, OnDemandPaging,
    QueuePairKinds, RawPacketCapabilities, TransportType,
};

/// The indentation of each line that contains the name of a flag, in the text that describes a
/// device.
const FLAG: &str = "\t\t\t\t\t";

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verbose = f.alternate();
        head(self, f)?;
        if verbose {
            limits(&self.attributes.as_raw().orig_attr, f)?;
            extensions(self.attributes.as_raw(), f)?;
            writeln!(f, "\tnum_comp_vectors:\t\t{}", self.completion_vectors)?;
        }
        for port in &self.ports {
            port_head(port, f)?;
            if verbose {
                port_details(port, self.transport, f)?;
                for entry in &port.gids {
                    gid(entry, port.attributes.link_layer(), f)?;
                }
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

fn head(info: &DeviceInfo, f: &mut Formatter<'_>) -> fmt::Result {
    let raw = &info.attributes.as_raw().orig_attr;
    writeln!(f, "hca_id:\t{}", info.name)?;
    let transport = names::transport(info.transport);
    let number = info.transport.to_raw().0;
    writeln!(f, "\ttransport:\t\t\t{transport} ({number})")?;
    let firmware = info.attributes.firmware_version();
    if !firmware.is_empty() {
        writeln!(f, "\tfw_ver:\t\t\t\t{firmware}")?;
    }
    let (node, system) = (
        info.attributes.node_guid(),
        info.attributes.system_image_guid(),
    );
    writeln!(f, "\tnode_guid:\t\t\t{}", names::guid(node))?;
    writeln!(f, "\tsys_image_guid:\t\t\t{}", names::guid(system))?;
    writeln!(f, "\tvendor_id:\t\t\t{:#06x}", raw.vendor_id)?;
    writeln!(
        f,
        "\tvendor_part_id:\t\t\t{}",
        raw.vendor_part_id.cast_signed()
    )?;
    writeln!(f, "\thw_ver:\t\t\t\t{:#X}", raw.hw_ver)?;
    if let Some(board) = &info.board_id {
        writeln!(f, "\tboard_id:\t\t\t{board}")?;
    }
    writeln!(f, "\tphys_port_cnt:\t\t\t{}", raw.phys_port_cnt)
}

fn limits(raw: &sys::ibv_device_attr, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\tmax_mr_size:\t\t\t{:#x}", raw.max_mr_size)?;
    writeln!(f, "\tpage_size_cap:\t\t\t{:#x}", raw.page_size_cap)?;
    writeln!(f, "\tmax_qp:\t\t\t\t{}", raw.max_qp)?;
    writeln!(f, "\tmax_qp_wr:\t\t\t{}", raw.max_qp_wr)?;
    writeln!(f, "\tdevice_cap_flags:\t\t{:#010x}", raw.device_cap_flags)?;
    let plain = DeviceCapabilities::from_bits_retain(raw.device_cap_flags.into());
    flags(plain, "", f)?;
    writeln!(f, "\tmax_sge:\t\t\t{}", raw.max_sge)?;
    writeln!(f, "\tmax_sge_rd:\t\t\t{}", raw.max_sge_rd)?;
    writeln!(f, "\tmax_cq:\t\t\t\t{}", raw.max_cq)?;
    writeln!(f, "\tmax_cqe:\t\t\t{}", raw.max_cqe)?;
    writeln!(f, "\tmax_mr:\t\t\t\t{}", raw.max_mr)?;
    writeln!(f, "\tmax_pd:\t\t\t\t{}", raw.max_pd)?;
    writeln!(f, "\tmax_qp_rd_atom:\t\t\t{}", raw.max_qp_rd_atom)?;
    writeln!(f, "\tmax_ee_rd_atom:\t\t\t{}", raw.max_ee_rd_atom)?;
    writeln!(f, "\tmax_res_rd_atom:\t\t{}", raw.max_res_rd_atom)?;
    writeln!(f, "\tmax_qp_init_rd_atom:\t\t{}", raw.max_qp_init_rd_atom)?;
    writeln!(f, "\tmax_ee_init_rd_atom:\t\t{}", raw.max_ee_init_rd_atom)?;
    let atomics = names::atomics(raw.atomic_cap);
    writeln!(
        f,
        "\tatomic_cap:\t\t\t{atomics} ({})",
        raw.atomic_cap.0.cast_signed()
    )?;
    writeln!(f, "\tmax_ee:\t\t\t\t{}", raw.max_ee)?;
    writeln!(f, "\tmax_rdd:\t\t\t{}", raw.max_rdd)?;
    writeln!(f, "\tmax_mw:\t\t\t\t{}", raw.max_mw)?;
    writeln!(f, "\tmax_raw_ipv6_qp:\t\t{}", raw.max_raw_ipv6_qp)?;
    writeln!(f, "\tmax_raw_ethy_qp:\t\t{}", raw.max_raw_ethy_qp)?;
    writeln!(f, "\tmax_mcast_grp:\t\t\t{}", raw.max_mcast_grp)?;
    writeln!(f, "\tmax_mcast_qp_attach:\t\t{}", raw.max_mcast_qp_attach)?;
    let members = raw.max_total_mcast_qp_attach;
    writeln!(f, "\tmax_total_mcast_qp_attach:\t{members}")?;
    writeln!(f, "\tmax_ah:\t\t\t\t{}", raw.max_ah)?;
    writeln!(f, "\tmax_fmr:\t\t\t{}", raw.max_fmr)?;
    if raw.max_fmr != 0 {
        writeln!(f, "\tmax_map_per_fmr:\t\t{}", raw.max_map_per_fmr)?;
    }
    writeln!(f, "\tmax_srq:\t\t\t{}", raw.max_srq)?;
    if raw.max_srq != 0 {
        writeln!(f, "\tmax_srq_wr:\t\t\t{}", raw.max_srq_wr)?;
        writeln!(f, "\tmax_srq_sge:\t\t\t{}", raw.max_srq_sge)?;
    }
    writeln!(f, "\tmax_pkeys:\t\t\t{}", raw.max_pkeys)?;
    writeln!(f, "\tlocal_ca_ack_delay:\t\t{}", raw.local_ca_ack_delay)
}

fn extensions(raw: &sys::ibv_device_attr_ex, f: &mut Formatter<'_>) -> fmt::Result {
    on_demand_paging(raw, f)?;
    match raw.completion_timestamp_mask {
        0 => writeln!(f, "\tcompletion_timestamp_mask not supported")?,
        mask => writeln!(f, "\tcompletion timestamp_mask:\t\t\t{mask:#018x}")?,
    }
    match raw.hca_core_clock {
        0 => writeln!(f, "\tcore clock not supported")?,
        clock => writeln!(f, "\thca_core_clock:\t\t\t{clock}kHZ")?,
    }
    if raw.raw_packet_caps != 0 {
        raw_packets(raw.raw_packet_caps, f)?;
    }
    writeln!(
        f,
        "\tdevice_cap_flags_ex:\t\t{:#X}",
        raw.device_cap_flags_ex
    )?;
    let above = DeviceCapabilities::from_bits_retain(raw.device_cap_flags_ex & !0xffff_ffff);
    let known = DeviceCapabilities::RAW_SCATTER_FCS | DeviceCapabilities::PCI_WRITE_END_PADDING;
    flags_of(above, known, "", f)?;
    segmentation(&raw.tso_caps, f)?;
    receive_side_scaling(&raw.rss_caps, f)?;
    writeln!(f, "\tmax_wq_type_rq:\t\t\t{}", raw.max_wq_type_rq)?;
    pacing(&raw.packet_pacing_caps, f)?;
    tag_matching(&raw.tm_caps, f)?;
    let moderation = &raw.cq_mod_caps;
    if moderation.max_cq_count != 0 && moderation.max_cq_period != 0 {
        writeln!(f, "\n\tcq moderation caps:")?;
        writeln!(f, "\t\tmax_cq_count:\t{}", moderation.max_cq_count)?;
        writeln!(f, "\t\tmax_cq_period:\t{} us\n", moderation.max_cq_period)?;
    }
    if raw.max_dm_size != 0 {
        let bytes = raw.max_dm_size;
        writeln!(f, "\tmaximum available device memory:\t{bytes}Bytes\n")?;
    }
    Ok(())
}

fn on_demand_paging(raw: &sys::ibv_device_attr_ex, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\tgeneral_odp_caps:")?;
    let general = OnDemandPaging::from_bits_retain(raw.odp_caps.general_caps);
    let named = [
        (OnDemandPaging::SUPPORT, "ODP_SUPPORT"),
        (OnDemandPaging::IMPLICIT, "ODP_SUPPORT_IMPLICIT"),
    ];
    for (_, name) in named.iter().filter(|(flag, _)| general.contains(*flag)) {
        writeln!(f, "{FLAG}{name}")?;
    }
    unknown(general.bits() & !OnDemandPaging::all_named().bits(), f)?;
    let caps = &raw.odp_caps.per_transport_caps;
    let transports = [
        ("rc", caps.rc_odp_caps),
        ("uc", caps.uc_odp_caps),
        ("ud", caps.ud_odp_caps),
        ("xrc", raw.xrc_odp_caps),
    ];
    for (transport, bits) in transports {
        writeln!(f, "\t{transport}_odp_caps:")?;
        if bits == 0 {
            writeln!(f, "{FLAG}NO SUPPORT")?;
        }
        let known = OnDemandOperations::all_named()
            .difference(OnDemandOperations::FLUSH | OnDemandOperations::ATOMIC_WRITE);
        flags_of(
            OnDemandOperations::from_bits_retain(bits),
            known,
            "SUPPORT_",
            f,
        )?;
    }
    Ok(())
}

fn raw_packets(bits: u32, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\traw packet caps:")?;
    let words = [
        (
            RawPacketCapabilities::CVLAN_STRIPPING,
            "C-VLAN stripping offload",
        ),
        (RawPacketCapabilities::SCATTER_FCS, "Scatter FCS offload"),
        (RawPacketCapabilities::IP_CSUM, "IP csum offload"),
        (RawPacketCapabilities::DELAY_DROP, "Delay drop"),
    ];
    let caps = RawPacketCapabilities::from_bits_retain(bits);
    for (_, words) in words.iter().filter(|(flag, _)| caps.contains(*flag)) {
        writeln!(f, "{FLAG}{words}")?;
    }
    Ok(())
}

fn segmentation(caps: &sys::ibv_tso_caps, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\ttso_caps:")?;
    writeln!(f, "\t\tmax_tso:\t\t\t{}", caps.max_tso.cast_signed())?;
    if caps.max_tso != 0 {
        queue_pairs(caps.supported_qpts, f)?;
    }
    Ok(())
}

fn receive_side_scaling(caps: &sys::ibv_rss_caps, f: &mut Formatter<'_>) -> fmt::Result {
    let (tables, size) = (
        caps.max_rwq_indirection_tables,
        caps.max_rwq_indirection_table_size,
    );
    writeln!(f, "\trss_caps:")?;
    writeln!(f, "\t\tmax_rwq_indirection_tables:\t\t\t{tables}")?;
    writeln!(f, "\t\tmax_rwq_indirection_table_size:\t\t\t{size}")?;
    writeln!(
        f,
        "\t\trx_hash_function:\t\t\t\t{:#x}",
        caps.rx_hash_function
    )?;
    writeln!(
        f,
        "\t\trx_hash_fields_mask:\t\t\t\t{:#X}",
        caps.rx_hash_fields_mask
    )?;
    if caps.supported_qpts != 0 {
        queue_pairs(caps.supported_qpts, f)?;
    }
    Ok(())
}

fn pacing(caps: &sys::ibv_packet_pacing_caps, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\tpacket_pacing_caps:")?;
    writeln!(f, "\t\tqp_rate_limit_min:\t{}kbps", caps.qp_rate_limit_min)?;
    writeln!(f, "\t\tqp_rate_limit_max:\t{}kbps", caps.qp_rate_limit_max)?;
    if caps.qp_rate_limit_max != 0 {
        queue_pairs(caps.supported_qpts, f)?;
    }
    Ok(())
}

fn tag_matching(caps: &sys::ibv_tm_caps, f: &mut Formatter<'_>) -> fmt::Result {
    if caps.max_num_tags == 0 {
        return writeln!(f, "\ttag matching not supported");
    }
    writeln!(f, "\tmax_rndv_hdr_size:\t\t{}", caps.max_rndv_hdr_size)?;
    writeln!(f, "\tmax_num_tags:\t\t\t{}", caps.max_num_tags)?;
    writeln!(f, "\tmax_ops:\t\t\t{}", caps.max_ops)?;
    writeln!(f, "\tmax_sge:\t\t\t{}", caps.max_sge)?;
    writeln!(f, "\tflags:")?;
    if caps.flags & sys::ibv_tm_cap_flags::IBV_TM_CAP_RC.0 != 0 {
        writeln!(f, "{FLAG}IBV_TM_CAP_RC")?;
    }
    Ok(())
}

/// Writes one line for each queue pair type whose bit is set in `bits`. The line for raw packets
/// comes first, as in the output of `ibv_devinfo`.
fn queue_pairs(bits: u32, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\t\tsupported_qp:")?;
    let kinds = QueuePairKinds::from_bits_retain(bits);
    let named = [
        (QueuePairKinds::RAW_PACKET, "SUPPORT_RAW_PACKET"),
        (QueuePairKinds::UD, "SUPPORT_UD"),
    ];
    for (_, name) in named.iter().filter(|(kind, _)| kinds.contains(*kind)) {
        writeln!(f, "{FLAG}{name}")?;
    }
    let known = QueuePairKinds::RAW_PACKET | QueuePairKinds::UD;
    unknown((bits & !known.bits()).into(), f)
}

fn port_head(port: &PortInfo, f: &mut Formatter<'_>) -> fmt::Result {
    let raw = port.attributes.as_raw();
    let line = |f: &mut Formatter<'_>, label: &str, name: &str, value: u32| {
        writeln!(f, "\t\t\t{label}{name} ({})", value.cast_signed())
    };
    writeln!(f, "\t\tport:\t{}", port.attributes.number())?;
    line(f, "state:\t\t\t", names::port_state(raw.state), raw.state.0)?;
    line(f, "max_mtu:\t\t", names::mtu(raw.max_mtu), raw.max_mtu.0)?;
    line(
        f,
        "active_mtu:\t\t",
        names::mtu(raw.active_mtu),
        raw.active_mtu.0,
    )?;
    writeln!(f, "\t\t\tsm_lid:\t\t\t{}", raw.sm_lid)?;
    writeln!(f, "\t\t\tport_lid:\t\t{}", raw.lid)?;
    writeln!(f, "\t\t\tport_lmc:\t\t{:#04x}", raw.lmc)?;
    writeln!(
        f,
        "\t\t\tlink_layer:\t\t{}",
        names::link_layer(raw.link_layer)
    )
}

fn port_details(port: &PortInfo, transport: TransportType, f: &mut Formatter<'_>) -> fmt::Result {
    let raw = port.attributes.as_raw();
    let line = |f: &mut Formatter<'_>, label: &str, name: &str, value: u8| {
        writeln!(f, "\t\t\t{label}{name} ({value})")
    };
    writeln!(f, "\t\t\tmax_msg_sz:\t\t{:#x}", raw.max_msg_sz)?;
    writeln!(f, "\t\t\tport_cap_flags:\t\t{:#010x}", raw.port_cap_flags)?;
    writeln!(f, "\t\t\tport_cap_flags2:\t{:#06x}", raw.port_cap_flags2)?;
    let lanes = names::virtual_lanes(raw.max_vl_num);
    line(f, "max_vl_num:\t\t", lanes, raw.max_vl_num)?;
    writeln!(f, "\t\t\tbad_pkey_cntr:\t\t{:#x}", raw.bad_pkey_cntr)?;
    writeln!(f, "\t\t\tqkey_viol_cntr:\t\t{:#x}", raw.qkey_viol_cntr)?;
    writeln!(f, "\t\t\tsm_sl:\t\t\t{}", raw.sm_sl)?;
    writeln!(f, "\t\t\tpkey_tbl_len:\t\t{}", raw.pkey_tbl_len)?;
    writeln!(f, "\t\t\tgid_tbl_len:\t\t{}", raw.gid_tbl_len)?;
    writeln!(f, "\t\t\tsubnet_timeout:\t\t{}", raw.subnet_timeout)?;
    writeln!(f, "\t\t\tinit_type_reply:\t{}", raw.init_type_reply)?;
    let width = format!("{}X", names::width(raw.active_width));
    line(f, "active_width:\t\t", &width, raw.active_width)?;
    let speed = names::speed(raw.active_speed);
    line(f, "active_speed:\t\t", speed, raw.active_speed)?;
    if transport == TransportType::InfiniBand {
        let state = names::physical_state(raw.phys_state);
        line(f, "phys_state:\t\t", state, raw.phys_state)?;
    }
    Ok(())
}

fn gid(entry: &GidEntry, link: LinkLayer, f: &mut Formatter<'_>) -> fmt::Result {
    // `ibv_devinfo` treats an entry with a zero interface identifier as empty.
    if entry.gid.0[8..] == [0; 8] {
        return Ok(());
    }
    let (text, kind) = match entry.kind {
        GidType::InfiniBand | GidType::RoceV1 => (names::full_gid(entry.gid), "RoCE v1"),
        GidType::RoceV2 => (names::short_gid(entry.gid), "RoCE v2"),
        // `ibv_devinfo` prints nothing for a GID of an unknown type.
        GidType::Unknown(_) => return Ok(()),
    };
    write!(f, "\t\t\tGID[{:3}]:\t\t{text}", entry.index)?;
    if link == LinkLayer::Ethernet {
        write!(f, ", {kind}")?;
    }
    f.write_char('\n')
}

/// Writes one line for each set flag that has a name, and one line for all other set bits.
fn flags<T: Flags<Bits: Into<u64>> + Copy>(
    flags: T,
    prefix: &str,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    flags_of(flags, T::all_named(), prefix, f)
}

/// Writes one line for each flag that is set in both `flags` and `known`, and one line for all
/// other set bits of `flags`. The line for a flag contains `prefix` and the name of the flag.
fn flags_of<T: Flags<Bits: Into<u64>> + Copy>(
    flags: T,
    known: T,
    prefix: &str,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    for (name, _) in flags.intersection(known).iter_names() {
        writeln!(f, "{FLAG}{prefix}{name}")?;
    }
    unknown(flags.difference(known).bits().into(), f)
}

fn unknown(bits: u64, f: &mut Formatter<'_>) -> fmt::Result {
    if bits == 0 {
        return Ok(());
    }
    writeln!(f, "{FLAG}Unknown flags: {bits:#X}")
}
