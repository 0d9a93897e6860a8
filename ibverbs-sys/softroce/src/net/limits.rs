#![forbid(unsafe_code)]
//! What the system and the interfaces carry.

use std::fs;
use std::net::IpAddr;

use super::socket::Interface;
use crate::proto::Mtu;

/// What the headers of a packet take beside its payload at most: those of IPv6 and UDP, BTH, XRCETH, RETH, immediate data
/// and the ICRC.
pub(super) const HEADERS: usize = 40 + 8 + 12 + 4 + 16 + 4 + 4;

/// The largest receive buffer that a process without privileges may have.
pub(super) fn unprivileged_buffer() -> usize {
    let limit = fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
    let limit = limit.and_then(|limit| limit.trim().parse::<usize>().ok());
    // The kernel doubles what it is asked for.
    limit.map_or(usize::MAX, |limit| limit.saturating_mul(2))
}

/// The bytes that the interface of an address carries in a packet.
pub(super) fn interface_mtu(address: IpAddr) -> usize {
    let interface = Interface::of(address);
    let mtu = interface.and_then(|interface| {
        fs::read_to_string(format!("/sys/class/net/{}/mtu", interface.name)).ok()
    });
    let usual = if address.is_loopback() { 1 << 16 } else { 1500 };
    mtu.and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(usual)
}

/// The largest MTU whose packets an interface carries whole that carries so many bytes.
pub(super) fn carried_mtu(bytes: usize) -> Mtu {
    [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512]
        .into_iter()
        .find(|mtu| mtu.bytes() + HEADERS <= bytes)
        .unwrap_or(Mtu::Mtu256)
}
