//! Builds softroce, the user-space device, and runs a command on it.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;
use xshell::Shell;

use crate::{cargo, environment, packages, project};

/// The environment variable that makes the dynamic linker load a library before all others.
const PRELOAD: &str = "LD_PRELOAD";

/// Builds the library of softroce that C programs preload, and returns its path.
///
/// The library is built in a target directory of its own. Cargo names shared libraries without a hash.
/// In a common directory, each build of another package that enables other features of softroce's
/// dependencies would replace the library, and this function would build it again.
pub(crate) fn library(shell: &Shell) -> anyhow::Result<PathBuf> {
    packages::install(shell, packages::BUILD)?;
    let directory = project::target().join("preload");
    let directory = directory.to_string_lossy();
    let build = [
        "build",
        "--release",
        "-p",
        "softroce",
        "--target-dir",
        &directory,
    ];
    cargo::build_shared_library(&build, "softroce")
}

/// Replaces this process by `command`, with softroce preloaded. Returns only if `command` cannot be
/// started, with the exit status that a shell would return.
pub(crate) fn run(shell: &Shell, command: &[OsString]) -> anyhow::Result<u8> {
    ensure!(!command.is_empty(), "no command: put it behind `--`");
    let library = library(shell)?;
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    eprintln!("$ {PRELOAD}={} {}", library.display(), words.join(" "));
    let error = Command::new(&command[0])
        .args(&command[1..])
        .env_clear()
        .envs(environment::with_device(environment::SOFTROCE))
        .env(PRELOAD, preloaded(library)?)
        .exec();
    eprintln!("{}: {error}", words[0]);
    Ok(if error.kind() == ErrorKind::NotFound {
        127
    } else {
        126
    })
}

/// Builds the library of softroce, and returns the environment variables with which a program uses it.
pub(crate) fn environment(shell: &Shell) -> anyhow::Result<Vec<(OsString, OsString)>> {
    Ok(vec![
        (environment::DEVICE.into(), environment::SOFTROCE.into()),
        (PRELOAD.into(), preloaded(library(shell)?)?),
    ])
}

/// Returns the list of libraries to preload: `library`, and then the libraries that the caller
/// preloads.
fn preloaded(library: PathBuf) -> anyhow::Result<OsString> {
    let others = env::var_os(PRELOAD).unwrap_or_default();
    let others = env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    Ok(env::join_paths([library].into_iter().chain(others))?)
}
