#![forbid(unsafe_code)]
//! The choice of the IP addresses and the UDP port to which the sockets are bound.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::process;

use super::socket::{Interface, Socket};
use crate::address;
use crate::config::Config;

/// Maximum number of addresses in 127/8 that a process tries to bind with the same port.
const ATTEMPTS: u32 = 64;

/// Binds UDP sockets to the addresses and the port of the configuration. Returns the sockets, and the slot of their
/// port: its number in the device's port range.
pub(super) fn bind(config: &Config) -> io::Result<(Vec<Socket>, u8)> {
    let buffer = config.receive_buffer;
    if config.addresses.is_empty() {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for (slot, port) in slots(config.port) {
            for attempt in 0..ATTEMPTS {
                let ip = address::candidate(process::id(), attempt);
                match Socket::bind(SocketAddrV4::new(ip, port).into(), buffer) {
                    Ok(socket) => return Ok((vec![socket], slot)),
                    Err(error) => last = naming(error, ip.into(), port),
                }
            }
        }
        return Err(last);
    }
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for (slot, port) in slots(config.port) {
        let bound = config.addresses.iter().map(|&ip| {
            let address = match ip {
                IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
                IpAddr::V6(ip) => {
                    let local = ip.is_unicast_link_local();
                    let interface = local.then(|| Interface::of(ip.into())).flatten();
                    SocketAddrV6::new(ip, port, 0, interface.map_or(0, |i| i.index)).into()
                }
            };
            Socket::bind(address, buffer).map_err(|error| naming(error, ip, port))
        });
        match bound.collect() {
            Ok(sockets) => return Ok((sockets, slot)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns the slots (numbers of the ports in the device's port range, from `base` on), each with its port.
fn slots(base: u16) -> impl Iterator<Item = (u8, u16)> {
    (0..address::SLOTS).filter_map(move |slot| Some((slot, address::port_of_slot(base, slot)?)))
}

/// Returns `error` with a text that names the address that could not be bound.
fn naming(error: io::Error, ip: IpAddr, port: u16) -> io::Error {
    let kind = error.kind();
    io::Error::new(
        kind,
        format!("binding {}: {error}", SocketAddr::new(ip, port)),
    )
}
