//! Finds or creates the network device that a Soft-RoCE device uses.

use std::fs;
use std::path::Path;

use anyhow::ensure;
use xshell::{Shell, cmd};

use crate::packages::Privilege;

/// The name of the dummy network device that xtask creates if there is no other network device to
/// use.
const DUMMY: &str = "softroce0";

/// The IPv4 address of the dummy network device, with the length of its prefix. The GID of the
/// Soft-RoCE device is derived from this address.
const DUMMY_ADDRESS: &str = "10.77.0.1/24";
/// The MTU in bytes of the dummy network device that xtask creates for a Soft-RoCE device, as an
/// argument of `ip`. Has room for RoCE's largest path MTU and headers.
const MTU: &str = "4200";

/// Returns whether this machine has a network device with the name `name`.
pub(crate) fn exists(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && Path::new("/sys/class/net").join(name).exists()
}

/// Returns the name of the network device of the default route; `None` if there is no default
/// route.
pub(crate) fn of_default_route() -> Option<String> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    default_of_ipv4(&text("/proc/net/route"))
        .or_else(|| default_of_ipv6(&text("/proc/net/ipv6_route")))
}

/// Returns the name of a dummy network device, which connects this machine only with itself.
/// Creates the device if it does not exist. Used if the caller named no network device and there is
/// no default route.
pub(crate) fn dummy(shell: &Shell) -> anyhow::Result<String> {
    let configured = exists(DUMMY) && {
        let addresses = cmd!(shell, "ip -brief -4 address show dev {DUMMY} up").quiet();
        addresses
            .read()
            .is_ok_and(|line| line.contains(DUMMY_ADDRESS))
    };
    if configured {
        return Ok(DUMMY.to_owned());
    }
    let Some(privilege) = Privilege::acquire(shell) else {
        anyhow::bail!(
            "no default route, and making a network device takes root. Run\n    \
             sudo ip link add {DUMMY} mtu {MTU} type dummy\n    \
             sudo ip address replace {DUMMY_ADDRESS} dev {DUMMY}\n    \
             sudo ip link set {DUMMY} up\nor name a device with --netdev"
        );
    };
    if !exists(DUMMY) {
        privilege.run(
            shell,
            &["ip", "link", "add", DUMMY, "mtu", MTU, "type", "dummy"],
        )?;
    }
    privilege.run(
        shell,
        &["ip", "address", "replace", DUMMY_ADDRESS, "dev", DUMMY],
    )?;
    privilege.run(shell, &["ip", "link", "set", DUMMY, "up"])?;
    ensure!(exists(DUMMY), "{DUMMY} was created but does not exist");
    Ok(DUMMY.to_owned())
}

/// Returns the name of the network device of the IPv4 default route with the lowest metric.
/// `routes` has the lines of `/proc/net/route`: interface, destination, gateway, flags, uses,
/// references, metric, mask.
fn default_of_ipv4(routes: &str) -> Option<String> {
    let defaults = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, "00000000", _, _, _, _, metric, "00000000", ..] = fields[..] else {
            return None;
        };
        Some((metric.parse::<u32>().ok()?, interface.to_owned()))
    });
    defaults.min().map(|(_, interface)| interface)
}

/// Returns the name of the network device of the IPv6 default route with the lowest metric.
/// `routes` has the lines of `/proc/net/ipv6_route`: destination, its prefix length, source, its
/// prefix length, next hop, metric, references, uses, flags, interface.
fn default_of_ipv6(routes: &str) -> Option<String> {
    let defaults = routes.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, "00", _, _, _, metric, _, _, _, interface] = fields[..] else {
            return None;
        };
        // A route on the interface lo means that the destination is unreachable.
        let real = destination.bytes().all(|digit| digit == b'0') && interface != "lo";
        let metric = u32::from_str_radix(metric, 16).ok()?;
        real.then(|| (metric, interface.to_owned()))
    });
    defaults.min().map(|(_, interface)| interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_with_the_lowest_metric_wins() {
        let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                      wlan0 00000000 0101A8C0 0003 0 0 600 00000000 0 0 0\n\
                      eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0\n\
                      eth1 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        assert_eq!(default_of_ipv4(routes).as_deref(), Some("eth0"));
        assert_eq!(default_of_ipv4("Iface Destination\n"), None);
    }

    #[test]
    fn an_unreachable_default_of_ipv6_is_none() {
        let zero = "0".repeat(32);
        let hop = "fe800000000000000000000000000001";
        let lo = format!("{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n");
        let eth = format!("{zero} 00 {zero} 00 {hop} 00000400 00000001 00000000 00000003 eth0\n");
        assert_eq!(default_of_ipv6(&lo), None);
        assert_eq!(
            default_of_ipv6(&format!("{lo}{eth}")).as_deref(),
            Some("eth0")
        );
    }
}
