//! Reads the GID table of a RoCE port, and chooses the entry that a connection uses.

use std::fmt;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// An entry of the GID table (the table of addresses) of a RoCE port, as sysfs shows the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    /// The index of the entry in the GID table.
    pub(crate) index: u32,
    /// The GID, which has the form of an IPv6 address.
    pub(crate) address: Ipv6Addr,
    /// Set if the entry is for RoCE v2 (RDMA over UDP). An entry for RoCE v1 may have the same
    /// address.
    pub(crate) version_2: bool,
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.version_2 { "v2" } else { "v1" };
        match self.address.to_ipv4_mapped() {
            Some(address) => write!(f, "GID index {} ({address}, RoCE {version})", self.index),
            None => write!(
                f,
                "GID index {} ({}, RoCE {version})",
                self.index, self.address
            ),
        }
    }
}

/// Returns the GID table of port 1 of `device`, without unused entries.
pub(crate) fn table(device: &str) -> Vec<Gid> {
    table_in(
        &Path::new("/sys/class/infiniband")
            .join(device)
            .join("ports/1"),
    )
}

fn table_in(port: &Path) -> Vec<Gid> {
    // Unused entries read as zero, or cannot be read.
    let entries = (0..256).map_while(|index| {
        let text = fs::read_to_string(port.join(format!("gids/{index}"))).ok()?;
        let kind = fs::read_to_string(port.join(format!("gid_attrs/types/{index}")));
        let version_2 = kind.is_ok_and(|kind| kind.trim() == "RoCE v2");
        Some(text.trim().parse().ok().map(|address| Gid {
            index,
            address,
            version_2,
        }))
    });
    entries
        .flatten()
        .filter(|gid| !gid.address.is_unspecified())
        .collect()
}

/// Returns the entry of `table` that a program should use. RoCE v2 has priority over RoCE v1. Among
/// entries of one version, IPv4 addresses have priority over global IPv6 addresses, and link-local
/// addresses come last. Skips entries whose addresses are in `unusable`. Returns `None` if no entry
/// is left.
pub(crate) fn choose<'a>(table: &'a [Gid], unusable: &[Ipv6Addr]) -> Option<&'a Gid> {
    let usable = table.iter().filter(|gid| !unusable.contains(&gid.address));
    usable.min_by_key(|gid| {
        let scope = if gid.address.to_ipv4_mapped().is_some() {
            0
        } else if gid.address.is_unicast_link_local() {
            2
        } else {
            1
        };
        (!gid.version_2, scope, gid.index)
    })
}

/// Waits until the GID table of `device` has a usable entry, and returns this entry. Returns `None`
/// after the time `limit`.
///
/// An IPv4 entry is usable as soon as it is in the table. Any other entry is usable if its address
/// is assigned to `netdev` and duplicate address detection is over. The check is needed because the
/// kernel adds an entry derived from the MAC address even if no such address is assigned.
pub(crate) fn wait_usable(device: &str, netdev: &str, limit: Duration) -> Option<Gid> {
    let deadline = Instant::now() + limit;
    loop {
        let table = table(device);
        let ready = ready_addresses(
            &fs::read_to_string("/proc/net/if_inet6").unwrap_or_default(),
            netdev,
        );
        let unusable: Vec<Ipv6Addr> = table
            .iter()
            .map(|gid| gid.address)
            .filter(|address| address.to_ipv4_mapped().is_none() && !ready.contains(address))
            .collect();
        if let Some(gid) = choose(&table, &unusable) {
            return Some(gid.clone());
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the IPv6 addresses of `netdev` that can be used: the kernel has checked that they are
/// not duplicates. `text` has the lines of `/proc/net/if_inet6`: address, interface number, prefix
/// length, scope, flags, interface.
fn ready_addresses(text: &str, netdev: &str) -> Vec<Ipv6Addr> {
    const DUPLICATE: u32 = 0x08;
    const TENTATIVE: u32 = 0x40;
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, _, flags, interface] = fields[..] else {
            return None;
        };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let address = u128::from_str_radix(address, 16).ok()?;
        (interface == netdev && flags & (DUPLICATE | TENTATIVE) == 0).then(|| address.into())
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, version_2: bool) -> Gid {
        Gid {
            index,
            address: address.parse().unwrap(),
            version_2,
        }
    }

    #[test]
    fn an_ipv4_address_over_udp_is_best() {
        let table = [
            gid(0, "fe80::1", true),
            gid(1, "::ffff:10.0.0.1", false),
            gid(2, "2001:db8::1", true),
            gid(3, "::ffff:10.0.0.1", true),
        ];
        assert_eq!(choose(&table, &[]).unwrap().index, 3);
        assert_eq!(choose(&table[..3], &[]).unwrap().index, 2);
        assert_eq!(choose(&table[..2], &[]).unwrap().index, 0);
        assert_eq!(choose(&table[..1], &["fe80::1".parse().unwrap()]), None);
    }

    #[test]
    fn tentative_addresses_are_not_ready() {
        let text = "fe80000000000000f854bafffe463f4b 05 40 20 80     veth0\n\
                    fe800000000000006819f4fffeecb509 04 40 20 c0     veth1\n\
                    20010db8000000000000000000000001 04 40 00 80     veth1\n";
        let addresses = |netdev| ready_addresses(text, netdev);
        assert_eq!(
            addresses("veth0"),
            ["fe80::f854:baff:fe46:3f4b".parse::<Ipv6Addr>().unwrap()]
        );
        assert_eq!(
            addresses("veth1"),
            ["2001:db8::1".parse::<Ipv6Addr>().unwrap()]
        );
    }

    #[test]
    fn the_table_is_read_from_sysfs() {
        let port = std::env::temp_dir().join(format!("xtask-gids-{}", std::process::id()));
        fs::create_dir_all(port.join("gids")).unwrap();
        fs::create_dir_all(port.join("gid_attrs/types")).unwrap();
        let entries = [
            "fe80:0000:0000:0000:0000:0000:0000:0001",
            "0000:0000:0000:0000:0000:ffff:0a4d:0001",
            "0000:0000:0000:0000:0000:0000:0000:0000",
        ];
        for (index, entry) in entries.iter().enumerate() {
            fs::write(port.join(format!("gids/{index}")), format!("{entry}\n")).unwrap();
            fs::write(port.join(format!("gid_attrs/types/{index}")), "RoCE v2\n").unwrap();
        }
        let table = table_in(&port);
        fs::remove_dir_all(&port).unwrap();
        assert_eq!(
            table,
            [gid(0, "fe80::1", true), gid(1, "::ffff:10.77.0.1", true)]
        );
        assert_eq!(table[1].to_string(), "GID index 1 (10.77.0.1, RoCE v2)");
    }
}
