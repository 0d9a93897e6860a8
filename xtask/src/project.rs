//! Paths: the root of the workspace, cargo's target directory and the cache directory.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The name of this project's directory below the user's cache directory. The project's directory
/// contains the guest's kernels.
const CACHE_NAME: &str = "rdma-softroce-guest";

/// Returns the root directory of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a member of the workspace")
}

/// Returns the directory for downloaded kernels, below `$XDG_CACHE_HOME` or `~/.cache`. The
/// directory is outside of the workspace, so that neither `cargo clean` nor a second clone causes
/// another download.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .context("no cache directory: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
    Ok(base.join(CACHE_NAME))
}

/// Returns cargo's target directory for this workspace.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}
