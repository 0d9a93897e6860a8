#![forbid(unsafe_code)]
//! Search for the program that has bound a UDP port, for messages to the user.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns a text for the user about the program that has bound `address`. The program may also
/// have bound the port of `address` on all addresses.
pub(super) fn describe(address: SocketAddr) -> String {
    let Some(inode) = inode_of(address) else {
        return "another program".into();
    };
    let target = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holder = ids.find(|id| has_descriptor(&format!("/proc/{id}/fd"), &target));
    let Some(id) = holder else {
        // The kernel has no descriptors, and those of other users cannot be read.
        return "the kernel's Soft-RoCE or a program of another user".into();
    };
    let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    format!("the program {} (process {id})", name.trim_end())
}

/// Returns the inode of the UDP socket that is bound to `address`, or to the port of `address` on
/// all addresses.
fn inode_of(address: SocketAddr) -> Option<u64> {
    let lists = ["/proc/net/udp", "/proc/net/udp6"].map(fs::read_to_string);
    let lists = lists.map(Result::unwrap_or_default);
    let mut sockets = lists.iter().flat_map(|list| list.lines().skip(1));
    sockets.find_map(|line| {
        let (bound, inode) = parse_line(line)?;
        let is_meant = bound.ip() == address.ip() || bound.ip().is_unspecified();
        (is_meant && bound.port() == address.port()).then_some(inode)
    })
}

/// Parses a line of the kernel's list of UDP sockets: the local address and the inode.
fn parse_line(line: &str) -> Option<(SocketAddr, u64)> {
    let mut fields = line.split_whitespace();
    let (ip, port) = fields.nth(1)?.split_once(':')?;
    let inode = fields.nth(7)?.parse().ok()?;
    // Each word is printed as a number of the machine, but has the byte order of the network.
    let words: Vec<[u8; 4]> = (0..ip.len() / 8)
        .map(|at| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok())
        .map(|word| word.map(u32::to_ne_bytes))
        .collect::<Option<_>>()?;
    let ip: IpAddr = match *words {
        [word] => Ipv4Addr::from(word).into(),
        _ => Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?).into(),
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(ip, port), inode))
}

/// Returns whether a process has the file `target` open. `descriptors` is the directory of the
/// process's descriptors, `/proc/PID/fd`.
fn has_descriptor(descriptors: &str, target: &str) -> bool {
    fs::read_dir(descriptors)
        .into_iter()
        .flatten()
        .flatten()
        .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|link| link == *target))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn the_holder_of_a_port_is_named() {
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let Ok(socket) = UdpSocket::bind(address) else {
                assert_eq!(address, "[::1]:0", "only IPv6 may be missing");
                continue;
            };
            let bound = socket.local_addr().unwrap();
            let asked = match bound.ip().is_unspecified() {
                true => (Ipv4Addr::LOCALHOST, bound.port()).into(),
                false => bound,
            };
            let found = describe(asked);
            let own = format!("(process {})", std::process::id());
            assert!(found.ends_with(&own), "{address}: {found}");
        }
    }

    #[test]
    fn a_port_without_a_socket_has_no_known_holder() {
        assert_eq!(describe((Ipv4Addr::LOCALHOST, 0).into()), "another program");
    }

    #[test]
    fn lines_that_are_not_understood_are_skipped() {
        for line in [
            "",
            "1: 0:1",
            "1: 0100007F:12B7 0:0 07 0:0 0:0 0 0 0 x",
            "1: é100007F:1",
        ] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }
}
