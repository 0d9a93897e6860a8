//! Known bugs, stored as patches, each with the test that must fail while the bug is applied.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::project;

/// The crates for which known bugs are stored as patches, relative to the root of the workspace.
const CRATES: [&str; 2] = ["ibverbs-sys/softroce", "rdma-core"];

/// The directory with patch files, each of which adds a known bug to a crate, relative to the
/// crate. Tests must fail when such a patch is applied.
const PATCHES: &str = "tests/planted";

/// The text with which the second line of a bug's patch file begins. The name of the test that must
/// detect the bug follows.
const PREFIX: &str = "Caught by: ";

/// The text by which a bug's patch file names the simulation (softroce's transport on a simulated
/// network) as the test that must detect the bug.
const SIMULATION: &str = "the simulation";

/// A known bug, stored as a patch, with the test that must detect it.
///
/// The first line of the patch file describes the bug. The second line names the test: either
/// `Caught by: the simulation`, or `Caught by:` and the command that runs the test, such as `cargo
/// test -p rdma-core --test scope -- NAME --exact`. Environment variables may precede `cargo`. The
/// patch follows, with paths relative to the crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bug {
    /// The name of the bug: the name of its patch file, without the extension.
    pub(super) name: String,
    /// The test that must fail while the bug is applied.
    pub(super) test: Test,
    /// The directory of the crate that has the bug, relative to the root of the workspace.
    package: &'static str,
    /// The path of the patch file.
    path: PathBuf,
}

/// A test that must fail after a known bug was added to the code: the simulation, or a test that
/// cargo runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Random schedules (sequences of events) of softroce's transport on a simulated network.
    Simulation,
    /// A test that cargo runs.
    Cargo(CargoTest),
}

/// A call of `cargo test` that runs the test, or the tests, that must detect a bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CargoTest {
    /// Environment variables of the call.
    pub(super) environment: Vec<(String, String)>,
    /// Arguments of `cargo test`.
    pub(super) cargo: Vec<String>,
    /// Arguments of the test program.
    pub(super) program: Vec<String>,
}

impl Bug {
    /// Applies the patch of this known bug to the copy of the workspace at `workspace`. If
    /// `only_check` is set, only checks that the patch can be applied.
    pub(super) fn apply(&self, workspace: &Path, only_check: bool) -> anyhow::Result<()> {
        let directory = workspace.join(self.package);
        let mut command = Command::new("git");
        command.args(["apply", "-p0", "-C1"]);
        if only_check {
            command.arg("--check");
        }
        // The directory is inside a git repository. Without a ceiling, git would resolve the
        // patch's paths from the root of that repository.
        let ceiling = directory.parent().unwrap_or(&directory);
        let output = command
            .arg(&self.path)
            .current_dir(&directory)
            .env("GIT_CEILING_DIRECTORIES", ceiling)
            .output()
            .context("starting git")?;
        ensure!(
            output.status.success(),
            "the bug {} does not fit the code any more; make it again by hand, with \
             `git diff --relative --no-prefix -U2` in {}:\n{}",
            self.name,
            self.package,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

/// Returns all known bugs that are stored as patches in the workspace, sorted by crate and name.
pub(super) fn all() -> anyhow::Result<Vec<Bug>> {
    let mut bugs = Vec::new();
    for package in CRATES {
        let directory = project::root().join(package).join(PATCHES);
        let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()?;
        paths.retain(|path| path.extension().is_some_and(|end| end == "patch"));
        paths.sort();
        ensure!(!paths.is_empty(), "no bug in {}", directory.display());
        for path in paths {
            bugs.push(read(package, path)?);
        }
    }
    Ok(bugs)
}

/// Returns the known bugs in `all` whose names are in `names`, or all known bugs if `names` is
/// empty. Fails if a name in `names` is unknown.
pub(super) fn chosen(all: Vec<Bug>, names: &[String]) -> anyhow::Result<Vec<Bug>> {
    if let Some(unknown) = names
        .iter()
        .find(|&name| !all.iter().any(|bug| bug.name == *name))
    {
        let names: Vec<_> = all.iter().map(|bug| &*bug.name).collect();
        bail!("no bug `{unknown}`; there are: {}", names.join(" "));
    }
    let is_chosen = |bug: &Bug| names.is_empty() || names.contains(&bug.name);
    Ok(all.into_iter().filter(is_chosen).collect())
}

fn read(package: &'static str, path: PathBuf) -> anyhow::Result<Bug> {
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let test = parse(&text).with_context(|| path.display().to_string())?;
    let name = path.file_stem().unwrap_or_default();
    Ok(Bug {
        name: name.to_string_lossy().into_owned(),
        test,
        package,
        path,
    })
}

/// Parses `text`, the contents of a bug's patch file, and returns the test that the second line
/// names. Fails if the first line is not a sentence, or if the second line names no test.
fn parse(text: &str) -> anyhow::Result<Test> {
    let mut lines = text.lines();
    let description = lines.next().unwrap_or_default();
    ensure!(
        description.ends_with('.'),
        "the first line is no sentence that says what the bug does wrong"
    );
    let test = lines.next().and_then(|line| line.strip_prefix(PREFIX));
    let test = test.with_context(|| format!("the second line does not begin with `{PREFIX}`"))?;
    if test == SIMULATION {
        return Ok(Test::Simulation);
    }
    let mut words = test.split_whitespace().map(str::to_owned).peekable();
    let mut environment = Vec::new();
    while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
        environment.push((name.to_owned(), value.to_owned()));
        words.next();
    }
    ensure!(
        words.next().as_deref() == Some("cargo") && words.next().as_deref() == Some("test"),
        "`{test}` is neither `{SIMULATION}` nor a call of `cargo test`"
    );
    let cargo: Vec<_> = words.by_ref().take_while(|word| word != "--").collect();
    let program: Vec<_> = words.collect();
    ensure!(
        cargo.iter().any(|word| word == "-p") && program.iter().any(|word| !word.starts_with('-')),
        "`{test}` names no package (-p) or no test (-- NAME)"
    );
    Ok(Test::Cargo(CargoTest {
        environment,
        cargo,
        program,
    }))
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulation => f.write_str(SIMULATION),
            Self::Cargo(test) => test.fmt(f),
        }
    }
}

impl fmt::Display for CargoTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={value} ")?;
        }
        let (cargo, program) = (self.cargo.join(" "), self.program.join(" "));
        write!(f, "cargo test {cargo} -- {program}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_fits_the_code_and_names_a_test() {
        let bugs = all().unwrap();
        for bug in &bugs {
            bug.apply(project::root(), true)
                .unwrap_or_else(|error| panic!("{error:#}"));
        }
        for package in CRATES {
            assert!(bugs.iter().any(|bug| bug.package == package), "{package}");
        }
    }

    #[test]
    fn the_tests_that_bugs_name_are_in_the_code() {
        for bug in all().unwrap() {
            let Test::Cargo(test) = &bug.test else {
                continue;
            };
            let name = test.program.iter().find(|word| !word.starts_with('-'));
            let name = name.unwrap().rsplit("::").next().unwrap();
            // A test program may make up names with other characters, from the command that it
            // runs.
            if name.contains(|c: char| !c.is_alphanumeric() && c != '_') {
                continue;
            }
            // A test is a function, or its name stands in a list.
            let texts = [format!("fn {name}("), format!("\"{name}\"")];
            let root = project::root();
            let found = CRATES
                .iter()
                .any(|package| contains(&root.join(package), &texts));
            assert!(found, "{}: there is no test `{name}`", bug.name);
        }
    }

    /// Returns whether a Rust source file below the directory `directory` contains at least one of
    /// `texts`. Used to check that the tests named in patch files exist.
    fn contains(directory: &Path, texts: &[String]) -> bool {
        fs::read_dir(directory).unwrap().any(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                path.file_name().is_some_and(|name| name != "target") && contains(&path, texts)
            } else {
                let is_source = path.extension().is_some_and(|end| end == "rs");
                let source = is_source.then(|| fs::read_to_string(&path).unwrap());
                source.is_some_and(|source| texts.iter().any(|text| source.contains(text)))
            }
        })
    }

    #[test]
    fn a_test_is_read_with_its_environment() {
        let text = "It is wrong.\nCaught by: SOFTROCE_PATH=udp cargo test -p softroce --lib -- a::b --exact\n\n--- a\n";
        let Test::Cargo(test) = parse(text).unwrap() else {
            panic!("not a test of cargo");
        };
        assert_eq!(
            test.environment,
            [("SOFTROCE_PATH".to_owned(), "udp".to_owned())]
        );
        assert_eq!(test.cargo, ["-p", "softroce", "--lib"]);
        assert_eq!(test.program, ["a::b", "--exact"]);
        assert_eq!(
            test.to_string(),
            "SOFTROCE_PATH=udp cargo test -p softroce --lib -- a::b --exact"
        );
        let simulation = "It is wrong.\nCaught by: the simulation\n";
        assert_eq!(parse(simulation).unwrap(), Test::Simulation);
    }

    #[test]
    fn a_bug_without_a_description_or_a_test_is_refused() {
        let refused = [
            "--- a\n+++ b\n",
            "It is wrong.\n\n--- a\n",
            "It is wrong.\nCaught by: somebody\n",
            "It is wrong.\nCaught by: cargo test --workspace -- name --exact\n",
            "It is wrong.\nCaught by: cargo test -p softroce\n",
        ];
        for text in refused {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
