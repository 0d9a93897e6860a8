//! Compiler and headers that the crate was built with, for the tests of the shim.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Returns the C compiler with the include directories `first`, followed by those of the shim.
pub(crate) fn compiler(first: &[PathBuf]) -> Command {
    let mut command = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.arg("-D_GNU_SOURCE");
    for dir in first.iter().chain(&include()) {
        command.arg("-I").arg(dir);
    }
    command
}

/// Returns the include directories with which the shim was compiled.
pub(crate) fn include() -> Vec<PathBuf> {
    env::split_paths(env!("IBVERBS_SYS_INCLUDE")).collect()
}
