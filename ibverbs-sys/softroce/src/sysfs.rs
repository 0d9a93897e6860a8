#![forbid(unsafe_code)]
//! Files of the device under `/sys` and `/dev`, as the kernel has them for its devices.
//!
//! This module only describes files. The library for `LD_PRELOAD` (the nested crate
//! `softroce-preload`) shows them to programs. A program that links this crate does not have these
//! files.
//!
//! Names and formats are the same as in the kernel
//! (`Documentation/ABI/stable/sysfs-class-infiniband`), and the set of files is the same as for the
//! kernel's Soft-RoCE. Like that device, this device has no parent device, so no `device` link
//! exists, and no file names a NUMA node.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv6Addr;

use crate::abi::device::show_files;
use crate::abi::fork;
use crate::abi::gid::PARTITION_KEY;
use crate::abi::real::InRealLibrary;
use crate::config::Config;
use crate::counters::counters;
use crate::net::GIDS;
use crate::nic::{self, Nic};

/// Description of a file under `/sys` or `/dev` that shows the softroce device to programs. The
/// description contains the type of the file, and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum File {
    /// A directory.
    Directory,
    /// A file with this text.
    Text(String),
    /// A symbolic link with this target.
    Link(String),
}

/// Directories under `/dev` and `/sys` in which the softroce device has entries. The kernel's own
/// devices may have entries there, too.
pub const SHARED: [&str; 5] = [
    "/dev/infiniband",
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/devices/virtual/infiniband",
    "/sys/devices/virtual/infiniband_verbs",
];

/// Target of the symbolic link in `/dev/infiniband` that stands for the device node of the softroce
/// device. Every user can open this file. The file supports none of the commands by which programs
/// call the kernel's verbs.
pub const NODE: &str = "/dev/null";

/// Device number of [`NODE`], in the format of the sysfs file `dev` (`MAJOR:MINOR`).
const NODE_NUMBER: &str = "1:3";

/// Content of the sysfs file `abi_version`: the version of the interface between a kernel driver
/// and its library. The softroce device has no driver in the kernel, so no library depends on this
/// number.
const ABI_VERSION: u32 = 1;

/// Makes the `ibv_device` object of the softroce device contain the paths of the device's
/// directories under `/sys/class`. The library that simulates these files (loaded with
/// `LD_PRELOAD`) calls this function. Without that library, the files do not exist. Must be called
/// before `ibv_get_device_list`.
pub fn show() {
    show_files();
}

/// Returns the configured name of the softroce device of this process.
pub fn device_name() -> &'static str {
    // An invalid configuration is reported when the device is opened.
    Config::of_process().map_or("softroce0", |config| &config.device)
}

/// Returns whether the calling thread is executing a function of the real libibverbs. The caller
/// must then hide the files of the softroce device from this function.
pub fn is_real_library_running() -> bool {
    InRealLibrary::is()
}

/// Snapshot of the state of the device that the files under `/sys` show, such as the counters and
/// the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    guid: u64,
    /// Set if the port is active. The files of the port contain this state.
    is_up: bool,
    /// Entries of the GID table that are not empty, by their indices.
    gids: BTreeMap<usize, Gid>,
    counters: Vec<(&'static str, u64)>,
}

/// An entry of the GID table, with the values that the files under `/sys` show for the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gid {
    address: Ipv6Addr,
    /// Name of the network interface that has the address of the GID. `None` if no interface has
    /// it.
    interface: Option<String>,
}

impl State {
    /// Returns the current state of the device. Before the process opens the device, the device is
    /// not connected to the network, so its port is down and has no GIDs.
    pub fn present() -> Self {
        // Another thread may hold a lock that is needed here while this process is forked.
        fork::register_handlers();
        let nic = Nic::opened();
        let gids = nic.iter().flat_map(|nic| {
            nic.gids().map(|(index, address)| {
                let index = usize::from(index);
                let interface = nic.interface_name(index);
                (index, Gid { address, interface })
            })
        });
        Self {
            guid: nic::guid(),
            is_up: nic.as_ref().is_some_and(|nic| nic.link_is_up()),
            gids: gids.collect(),
            counters: counters().all().collect(),
        }
    }

    /// Returns all files of the device under `/sys` and `/dev`, with their absolute paths. Parent
    /// directories come before their files.
    pub fn files(&self) -> BTreeMap<String, File> {
        let mut files = Files::default();
        let name = device_name();
        for directory in SHARED {
            files.directories(directory);
        }
        files.link(&format!("/dev/infiniband/{name}"), NODE);
        for class in ["infiniband", "infiniband_verbs"] {
            let directory = format!("/sys/devices/virtual/{class}/{name}");
            files.directories(&directory);
            files.link(
                &format!("/sys/class/{class}/{name}"),
                &format!("../../devices/virtual/{class}/{name}"),
            );
            files.link(
                &format!("{directory}/subsystem"),
                &format!("../../../../class/{class}"),
            );
        }
        files.describe_node(&format!("/sys/devices/virtual/infiniband_verbs/{name}"));
        files.describe_device(&format!("/sys/devices/virtual/infiniband/{name}"), self);
        files.0
    }
}

#[derive(Debug, Default)]
struct Files(BTreeMap<String, File>);

impl Files {
    /// Adds the directory `path` and all its parent directories to this set of files.
    fn directories(&mut self, path: &str) {
        for (end, _) in path.match_indices('/').skip(1) {
            self.0.insert(path[..end].to_owned(), File::Directory);
        }
        self.0.insert(path.to_owned(), File::Directory);
    }

    fn link(&mut self, path: &str, target: &str) {
        self.0
            .insert(path.to_owned(), File::Link(target.to_owned()));
    }

    /// Adds a file to this set of files: the file `name` in `directory`, which contains the line
    /// `text`.
    fn line(&mut self, directory: &str, name: impl std::fmt::Display, text: &str) {
        self.0.insert(
            format!("{directory}/{name}"),
            File::Text(format!("{text}\n")),
        );
    }

    /// Adds the files to `directory`, a directory of the sysfs tree, that describe the device's
    /// node in `/dev/infiniband`: its name and its device number.
    fn describe_node(&mut self, directory: &str) {
        let name = device_name();
        self.line(directory, "abi_version", &ABI_VERSION.to_string());
        self.line(directory, "dev", NODE_NUMBER);
        self.line(directory, "ibdev", name);
        let number: Vec<_> = NODE_NUMBER.split(':').collect();
        let text = format!(
            "MAJOR={}\nMINOR={}\nDEVNAME=infiniband/{name}",
            number[0], number[1]
        );
        self.line(directory, "uevent", &text);
    }

    fn describe_device(&mut self, directory: &str, state: &State) {
        let name = device_name();
        let guid = groups(&state.guid.to_be_bytes());
        self.line(directory, "fw_ver", env!("CARGO_PKG_VERSION"));
        self.line(directory, "node_desc", name);
        self.line(directory, "node_guid", &guid);
        self.line(directory, "node_type", "1: CA");
        self.line(directory, "sys_image_guid", &guid);
        self.line(directory, "uevent", &format!("NAME={name}"));
        let port = format!("{directory}/ports/1");
        self.directories(&port);
        self.describe_port(&port, state);
        self.describe_gids(&port, &state.gids);
        self.describe_counters(&port, &state.counters);
    }

    fn describe_port(&mut self, directory: &str, state: &State) {
        let (logical, physical) = if state.is_up {
            ("4: ACTIVE", "5: LinkUp")
        } else {
            ("1: DOWN", "3: Disabled")
        };
        self.line(directory, "cap_mask", "0x04000000");
        self.line(directory, "lid", "0x0");
        self.line(directory, "lid_mask_count", "0");
        self.line(directory, "link_layer", "Ethernet");
        self.line(directory, "phys_state", physical);
        self.line(directory, "rate", "10 Gb/sec (1X FDR10)");
        self.line(directory, "sm_lid", "0x0");
        self.line(directory, "sm_sl", "0");
        self.line(directory, "state", logical);

        let keys = format!("{directory}/pkeys");
        self.directories(&keys);
        self.line(&keys, 0, &format!("{PARTITION_KEY:#06x}"));
    }

    /// Adds the files of the GID table `table` to `directory`. Each index of the table has one file
    /// for the GID, one file for its type and one file for its interface. If the table has no entry
    /// at the index, the file for the GID contains a zero GID, and the two other files are empty.
    /// (A read of the kernel's files would fail with `EINVAL` instead.) The file for the interface
    /// is also empty if no interface has the GID's address.
    fn describe_gids(&mut self, directory: &str, table: &BTreeMap<usize, Gid>) {
        let gids = format!("{directory}/gids");
        let types = format!("{directory}/gid_attrs/types");
        let interfaces = format!("{directory}/gid_attrs/ndevs");
        for directory in [&gids, &types, &interfaces] {
            self.directories(directory);
        }
        for index in 0..GIDS {
            let gid = table.get(&index);
            let address = gid.map_or(Ipv6Addr::UNSPECIFIED, |gid| gid.address);
            self.line(&gids, index, &groups(&address.octets()));
            for (directory, text) in [
                (&types, gid.map(|_| "RoCE v2")),
                (&interfaces, gid.and_then(|gid| gid.interface.as_deref())),
            ] {
                let path = format!("{directory}/{index}");
                let text = text.map_or(String::new(), |text| format!("{text}\n"));
                self.0.insert(path, File::Text(text));
            }
        }
    }

    /// Adds a file for each of `counters`, which are names and values of the port's counters. The
    /// file contains the value. Counters of every InfiniBand port (IBTA 16.1.3) are in one
    /// subdirectory of `directory`, and the other counters in another subdirectory.
    fn describe_counters(&mut self, directory: &str, counters: &[(&str, u64)]) {
        let standard = format!("{directory}/counters");
        let own = format!("{directory}/hw_counters");
        self.directories(&standard);
        self.directories(&own);
        for (name, value) in counters {
            let is_standard = name.starts_with("port_");
            let directory = if is_standard { &standard } else { &own };
            self.line(directory, name, &value.to_string());
        }
    }
}

/// Returns `bytes` in the form in which the kernel shows GUIDs and GIDs: groups of four hexadecimal
/// digits, separated by colons.
fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for pair in bytes.chunks(2) {
        if !text.is_empty() {
            text.push(':');
        }
        for byte in pair {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(files: &BTreeMap<String, File>, path: &str) -> String {
        match &files[path] {
            File::Text(text) => text.clone(),
            other => panic!("{path} is {other:?}"),
        }
    }

    #[test]
    fn every_file_is_in_a_directory_that_comes_before_it() {
        let files = State::present().files();
        for path in files.keys() {
            let (parent, _) = path.rsplit_once('/').unwrap();
            if !parent.is_empty() {
                assert_eq!(files[parent], File::Directory, "{path}");
                assert!(parent < path.as_str());
            }
        }
    }

    #[test]
    fn guids_and_gids_are_written_as_the_kernel_does() {
        assert_eq!(groups(&[0, 0x15, 0xff, 1]), "0015:ff01");
        let files = State::present().files();
        let guid = text(
            &files,
            "/sys/devices/virtual/infiniband/softroce0/node_guid",
        );
        assert_eq!(guid.replace(':', "").trim_end().len(), 16);
        assert_eq!(
            u64::from_str_radix(guid.replace(':', "").trim_end(), 16),
            Ok(nic::guid())
        );
        let gid = text(
            &files,
            "/sys/devices/virtual/infiniband/softroce0/ports/1/gids/0",
        );
        assert_eq!(gid.len(), 8 * 5);
    }
}
