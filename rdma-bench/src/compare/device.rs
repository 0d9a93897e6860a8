//! The device that is measured, and the perftest programs that can use the device.

use std::env;
use std::process::{Command, Stdio};

use rdma_core::{AddressChoice, Context};

use super::program::in_path;
use crate::error::Result;

/// The RDMA device, port and GID that every program of a comparison uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The device's name.
    pub device: String,
    /// The number of the device's port.
    pub port: u8,
    /// The index of the GID that every program uses.
    pub gid_index: u32,
    /// The path MTU in bytes.
    pub mtu: usize,
}

impl Network {
    /// Returns the device of `context`, with the port, the GID and the path MTU that rdma-core
    /// chooses by default.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Verbs`] if no port of the device can be used.
    pub fn of(context: &Context) -> Result<Self> {
        let address = context.address(AddressChoice::default())?;
        Ok(Self {
            device: context.name().to_owned(),
            port: address.port,
            gid_index: address.gid_index,
            mtu: address.mtu.bytes(),
        })
    }
}

/// The programs of perftest that are installed on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Perftest {
    /// The version that perftest prints.
    pub version: String,
}

impl Perftest {
    const PROGRAMS: [&'static str; 8] = [
        "ib_send_lat",
        "ib_send_bw",
        "ib_write_lat",
        "ib_write_bw",
        "ib_read_lat",
        "ib_read_bw",
        "ib_atomic_lat",
        "ib_atomic_bw",
    ];

    /// Returns the version of perftest. Fails if perftest is not installed, or cannot use the
    /// device of `context`.
    ///
    /// # Errors
    ///
    /// The reason why perftest cannot be used. The text is the rest of a sentence that begins with
    /// the word "perftest", for example "is not installed".
    pub fn find(context: &Context) -> Result<Self, &'static str> {
        if context.device().is_emulated() && !softroce_is_preloaded() {
            return Err("cannot use softroce here, which `cargo xtask bench` preloads");
        }
        if !Self::PROGRAMS.iter().all(|name| in_path(name)) {
            return Err("is not installed (Debian and Ubuntu: the package perftest)");
        }
        let asked = Command::new(Self::PROGRAMS[0])
            .arg("-V")
            .stdin(Stdio::null())
            .output();
        let told = asked.map(|output| output.stdout).unwrap_or_default();
        let version = String::from_utf8_lossy(&told).trim().to_owned();
        Ok(Self { version })
    }
}

/// Returns whether `LD_PRELOAD` loads softroce into this process and the processes that it starts.
pub fn softroce_is_preloaded() -> bool {
    env::var_os("LD_PRELOAD")
        .is_some_and(|libraries| libraries.to_string_lossy().contains("softroce"))
}
