//! Builds with cargo, and finds the files that were built.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::{environment, project};

/// The kind of an executable that cargo built, derived from the kind of its cargo target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unit tests of a library or of a binary.
    UnitTest,
    /// Integration tests, or the tests in an example.
    IntegrationTest,
    /// A benchmark.
    Benchmark,
    /// A program that is neither a test nor a benchmark.
    Program,
}

/// An executable that cargo built, with the target and the package that it was built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executable {
    /// The kind of the executable.
    pub(crate) kind: Kind,
    /// Name of the executable's package.
    pub(crate) package_name: String,
    /// Name of the cargo target that the executable was built from.
    pub(crate) target: String,
    /// Directory of the executable's package.
    pub(crate) package: PathBuf,
    /// Path of the executable.
    pub(crate) path: PathBuf,
}

/// Returns a command that runs cargo at the root of the workspace, in the environment of xtask's
/// caller.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(arguments)
        .current_dir(project::root())
        .env_clear()
        .envs(environment::inherited());
    eprintln!("$ cargo {}", arguments.join(" "));
    command
}

/// Returns the target triple of this machine, such as `x86_64-unknown-linux-gnu`.
pub(crate) fn host_triple(shell: &Shell) -> anyhow::Result<String> {
    let about = cmd!(shell, "rustc --version --verbose").quiet().read()?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc did not print this machine's target triple")?;
    Ok(host.to_owned())
}

/// Runs cargo with `arguments` (a command that builds, with its options), and returns the
/// executables that were built.
pub(crate) fn build(arguments: &[&str]) -> anyhow::Result<Vec<Executable>> {
    build_with(arguments, &[])
}

/// Runs cargo with `arguments` (a command that builds, with its options) and the additional
/// environment variables `environment`. Returns the executables that were built.
pub(crate) fn build_with(
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> anyhow::Result<Vec<Executable>> {
    executables(&build_messages(arguments, environment)?)
}

/// Runs cargo with `arguments` (a command that builds, with its options) and the additional
/// environment variables `environment`. Returns cargo's messages, one JSON object per line.
fn build_messages(arguments: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<String> {
    let arguments = [arguments, &["--message-format=json-render-diagnostics"]].concat();
    let output = cargo(&arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    ensure!(output.status.success(), "the build failed");
    String::from_utf8(output.stdout).context("the messages of cargo")
}

/// Runs cargo with `arguments` (a command that builds, with its options), and returns the path of
/// the shared library of `package`.
pub(crate) fn build_shared_library(arguments: &[&str], package: &str) -> anyhow::Result<PathBuf> {
    let messages = build_messages(arguments, &[])?;
    shared_library(&messages, package)
}

fn shared_library(messages: &str, package: &str) -> anyhow::Result<PathBuf> {
    let file = format!("lib{package}.so");
    for message in artifacts(messages) {
        let message = message?;
        let names = message["filenames"].as_array().into_iter().flatten();
        let mut paths = names.filter_map(Value::as_str).map(Path::new);
        if let Some(path) = paths.find(|path| path.file_name().is_some_and(|name| *name == *file)) {
            return Ok(path.to_owned());
        }
    }
    bail!("the build did not write {file}")
}

/// Returns the messages that report a built file. `messages` is the output of cargo, one JSON
/// object per line.
fn artifacts(messages: &str) -> impl Iterator<Item = anyhow::Result<Value>> {
    let lines = messages.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str::<Value>(line).context("parsing a message of cargo"))
        .filter(|message| {
            message
                .as_ref()
                .map_or(true, |message| message["reason"] == "compiler-artifact")
        })
}

fn executables(messages: &str) -> anyhow::Result<Vec<Executable>> {
    let mut found = Vec::new();
    for message in artifacts(messages) {
        let message = message?;
        let Some(path) = message["executable"].as_str() else {
            continue;
        };
        let target = &message["target"];
        let is_test = message["profile"]["test"] == true;
        let kind = match (target["kind"][0].as_str(), is_test) {
            (Some("bench"), _) => Kind::Benchmark,
            (Some("test" | "example"), true) => Kind::IntegrationTest,
            (Some("custom-build"), _) => continue,
            (_, true) => Kind::UnitTest,
            (_, false) => Kind::Program,
        };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let package = manifest.parent().context("the manifest has no directory")?;
        found.push(Executable {
            kind,
            package_name: package_name(message["package_id"].as_str().unwrap_or_default(), package),
            target: target["name"].as_str().unwrap_or_default().to_owned(),
            package: package.to_owned(),
            path: path.into(),
        });
    }
    Ok(found)
}

/// Returns the name of the package with the ID `id`, which has the form
/// `path+file:///DIRECTORY#NAME@VERSION`. Cargo leaves the name out if it is the name of the
/// directory.
fn package_name(id: &str, directory: &Path) -> String {
    let name = id
        .rsplit_once('#')
        .and_then(|(_, fragment)| fragment.split_once('@'));
    match name {
        Some((name, _version)) => name.to_owned(),
        None => directory
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    }
}

/// Returns the environment variables that cargo sets when it runs `executable`, a test or a
/// benchmark: the directory of the package, and the paths of the package's programs and of shared
/// libraries. `all` has all executables that were built.
pub(crate) fn environment_of(
    executable: &Executable,
    all: &[Executable],
) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> = vec![
        (
            "CARGO_MANIFEST_DIR".into(),
            executable.package.clone().into(),
        ),
        (
            "CARGO_MANIFEST_PATH".into(),
            executable.package.join("Cargo.toml").into(),
        ),
    ];
    for program in all {
        if program.kind == Kind::Program && program.package == executable.package {
            let name = format!("CARGO_BIN_EXE_{}", program.target);
            environment.push((name.into(), program.path.clone().into()));
        }
    }
    let deps = executable.path.parent().map(Path::to_owned);
    let profile = deps.as_deref().and_then(Path::parent).map(Path::to_owned);
    let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let places = deps
        .into_iter()
        .chain(profile)
        .chain(env::split_paths(&inherited));
    if let Ok(places) = env::join_paths(places) {
        environment.push(("LD_LIBRARY_PATH".into(), places));
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(kind: &str, test: bool, name: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/p/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":"/w/target/debug/deps/{name}"}}"#
        )
    }

    #[test]
    fn executables_are_distinguished() {
        let library = artifact("lib", false, "l").replace("\"/w/target/debug/deps/l\"", "null");
        let messages = [
            library,
            artifact("lib", true, "unit"),
            artifact("test", true, "integration"),
            artifact("example", true, "example"),
            artifact("bench", true, "speed"),
            artifact("bin", false, "tool"),
            artifact("custom-build", false, "build-script"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = executables(&messages.join("\n")).unwrap();
        let found: Vec<_> = found.iter().map(|e| (e.target.as_str(), e.kind)).collect();
        assert_eq!(
            found,
            [
                ("unit", Kind::UnitTest),
                ("integration", Kind::IntegrationTest),
                ("example", Kind::IntegrationTest),
                ("speed", Kind::Benchmark),
                ("tool", Kind::Program),
            ]
        );
    }

    #[test]
    fn a_package_has_its_name_or_its_directorys() {
        let name = |id, directory| package_name(id, Path::new(directory));
        assert_eq!(
            name("path+file:///w/rdma-core#0.1.0", "/w/rdma-core"),
            "rdma-core"
        );
        assert_eq!(
            name("path+file:///w/r/macros#r-macros@0.1.0", "/w/r/macros"),
            "r-macros"
        );
    }

    #[test]
    fn a_shared_library_is_found_by_its_package() {
        let message = r#"{"reason":"compiler-artifact","filenames":["/w/target/release/libsoftroce.rlib","/w/target/release/libsoftroce.so"]}"#;
        assert_eq!(
            shared_library(message, "softroce").unwrap(),
            Path::new("/w/target/release/libsoftroce.so")
        );
        assert!(shared_library(message, "other").is_err());
    }

    #[test]
    fn a_test_finds_its_packages_programs() {
        let messages = [artifact("test", true, "t"), artifact("bin", false, "tool")].join("\n");
        let all = executables(&messages).unwrap();
        let environment = environment_of(&all[0], &all);
        let value = |name: &str| {
            let found = environment.iter().find(|(n, _)| n == name);
            found.map(|(_, value)| value.to_str().unwrap())
        };
        assert_eq!(value("CARGO_MANIFEST_DIR"), Some("/w/p"));
        assert_eq!(
            value("CARGO_BIN_EXE_tool"),
            Some("/w/target/debug/deps/tool")
        );
        let libraries = value("LD_LIBRARY_PATH").unwrap();
        assert!(
            libraries.starts_with("/w/target/debug/deps:/w/target/debug"),
            "{libraries}"
        );
    }
}
