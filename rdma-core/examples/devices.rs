//! Lists the RDMA devices of this system: ports, GIDs, and the address that this crate would use.
//!
//! ```sh
//! cargo run -p rdma-core --example devices
//! ```

use std::fmt::Write as _;

use rdma_core::{AddressChoice, Device, PortAttributes, Result, devices};

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

/// A device in words, a line for each thing there is to say.
pub(crate) fn described(device: &Device) -> Result<String> {
    let context = device.open()?;
    let firmware = context.attributes()?.firmware_version();
    let guid = device.guid();
    let mut text = format!(
        "{}: node GUID {guid:016x}, firmware {firmware}\n",
        device.name()
    );
    let gids = context.gids()?;
    for port in context.ports()? {
        line(&mut text, 1, &port_described(&port));
        for entry in gids.iter().filter(|entry| entry.port == port.number()) {
            line(&mut text, 2, &format!("GID {entry}"));
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
    let (state, link) = (port.state(), port.link_layer());
    format!("port {}: {state}, {link}, {mtu}", port.number())
}

fn line(text: &mut String, indent: usize, what: &str) {
    writeln!(text, "{:1$}{what}", "", indent * 2).expect("a string takes every line");
}
