//! Prints the GID tables of all devices, or of the named ones, as the script `show_gids` does.
//!
//! ```sh
//! cargo run -p rdma-core --example show_gids
//! ```

use std::fmt::Write as _;

use rdma_core::device::{GidEntry, GidType};
use rdma_core::{Device, Gid, Result, devices};

fn main() -> Result<()> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mut devices = devices()?;
    devices.retain(|device| names.is_empty() || names.contains(&device.name()));
    print!("{}", table(&devices)?);
    Ok(())
}

/// Returns the GIDs of these devices as a table.
pub(crate) fn table(devices: &[Device]) -> Result<String> {
    let mut text = String::from(
        "DEV\tPORT\tINDEX\tGID\t\t\t\t\tIPv4  \t\tVER\tDEV\n\
         ---\t----\t-----\t---\t\t\t\t\t------------  \t---\t---\n",
    );
    let mut count = 0;
    for device in devices {
        let mut gids = device.open()?.gids()?;
        gids.sort_by_key(|entry| (entry.port, entry.index));
        gids.retain(|entry| !is_placeholder(entry.gid));
        count += gids.len();
        for entry in &gids {
            let row = row(&device.name(), entry);
            writeln!(text, "{row}").expect("a string takes every line");
        }
    }
    writeln!(text, "n_gids_found={count}").expect("a string takes every line");
    Ok(text)
}

/// Returns whether `gid` stands for no GID: it is zero, or only the prefix of link-local addresses.
fn is_placeholder(gid: Gid) -> bool {
    gid.is_zero() || (gid.is_link_local() && gid.0[2..] == [0; 14])
}

fn row(device: &str, entry: &GidEntry) -> String {
    let groups = entry.gid.to_ipv6().segments();
    let gid = groups.map(|group| format!("{group:04x}")).join(":");
    // The column keeps its width if there is no address.
    let address = entry.gid.to_ipv4().map(|address| format!("{address}  "));
    let address = address.unwrap_or_else(|| "\t".into());
    let version = match entry.kind {
        GidType::RoceV1 => "v1",
        GidType::RoceV2 => "v2",
        _ => "",
    };
    let interface = entry.interface_name().unwrap_or_default();
    let (port, index) = (entry.port, entry.index);
    format!("{device}\t{port}\t{index}\t{gid}\t{address}\t{version}\t{interface}")
}
