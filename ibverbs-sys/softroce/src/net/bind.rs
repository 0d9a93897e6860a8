#![forbid(unsafe_code)]
//! Selection and binding of the IP addresses and the UDP port of this process.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process;

use super::gid_table::LocalAddress;
use super::port_holder;
use super::socket::{BoundAddress, HostAddress, Interface};
use crate::address;
use crate::config::Config;

/// Maximum number of addresses in 127/8 that a process tries in order to find an address with a
/// free UDP port. Few attempts are needed: the first address is derived from the process ID, so
/// other processes rarely use it.
const ATTEMPTS: u32 = 64;

/// Addresses that the process has bound, all with the same UDP port: the result of [`bind()`]. No
/// other process can bind these addresses with this port.
pub(super) struct Bound {
    pub(super) all: Vec<LocalAddress>,
    /// Slot of the process: the index of the UDP port in the device's port range.
    pub(super) slot: u8,
    /// UDP port of multicast groups: the same in all processes of a host whose configuration names
    /// no addresses.
    pub(super) group_port: u16,
}

/// Binds one UDP port on all addresses of the process. The addresses are those that the
/// configuration names, or else a loopback address and the addresses of the host.
pub(super) fn bind(config: &Config) -> io::Result<Bound> {
    if config.addresses.is_empty() {
        for name in config.interfaces.iter().flatten() {
            if !Interface::exists(name) {
                let message = format!("SOFTROCE_NETDEV: there is no network interface {name:?}");
                return Err(io::Error::new(ErrorKind::NotFound, message));
            }
        }
        let list = HostAddress::list();
        return bind_all(config, &list, &used_addresses(config, &list));
    }
    let list = HostAddress::list();
    let mut last = io::Error::from(ErrorKind::AddrInUse);
    for (slot, port) in slots(config.port) {
        let bound = config.addresses.iter().map(|&ip| {
            let found = list.iter().find(|found| found.ip == ip);
            let Some(found) = found else {
                return bind_at(&list, SocketAddr::new(ip, port));
            };
            let local_address = bind_host(found, port)?;
            // The same states that changes of the host lead to later. Loopback addresses do not
            // change.
            if !found.is_up && !ip.is_loopback() {
                local_address.set_interface(None);
            }
            Ok(local_address)
        });
        match bound.collect() {
            Ok(all) => {
                let group_port = port;
                return Ok(Bound {
                    all,
                    slot,
                    group_port,
                });
            }
            Err(error) => last = error,
        }
    }
    Err(match last.kind() {
        ErrorKind::AddrInUse => io::Error::new(
            ErrorKind::AddrInUse,
            format!("{last}; {}", all_in_use(config.port)),
        ),
        _ => last,
    })
}

/// Returns the addresses in `list` (all addresses of the host) that the device uses besides its
/// loopback address: those of all interfaces that are up. If the configuration names interfaces,
/// other interfaces are left out. Link-local addresses, which only hosts on the same network link
/// can reach, are last.
pub(super) fn used_addresses(config: &Config, list: &[HostAddress]) -> Vec<HostAddress> {
    let is_meant = |found: &&HostAddress| {
        let names = config.interfaces.as_ref();
        found.is_up
            && !found.ip.is_loopback()
            && !found.ip.is_unspecified()
            && !found.ip.is_multicast()
            && names.is_none_or(|names| names.contains(&found.interface.name))
    };
    let mut all: Vec<HostAddress> = list.iter().filter(is_meant).cloned().collect();
    let is_link_local = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    all.sort_by_key(|found| {
        let ip = found.ip;
        (is_link_local(ip), found.interface.index, ip.is_ipv6())
    });
    // Two interfaces may have the same link-local address, but a GID is that of one interface.
    let mut unique: Vec<HostAddress> = Vec::with_capacity(all.len());
    for found in all {
        if !unique.iter().any(|other| other.ip == found.ip) {
            unique.push(found);
        }
    }
    unique
}

/// Binds a loopback address of this process and the addresses `hosts`, all with one UDP port: the
/// first port of the device's range that is free on all of them. `list` has all addresses of the
/// host.
///
/// If no port is free on all addresses, uses the port that is free on most of them. The other
/// addresses get no GID, and are reported on standard error.
fn bind_all(config: &Config, list: &[HostAddress], hosts: &[HostAddress]) -> io::Result<Bound> {
    let mut last = io::Error::from(ErrorKind::AddrInUse);
    let mut best: Option<Bound> = None;
    let mut group_port = None;
    // Address whose first port another program uses: an address of the host, although the port is
    // free on other addresses, or the unspecified address for all addresses.
    let mut blocked: Option<SocketAddr> = None;
    // Number of ports in use of each address.
    let mut ports_in_use: HashMap<IpAddr, usize> = HashMap::new();
    // Usually a port is free on all addresses or on none.
    for is_partial in [false, true] {
        for (slot, port) in slots(config.port) {
            let loopback = match bind_loopback(list, port) {
                Ok(loopback) => loopback,
                Err(error) => {
                    if slot == 0 && error.kind() == ErrorKind::AddrInUse {
                        blocked = Some((Ipv4Addr::UNSPECIFIED, port).into());
                    }
                    last = error;
                    continue;
                }
            };
            let group_port = *group_port.get_or_insert(port);
            let mut all = vec![loopback];
            let mut taken = None;
            for host in hosts {
                match bind_host(host, port) {
                    Ok(local_address) => all.push(local_address),
                    Err(error) if error.kind() == ErrorKind::AddrInUse => {
                        taken = taken.or(Some(host.ip));
                        *ports_in_use.entry(host.ip).or_default() += usize::from(is_partial);
                        if !is_partial && slot > 0 {
                            break;
                        }
                    }
                    // An IPv6 address whose uniqueness is being checked cannot be bound. The kernel
                    // reports the end of the check.
                    Err(_) => {}
                }
            }
            let bound = Bound {
                all,
                slot,
                group_port,
            };
            let Some(taken) = taken else {
                if let Some(blocked) = blocked {
                    report_blocked(blocked, port);
                }
                return Ok(bound);
            };
            if slot == 0 && bound.all.len() > 1 {
                blocked = Some((taken, port).into());
            }
            if is_partial && (best.as_ref()).is_none_or(|best| best.all.len() < bound.all.len()) {
                best = Some(bound);
            }
        }
    }
    let best = best.ok_or(last)?;
    let is_bound = |host: &&HostAddress| {
        best.all
            .iter()
            .any(|local_address| local_address.local.ip() == host.ip)
    };
    for host in hosts.iter().filter(|host| !is_bound(host)) {
        if ports_in_use.get(&host.ip) == Some(&slots(config.port).count()) {
            let reason = all_in_use(config.port);
            report(format_args!(
                "the address {} gets no GID: {reason}",
                host.ip
            ));
        } else {
            report_taken(host.ip, best.port());
        }
    }
    Ok(best)
}

impl Bound {
    fn port(&self) -> u16 {
        self.all
            .first()
            .map_or(0, |local_address| local_address.local.port())
    }
}

/// Warns the user, on standard error, that another program uses the device's first UDP port. This
/// process therefore uses the port `port`. `blocked` is the address and port that the other program
/// has bound. An unspecified address stands for all addresses.
fn report_blocked(blocked: SocketAddr, port: u16) {
    let holder = port_holder::describe(blocked);
    let of_address = match blocked.ip() {
        ip if ip.is_unspecified() => String::new(),
        ip => format!(" of {ip}"),
    };
    report(format_args!(
        "the UDP port {}{of_address} is in use by {holder}, so this process uses the port {port}, at which network cards and the \
         kernel's Soft-RoCE do not reach it",
        blocked.port()
    ));
}

/// Reports to the user, on standard error, that the address `ip` gets no GID, because its UDP port
/// `port` is in use.
pub(super) fn report_taken(ip: IpAddr, port: u16) {
    let holder = port_holder::describe(SocketAddr::new(ip, port));
    report(format_args!(
        "the address {ip} gets no GID: its UDP port {port} is in use by {holder}, and no other port of the device is free on all \
         addresses"
    ));
}

/// Returns the text of an error: all UDP ports of the device are in use for an address. The text
/// names the number of processes that can use the device at a time. `base` is the first port of the
/// device's port range.
fn all_in_use(base: u16) -> String {
    let ports: Vec<u16> = slots(base).map(|(_, port)| port).collect();
    let count = ports.len();
    let last = ports.last().copied().unwrap_or(base);
    format!(
        "all {count} UDP ports of the device there, {base} to {last} in steps of {}, are in use: at \
         most {count} processes can use an address at the same time",
        address::PORT_STRIDE
    )
}

/// Writes a message about the device to standard error, for the user of the program.
pub(super) fn report(what: std::fmt::Arguments<'_>) {
    // The error is ignored: standard error may be closed.
    let _ = writeln!(io::stderr(), "softroce: {what}");
}

fn bind_loopback(list: &[HostAddress], port: u16) -> io::Result<LocalAddress> {
    let mut last = io::Error::from(ErrorKind::AddrInUse);
    for attempt in 0..ATTEMPTS {
        let ip = address::candidate(process::id(), attempt);
        match bind_at(list, SocketAddrV4::new(ip, port).into()) {
            Ok(local_address) => return Ok(local_address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reserves the UDP port `port` of `host`, an address of this host, by binding a socket. Returns
/// the address with its network interface. The address receives no packets yet.
pub(super) fn bind_host(host: &HostAddress, port: u16) -> io::Result<LocalAddress> {
    let address = host.at(port);
    let reserved = BoundAddress::bind(address).map_err(|error| named_error(error, address))?;
    Ok(LocalAddress::new(
        reserved,
        address,
        Some(host.interface.clone()),
    ))
}

/// Binds `address`, and returns the address with its network interface. Finds the interface in
/// `list`, the kernel's list of addresses. An address that is not in the list, such as most
/// addresses in 127/8, can be bound, too.
fn bind_at(list: &[HostAddress], address: SocketAddr) -> io::Result<LocalAddress> {
    let reserved = BoundAddress::bind(address).map_err(|error| named_error(error, address))?;
    let interface = Interface::find(list, address.ip());
    Ok(LocalAddress::new(reserved, address, interface))
}

/// Returns the UDP ports that the device may use, each with its slot: the index of the port in the
/// device's port range. The range begins at `base`. Ports above 65,535 are left out.
fn slots(base: u16) -> impl Iterator<Item = (u8, u16)> {
    (0..address::PORT_SLOTS)
        .filter_map(move |slot| Some((slot, address::port_of_slot(base, slot)?)))
}

/// Returns `error` with a text that names the address `address`, which could not be bound.
fn named_error(error: io::Error, address: SocketAddr) -> io::Error {
    let kind = error.kind();
    io::Error::new(kind, format!("binding {address}: {error}"))
}
