//! Builds softroce, the user-space device, and runs commands with it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use xshell::Shell;

use crate::{cargo, environment, packages, project};

/// The name of the environment variable that makes the dynamic linker load a library before all
/// others.
const PRELOAD: &str = "LD_PRELOAD";

/// Builds softroce as the shared library that C programs preload, and returns its path.
///
/// The library is built in a target directory of its own, because cargo names shared libraries
/// without a hash: in a common directory, each build of another package that enables other features
/// of softroce's dependencies would replace the library, and this function would rebuild it.
pub(crate) fn library(shell: &Shell) -> anyhow::Result<PathBuf> {
    packages::install(shell, packages::BUILD)?;
    let directory = project::target().join("preload");
    let directory = directory.to_string_lossy();
    let build = [
        "build",
        "--release",
        "-p",
        "softroce-preload",
        "--target-dir",
        &directory,
    ];
    cargo::build_shared_library(&build, "softroce")
}

/// The file name by which programs open the library libibverbs.
const LIBIBVERBS: &str = "libibverbs.so.1";

/// The name of the environment variable with the directories that the dynamic linker searches
/// first.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Replaces this process by `command`, with softroce preloaded. If `as_library` is set, softroce is
/// also the first libibverbs.so.1 in the search path. Returns only if `command` cannot be started,
/// with the exit status that a shell would return.
pub(crate) fn run(shell: &Shell, as_library: bool, command: &[OsString]) -> anyhow::Result<u8> {
    ensure!(!command.is_empty(), "no command: put it after `--`");
    let library = library(shell)?;
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let directory = as_library.then(|| named_libibverbs(&library)).transpose()?;
    eprint!("$ ");
    if let Some(directory) = &directory {
        eprint!("{LIBRARY_PATH}={} ", directory.display());
    }
    eprintln!("{PRELOAD}={} {}", library.display(), words.join(" "));
    let mut started = Command::new(&command[0]);
    started
        .args(&command[1..])
        .env_clear()
        .envs(environment::with_device(environment::SOFTROCE))
        .env(PRELOAD, before_others(PRELOAD, library)?);
    if let Some(directory) = directory {
        started.env(LIBRARY_PATH, before_others(LIBRARY_PATH, directory)?);
    }
    let error = started.exec();
    eprintln!("{}: {error}", words[0]);
    Ok(if error.kind() == ErrorKind::NotFound {
        127
    } else {
        126
    })
}

/// Builds the shared library of softroce, and returns the environment variables by which a program
/// uses it.
pub(crate) fn environment(shell: &Shell) -> anyhow::Result<Vec<(OsString, OsString)>> {
    Ok(vec![
        (environment::DEVICE.into(), environment::SOFTROCE.into()),
        (PRELOAD.into(), before_others(PRELOAD, library(shell)?)?),
    ])
}

/// Returns a directory in which `library`, softroce's shared library, has the file name of
/// libibverbs. A program that searches this directory first loads softroce in place of libibverbs.
fn named_libibverbs(library: &Path) -> anyhow::Result<PathBuf> {
    let directory = library.with_file_name("as-library");
    fs::create_dir_all(&directory)?;
    let link = directory.join(LIBIBVERBS);
    match symlink(library, &link) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("creating {}", link.display()))
        }
        _ => Ok(directory),
    }
}

/// Returns the value of the environment variable `variable`, a list of paths, with the path `first`
/// added at the front. The path `first` then has priority over the other paths. Does not change the
/// variable.
fn before_others(variable: &str, first: PathBuf) -> anyhow::Result<OsString> {
    let others = env::var_os(variable).unwrap_or_default();
    let others = env::split_paths(&others).filter(|path| !path.as_os_str().is_empty());
    Ok(env::join_paths([first].into_iter().chain(others))?)
}
