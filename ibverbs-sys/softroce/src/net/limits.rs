#![forbid(unsafe_code)]
//! Limits of the system and of network interfaces: buffer sizes and MTUs.

use std::fs;
use std::net::IpAddr;

use super::socket::Interface;
use crate::proto::Mtu;

/// Maximum length in bytes of the headers and the ICRC of a packet with payload. An RDMA write with
/// immediate data over IPv6 and XRC has this length: IPv6, UDP, BTH, XRCETH, RETH, immediate data,
/// ICRC.
pub(super) const MAX_HEADERS: usize = 40 + 8 + 12 + 4 + 16 + 4 + 4;

/// Returns the maximum size in bytes of the receive buffer of an unprivileged process's socket. The
/// result is twice the value of `net.core.rmem_max`, because the kernel doubles requested sizes.
pub(super) fn unprivileged_buffer() -> usize {
    let limit = fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
    let limit = limit.and_then(|limit| limit.trim().parse::<usize>().ok());
    // The kernel doubles the requested size.
    limit.map_or(usize::MAX, |limit| limit.saturating_mul(2))
}

/// Returns the MTU in bytes of the network interface `interface`, which has the address `address`.
/// If the interface is `None` or does not exist any more, returns the usual MTU: 65,536 for a
/// loopback address, 1500 for others.
pub(super) fn interface_mtu(interface: Option<&Interface>, address: IpAddr) -> usize {
    let usual = if address.is_loopback() { 1 << 16 } else { 1500 };
    interface.and_then(Interface::mtu).unwrap_or(usual)
}

/// Returns the largest path MTU whose packets fit, with all headers, into a network interface's MTU
/// of `bytes` bytes.
pub(super) fn path_mtu(bytes: usize) -> Mtu {
    [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512]
        .into_iter()
        .find(|mtu| mtu.bytes() + MAX_HEADERS <= bytes)
        .unwrap_or(Mtu::Mtu256)
}
