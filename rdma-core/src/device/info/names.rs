//! The names that `ibv_devinfo` uses for values of C enumerations.

use std::net::{Ipv4Addr, Ipv6Addr};

use ibverbs_sys as sys;

use crate::device::{Gid, TransportType};

pub(super) fn transport(transport: TransportType) -> String {
    match transport {
        TransportType::Unknown(_) => "invalid transport".to_owned(),
        known => known.to_string(),
    }
}

pub(super) fn atomics(value: sys::ibv_atomic_cap) -> &'static str {
    use sys::ibv_atomic_cap as raw;
    match value {
        raw::IBV_ATOMIC_NONE => "ATOMIC_NONE",
        raw::IBV_ATOMIC_HCA => "ATOMIC_HCA",
        raw::IBV_ATOMIC_GLOB => "ATOMIC_GLOB",
        _ => "invalid atomic capability",
    }
}

pub(super) fn port_state(value: sys::ibv_port_state) -> &'static str {
    use sys::ibv_port_state as raw;
    match value {
        raw::IBV_PORT_DOWN => "PORT_DOWN",
        raw::IBV_PORT_INIT => "PORT_INIT",
        raw::IBV_PORT_ARMED => "PORT_ARMED",
        raw::IBV_PORT_ACTIVE => "PORT_ACTIVE",
        _ => "invalid state",
    }
}

pub(super) fn mtu(value: sys::ibv_mtu) -> &'static str {
    use sys::ibv_mtu as raw;
    match value {
        raw::IBV_MTU_256 => "256",
        raw::IBV_MTU_512 => "512",
        raw::IBV_MTU_1024 => "1024",
        raw::IBV_MTU_2048 => "2048",
        raw::IBV_MTU_4096 => "4096",
        _ => "invalid MTU",
    }
}

pub(super) fn link_layer(value: u8) -> &'static str {
    match u32::from(value) {
        sys::IBV_LINK_LAYER_UNSPECIFIED => "Unspecified",
        sys::IBV_LINK_LAYER_INFINIBAND => "InfiniBand",
        sys::IBV_LINK_LAYER_ETHERNET => "Ethernet",
        _ => "Unknown",
    }
}

pub(super) fn virtual_lanes(value: u8) -> &'static str {
    match value {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid value",
    }
}

pub(super) fn width(value: u8) -> &'static str {
    match value {
        1 => "1",
        2 => "4",
        4 => "8",
        8 => "12",
        16 => "2",
        _ => "invalid width",
    }
}

pub(super) fn speed(value: u8) -> &'static str {
    match value {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        _ => "invalid speed",
    }
}

pub(super) fn physical_state(value: u8) -> &'static str {
    match value {
        1 => "SLEEP",
        2 => "POLLING",
        3 => "DISABLED",
        // `ibv_devinfo` misspells this name in the same way.
        4 => "PORT_CONFIGURATION TRAINNING",
        5 => "LINK_UP",
        6 => "LINK_ERROR_RECOVERY",
        7 => "PHY TEST",
        _ => "invalid physical state",
    }
}

/// Formats a GUID as four groups of four hexadecimal digits, as `ibv_devinfo` does.
pub(super) fn guid(value: u64) -> String {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (value >> shift) & 0xffff);
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

/// Formats a GID as eight groups of four hexadecimal digits.
pub(super) fn full_gid(gid: Gid) -> String {
    let groups = gid.to_ipv6().segments().map(|group| format!("{group:04x}"));
    groups.join(":")
}

/// Formats a GID as the C library formats an IPv6 address. The result differs from Rust's format
/// only for an address whose first 96 bits are zero: C writes the last 32 bits as an IPv4 address.
pub(super) fn short_gid(gid: Gid) -> String {
    let address: Ipv6Addr = gid.to_ipv6();
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => {
            let [a, b] = high.to_be_bytes();
            let [c, d] = low.to_be_bytes();
            format!("::{}", Ipv4Addr::new(a, b, c, d))
        }
        _ => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn identifiers_are_written_in_groups() {
        assert_eq!(guid(0x0002_c903_00ab_0001), "0002:c903:00ab:0001");
        assert_eq!(
            full_gid(gid("fe80::1:2")),
            "fe80:0000:0000:0000:0000:0000:0001:0002"
        );
    }

    #[test]
    fn addresses_are_written_as_c_does() {
        for text in ["fe80::1:2", "::ffff:10.0.0.1", "2001:db8::1", "::1", "::"] {
            assert_eq!(short_gid(gid(text)), text);
        }
        assert_eq!(short_gid(gid("::a00:1")), "::10.0.0.1");
    }
}
