//! The environment that commands get: the caller's, without what cargo added for this program.

use std::env;
use std::ffi::OsString;

/// Variables that `cargo run` and rustup's proxies set for the program they start. A cargo that
/// runs below must not take them for its caller's wishes.
const CARGOS: &[&str] = &["CARGO", "RUST_RECURSION_COUNT", "OUT_DIR"];

/// Variables that begin like this describe the package `xtask`.
const CARGOS_PREFIXES: &[&str] = &[
    "CARGO_PKG_",
    "CARGO_MANIFEST_",
    "CARGO_BIN_",
    "CARGO_CRATE_",
];

/// The name of the device that tests and tools use unless told otherwise.
pub(crate) const DEVICE: &str = "RDMA_DEVICE";

/// The name of the user-space device.
pub(crate) const SOFTROCE: &str = "softroce0";

/// The variable that says which ways to a peer softroce may go.
pub(crate) const PATH_OF_SOFTROCE: &str = "SOFTROCE_PATH";

/// The caller's environment.
pub(crate) fn inherited() -> Vec<(OsString, OsString)> {
    env::vars_os()
        .filter(|(name, _)| is_callers(&name.to_string_lossy()))
        .collect()
}

/// The caller's environment, with [`DEVICE`] set to `device` where it was not set.
pub(crate) fn with_device(device: &str) -> Vec<(OsString, OsString)> {
    let mut environment = inherited();
    if !environment.iter().any(|(name, _)| name == DEVICE) {
        environment.push((DEVICE.into(), device.into()));
    }
    environment
}

fn is_callers(name: &str) -> bool {
    !CARGOS.contains(&name)
        && !CARGOS_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
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
