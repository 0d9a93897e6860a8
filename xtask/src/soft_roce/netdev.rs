//! Finds or creates the network device that the Soft-RoCE device uses.

use std::fs;
use std::path::Path;

use anyhow::ensure;
use xshell::{Shell, cmd};

use crate::packages::Privilege;

/// The name of the network device that xtask creates if there is no other network device to use.
const OWN: &str = "softroce0";

/// The IPv4 address of the network device that xtask creates.
const OWN_ADDRESS: &str = "10.77.0.1/24";
/// The MTU of the network device that xtask creates, sufficient for RoCE's largest path MTU.
const OWN_MTU: &str = "4200";

/// Returns whether there is a network device of this name.
pub(crate) fn exists(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && Path::new("/sys/class/net").join(name).exists()
}

/// Returns the network device of the default route, which leads to other machines.
pub(crate) fn of_default_route() -> Option<String> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    default_of_ipv4(&text("/proc/net/route"))
        .or_else(|| default_of_ipv6(&text("/proc/net/ipv6_route")))
}

/// Returns the network device to use if the caller named no device and there is no default route: a
/// dummy device, which connects the machine with itself. Creates the dummy device if necessary.
pub(crate) fn own(shell: &Shell) -> anyhow::Result<String> {
    let configured = exists(OWN) && {
        let addresses = cmd!(shell, "ip -brief -4 address show dev {OWN} up").quiet();
        addresses
            .read()
            .is_ok_and(|line| line.contains(OWN_ADDRESS))
    };
    if configured {
        return Ok(OWN.to_owned());
    }
    let Some(privilege) = Privilege::acquire(shell) else {
        anyhow::bail!(
            "no default route, and making a network device takes root. Run\n    \
             sudo ip link add {OWN} mtu {OWN_MTU} type dummy\n    \
             sudo ip address replace {OWN_ADDRESS} dev {OWN}\n    \
             sudo ip link set {OWN} up\nor name a device with --netdev"
        );
    };
    if !exists(OWN) {
        privilege.run(
            shell,
            &["ip", "link", "add", OWN, "mtu", OWN_MTU, "type", "dummy"],
        )?;
    }
    privilege.run(
        shell,
        &["ip", "address", "replace", OWN_ADDRESS, "dev", OWN],
    )?;
    privilege.run(shell, &["ip", "link", "set", OWN, "up"])?;
    ensure!(exists(OWN), "{OWN} was made and is gone");
    Ok(OWN.to_owned())
}

/// Returns the interface of the default route with the lowest metric, from the lines of
/// `/proc/net/route`: interface, destination, gateway, flags, uses, references, metric, mask.
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

/// Returns the interface of the default route with the lowest metric, from the lines of
/// `/proc/net/ipv6_route`: destination, its prefix length, source, its prefix length, next hop, metric,
/// references, uses, flags, interface.
fn default_of_ipv6(routes: &str) -> Option<String> {
    let defaults = routes.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, "00", _, _, _, metric, _, _, _, interface] = fields[..] else {
            return None;
        };
        // A route on lo means that the destination is unreachable.
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
