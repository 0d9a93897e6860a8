//! The environment of the commands that xtask starts: the environment of xtask's caller, without
//! the variables that cargo set for xtask.

use std::env;
use std::ffi::OsString;

/// Variables that `cargo run` and rustup's proxies set for xtask. xtask removes these variables,
/// because a cargo process that xtask starts would take them for settings of the user.
const CARGO_VARIABLES: &[&str] = &["CARGO", "RUST_RECURSION_COUNT", "OUT_DIR"];

/// The prefixes of the environment variables that cargo sets to describe the package `xtask`. xtask
/// removes these variables from the environment of the commands that it starts.
const CARGO_PREFIXES: &[&str] = &[
    "CARGO_PKG_",
    "CARGO_MANIFEST_",
    "CARGO_BIN_",
    "CARGO_CRATE_",
];

/// The environment variable with the name of the device that tests and tools use by default.
pub(crate) const DEVICE: &str = "RDMA_DEVICE";

/// The name of softroce's device, as a value of the environment variable `RDMA_DEVICE`.
pub(crate) const SOFTROCE: &str = "softroce0";

/// The name of the environment variable that selects how softroce sends messages to a peer, for
/// example through shared memory.
pub(crate) const SOFTROCE_PATH: &str = "SOFTROCE_PATH";

/// Returns the environment of xtask's caller, without the variables that cargo set for xtask.
pub(crate) fn inherited() -> Vec<(OsString, OsString)> {
    env::vars_os()
        .filter(|(name, _)| is_callers(&name.to_string_lossy()))
        .collect()
}

/// Returns the environment of xtask's caller, with [`DEVICE`] set to `device` if the caller has not
/// set it.
pub(crate) fn with_device(device: &str) -> Vec<(OsString, OsString)> {
    let mut environment = inherited();
    if !environment.iter().any(|(name, _)| name == DEVICE) {
        environment.push((DEVICE.into(), device.into()));
    }
    environment
}

fn is_callers(name: &str) -> bool {
    !CARGO_VARIABLES.contains(&name)
        && !CARGO_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::is_callers;

    #[test]
    fn the_users_variables_stay() {
        for name in [
            "PATH",
            "CARGO_HOME",
            "CARGO_TARGET_DIR",
            "RUSTUP_TOOLCHAIN",
            "RUST_BACKTRACE",
        ] {
            assert!(is_callers(name), "{name}");
        }
        for name in [
            "CARGO",
            "CARGO_PKG_NAME",
            "CARGO_MANIFEST_DIR",
            "RUST_RECURSION_COUNT",
        ] {
            assert!(!is_callers(name), "{name}");
        }
    }
}
