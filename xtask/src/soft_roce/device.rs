//! The RDMA devices of this machine, read from sysfs.

use std::fs;
use std::path::Path;

/// The sysfs directory with the kernel's RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// A Soft-RoCE device of the kernel of this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Device {
    /// The device's name, such as `rxe_0`.
    pub(crate) name: String,
    /// The name of the network device that the Soft-RoCE device uses.
    pub(crate) netdev: String,
}

/// Returns the Soft-RoCE devices of this machine, sorted by name.
pub(crate) fn list() -> Vec<Device> {
    list_in(Path::new(DEVICES))
}

/// Returns whether this machine has an RDMA device with the name `name`, of any kind.
pub(crate) fn exists(name: &str) -> bool {
    !name.contains('/') && Path::new(DEVICES).join(name).exists()
}

/// Returns whether port 1 of the device `name` is active: its network device is up and has a
/// carrier.
pub(crate) fn port_is_active(name: &str) -> bool {
    let state = fs::read_to_string(Path::new(DEVICES).join(name).join("ports/1/state"));
    state.is_ok_and(|state| state.trim().ends_with("ACTIVE"))
}

/// Returns the name of the alphabetically first RDMA device of this machine, of any kind; `None` if
/// the machine has no RDMA device.
pub(crate) fn first() -> Option<String> {
    let entries = fs::read_dir(DEVICES).ok()?;
    let names = entries.flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).min()
}

fn list_in(devices: &Path) -> Vec<Device> {
    let Ok(entries) = fs::read_dir(devices) else {
        return Vec::new();
    };
    let mut found: Vec<Device> = entries
        .flatten()
        .filter_map(|entry| {
            // Only the Soft-RoCE driver has this attribute; its value is the name of the network
            // device.
            let netdev = fs::read_to_string(entry.path().join("parent")).ok()?;
            let name = entry.file_name().into_string().ok()?;
            Some(Device {
                name,
                netdev: netdev.trim().to_owned(),
            })
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Device, list_in};

    #[test]
    fn a_device_with_a_parent_is_soft_roce() {
        let devices = std::env::temp_dir().join(format!("xtask-devices-{}", std::process::id()));
        for name in ["mlx5_0", "rxe_1", "rxe_0"] {
            fs::create_dir_all(devices.join(name)).unwrap();
        }
        fs::write(devices.join("rxe_0/parent"), "eth0\n").unwrap();
        fs::write(devices.join("rxe_1/parent"), "eth1\n").unwrap();
        let found = list_in(&devices);
        fs::remove_dir_all(&devices).unwrap();
        let device = |name: &str, netdev: &str| Device {
            name: name.into(),
            netdev: netdev.into(),
        };
        assert_eq!(found, [device("rxe_0", "eth0"), device("rxe_1", "eth1")]);
    }

    #[test]
    fn no_rdma_is_no_device() {
        assert_eq!(list_in("/nonexistent".as_ref()), []);
    }
}
