//! Lists the RDMA devices of this system: ports, GIDs, and the address that this crate would use.
//!
//! ```sh
//! cargo run -p rdma-core --example devices
//! ```

use std::fmt::Write as _;

use rdma_core::device::{GidEntry, PortAttributes};
use rdma_core::{AddressChoice, Device, Result, devices};

fn main() -> Result<()> {
    let devices = devices()?;
    if devices.is_empty() {
        return Err(rdma_core::Error::NoDevice);
    }
    for device in &devices {
        print!("{}", described(device)?);
    }
    Ok(())
}

/// Returns a description of a device, with one line for each property.
pub(crate) fn described(device: &Device) -> Result<String> {
    let context = device.open()?;
    let firmware = context.attributes()?.firmware_version();
    let (guid, node) = (device.guid(), device.node_type());
    let mut text = format!(
        "{}: {node}, node GUID {guid:016x}, firmware {firmware}\n",
        device.name()
    );
    if let Some(node) = device.numa_node() {
        line(&mut text, 1, &format!("NUMA node {node}"));
    }
    let gids = context.gids()?;
    for port in context.ports()? {
        line(&mut text, 1, &port_described(&port));
        let protocols = context.protocols(port.number())?;
        let protocols: Vec<_> = protocols.iter().map(ToString::to_string).collect();
        line(&mut text, 2, &format!("speaks {}", protocols.join(", ")));
        for entry in gids.iter().filter(|entry| entry.port == port.number()) {
            line(&mut text, 2, &gid_described(entry));
        }
    }
    match context.address(AddressChoice::default()) {
        Ok(address) => line(&mut text, 1, &format!("would use {address}")),
        Err(error) => line(&mut text, 1, &format!("cannot be used: {error}")),
    }
    Ok(text)
}

fn port_described(port: &PortAttributes) -> String {
    let mtu = port
        .active_mtu()
        .map_or_else(|| "no MTU".to_owned(), |mtu| format!("path MTU {mtu}"));
    let rate = port.megabits_per_second().map_or_else(String::new, |rate| {
        format!("{} Gbit/s ", f64::from(rate) / 1000.0)
    });
    let (state, link) = (port.state(), port.link_layer());
    let (width, speed) = (port.width(), port.speed());
    let number = port.number();
    format!("port {number}: {state}, {link}, {rate}({width} {speed}), {mtu}")
}

fn gid_described(entry: &GidEntry) -> String {
    match entry.interface_name() {
        Some(interface) => format!("GID {entry} on {interface}"),
        None => format!("GID {entry}"),
    }
}

fn line(text: &mut String, indent: usize, what: &str) {
    writeln!(text, "{:1$}{what}", "", indent * 2).expect("a string takes every line");
}
