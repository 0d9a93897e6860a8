#![forbid(unsafe_code)]
//! Limits of the system and of network interfaces: buffer sizes and MTUs.

use std::fs;
use std::net::IpAddr;

use super::socket::Interface;
use crate::proto::Mtu;

/// Maximum length in bytes of the headers of a packet and its ICRC: IPv6, UDP, BTH, XRCETH, RETH, immediate data, ICRC.
pub(super) const HEADERS: usize = 40 + 8 + 12 + 4 + 16 + 4 + 4;

/// Returns the maximum size in bytes of the receive buffer that an unprivileged process gets, as the kernel counts the
/// size.
pub(super) fn unprivileged_buffer() -> usize {
    let limit = fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
    let limit = limit.and_then(|limit| limit.trim().parse::<usize>().ok());
    // The kernel doubles the requested size.
    limit.map_or(usize::MAX, |limit| limit.saturating_mul(2))
}

/// Returns the MTU in bytes of the network interface that has the address `address`.
pub(super) fn interface_mtu(address: IpAddr) -> usize {
    let interface = Interface::of(address);
    let mtu = interface.and_then(|interface| {
        fs::read_to_string(format!("/sys/class/net/{}/mtu", interface.name)).ok()
    });
    let usual = if address.is_loopback() { 1 << 16 } else { 1500 };
    mtu.and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(usual)
}

/// Returns the largest path MTU whose packets, with all headers, fit into the MTU of `bytes` bytes of a network
/// interface.
pub(super) fn carried_mtu(bytes: usize) -> Mtu {
    [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512]
        .into_iter()
        .find(|mtu| mtu.bytes() + HEADERS <= bytes)
        .unwrap_or(Mtu::Mtu256)
}
