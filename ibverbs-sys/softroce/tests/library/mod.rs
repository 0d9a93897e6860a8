//! The library for `LD_PRELOAD`, for tests that start other programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds `libsoftroce.so` in the place where `cargo xtask on softroce` builds it, and returns its
/// path. Cargo builds no shared library for a test that does not link it.
pub(crate) fn library() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(build).clone()
}

fn build() -> PathBuf {
    let test = env::current_exe().expect("the path of this program");
    // Cargo puts this program into TARGET/PROFILE/deps.
    let target = test.ancestors().nth(3).expect("a target directory");
    let target = target.join("preload");
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--package", "softroce-preload"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "libsoftroce.so cannot be built: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let library = target.join("release/libsoftroce.so");
    assert!(library.is_file(), "{} is missing", library.display());
    library
}
