//! Checks that the output for two constructed devices equals the recorded output of `ibv_devinfo`.

use std::net::IpAddr;

use ibverbs_sys as sys;

use super::{DeviceInfo, PortInfo};
use crate::device::{
    ExtendedDeviceAttributes, Gid, GidEntry, GidType, PortAttributes, TransportType,
};

/// Returns the information of a made-up InfiniBand adapter with all features, and with flags and
/// types that this crate does not know.
fn full_adapter() -> DeviceInfo {
    let mut raw = sys::ibv_device_attr_ex {
        orig_attr: sys::ibv_device_attr {
            node_guid: 0x0002_c903_00ab_cdef_u64.to_be(),
            sys_image_guid: 0x0002_c903_00ab_cdf2_u64.to_be(),
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_fe00,
            vendor_id: 0x02c9,
            vendor_part_id: 4131,
            hw_ver: 0xA0,
            max_qp: 131_072,
            max_qp_wr: 32_768,
            device_cap_flags: u32::MAX,
            max_sge: 30,
            max_sge_rd: 29,
            max_cq: 16_777_216,
            max_cqe: 4_194_303,
            max_mr: 16_777_215,
            max_pd: 8_388_608,
            max_qp_rd_atom: 16,
            max_ee_rd_atom: 1,
            max_res_rd_atom: 2_097_152,
            max_qp_init_rd_atom: 17,
            max_ee_init_rd_atom: 2,
            atomic_cap: sys::ibv_atomic_cap::IBV_ATOMIC_GLOB,
            max_ee: 3,
            max_rdd: 4,
            max_mw: 5,
            max_raw_ipv6_qp: 6,
            max_raw_ethy_qp: 7,
            max_mcast_grp: 2_097_152,
            max_mcast_qp_attach: 240,
            max_total_mcast_qp_attach: 503_316_480,
            max_ah: i32::MAX,
            max_fmr: 8,
            max_map_per_fmr: 9,
            max_srq: 8_388_608,
            max_srq_wr: 32_767,
            max_srq_sge: 31,
            max_pkeys: 128,
            local_ca_ack_delay: 16,
            phys_port_cnt: 2,
            ..Default::default()
        },
        odp_caps: sys::ibv_odp_caps {
            general_caps: u64::MAX,
            per_transport_caps: sys::ibv_odp_caps__bindgen_ty_1 {
                rc_odp_caps: u32::MAX,
                uc_odp_caps: 0x3f,
                ud_odp_caps: 3,
            },
        },
        completion_timestamp_mask: 0x0007_ffff_ffff_ffff,
        hca_core_clock: 156_250,
        device_cap_flags_ex: u64::MAX,
        tso_caps: sys::ibv_tso_caps {
            max_tso: 262_144,
            supported_qpts: u32::MAX,
        },
        rss_caps: sys::ibv_rss_caps {
            supported_qpts: 1 << 8,
            max_rwq_indirection_tables: 1_048_576,
            max_rwq_indirection_table_size: 2048,
            rx_hash_fields_mask: 0x8000_00ff,
            rx_hash_function: 1,
        },
        max_wq_type_rq: 8_388_608,
        packet_pacing_caps: sys::ibv_packet_pacing_caps {
            qp_rate_limit_min: 1,
            qp_rate_limit_max: 100_000_000,
            supported_qpts: 1 << 8 | 1 << 4 | 1 << 2,
        },
        raw_packet_caps: u32::MAX,
        tm_caps: sys::ibv_tm_caps {
            max_rndv_hdr_size: 64,
            max_num_tags: 127,
            flags: u32::MAX,
            max_ops: 32_767,
            max_sge: 32,
        },
        cq_mod_caps: sys::ibv_cq_moderation_caps {
            max_cq_count: 65_535,
            max_cq_period: 4095,
        },
        max_dm_size: 131_072,
        phys_port_cnt_ex: 2,
        ..Default::default()
    };
    for (place, byte) in raw.orig_attr.fw_ver.iter_mut().zip(b"20.28.1002") {
        *place = byte.cast_signed();
    }
    DeviceInfo {
        name: "fake0".into(),
        transport: TransportType::InfiniBand,
        attributes: ExtendedDeviceAttributes::new(raw),
        board_id: Some("MT_0000000223".into()),
        completion_vectors: 63,
        ports: vec![infiniband(), ethernet()],
    }
}

/// Returns the information of a made-up iWARP adapter without optional features.
fn minimal_adapter() -> DeviceInfo {
    let mut raw = sys::ibv_device_attr_ex::default();
    raw.orig_attr.phys_port_cnt = 1;
    let port = sys::ibv_port_attr {
        phys_state: 5,
        ..Default::default()
    };
    DeviceInfo {
        name: "fake0".into(),
        transport: TransportType::Iwarp,
        attributes: ExtendedDeviceAttributes::new(raw),
        board_id: None,
        completion_vectors: 1,
        ports: vec![PortInfo {
            attributes: PortAttributes::new(1, port),
            gids: Vec::new(),
        }],
    }
}

fn infiniband() -> PortInfo {
    let raw = sys::ibv_port_attr {
        state: sys::ibv_port_state::IBV_PORT_ACTIVE,
        max_mtu: sys::ibv_mtu::IBV_MTU_4096,
        active_mtu: sys::ibv_mtu::IBV_MTU_2048,
        gid_tbl_len: 8,
        port_cap_flags: 0x2651_e84a,
        max_msg_sz: 0x4000_0000,
        bad_pkey_cntr: 1,
        qkey_viol_cntr: 2,
        pkey_tbl_len: 128,
        lid: 13,
        sm_lid: 1,
        lmc: 2,
        max_vl_num: 3,
        sm_sl: 4,
        subnet_timeout: 18,
        init_type_reply: 5,
        active_width: 2,
        active_speed: 128,
        phys_state: 4,
        link_layer: 1,
        flags: 0,
        port_cap_flags2: 0x32,
    };
    let gids = vec![gid(1, 0, "fe80::2:c903:ab:cdef", GidType::InfiniBand)];
    PortInfo {
        attributes: PortAttributes::new(1, raw),
        gids,
    }
}

fn ethernet() -> PortInfo {
    let raw = sys::ibv_port_attr {
        state: sys::ibv_port_state::IBV_PORT_ACTIVE_DEFER,
        max_mtu: sys::ibv_mtu(9),
        active_mtu: sys::ibv_mtu::IBV_MTU_256,
        gid_tbl_len: 16,
        max_vl_num: 6,
        active_width: 3,
        active_speed: 3,
        phys_state: 9,
        link_layer: 2,
        ..Default::default()
    };
    let gids = vec![
        gid(2, 0, "fe80::202:c9ff:feab:cdef", GidType::RoceV1),
        gid(2, 1, "fe80::202:c9ff:feab:cdef", GidType::RoceV2),
        gid(2, 2, "10.0.0.1", GidType::RoceV2),
        gid(2, 10, "::a00:1", GidType::RoceV2),
        gid(2, 11, "2001:db8::", GidType::RoceV2),
        gid(2, 12, "2001:db8::1", GidType::Unknown(3)),
        gid(2, 13, "2001:db8:0:0:1::1", GidType::RoceV2),
    ];
    PortInfo {
        attributes: PortAttributes::new(2, raw),
        gids,
    }
}

fn gid(port: u8, index: u32, address: &str, kind: GidType) -> GidEntry {
    GidEntry {
        index,
        port,
        gid: Gid::from(address.parse::<IpAddr>().unwrap()),
        kind,
        interface: 0,
    }
}

#[track_caller]
fn compare(ours: &str, theirs: &str) {
    for (number, (ours, theirs)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {}", number + 1);
    }
    assert_eq!(ours, theirs);
}

#[test]
fn a_device_with_everything_is_printed_as_the_c_program_does() {
    let info = full_adapter();
    compare(&info.to_string(), include_str!("everything.txt"));
    compare(&format!("{info:#}"), include_str!("everything-verbose.txt"));
}

#[test]
fn a_device_with_nothing_is_printed_as_the_c_program_does() {
    let info = minimal_adapter();
    compare(&info.to_string(), include_str!("nothing.txt"));
    compare(&format!("{info:#}"), include_str!("nothing-verbose.txt"));
}

#[test]
fn one_port_is_selected_or_refused() {
    let second = full_adapter().only_port(2).unwrap();
    let text = second.to_string();
    assert!(text.contains("port:\t2") && !text.contains("port:\t1"));
    assert!(text.contains("phys_port_cnt:\t\t\t2"), "{text}");
    let error = full_adapter().only_port(3).unwrap_err();
    let expected = "device fake0 has no port 3; its ports are 1 to 2";
    assert_eq!(error.to_string(), expected);
}
