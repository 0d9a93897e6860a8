//! `cargo xtask plant`: puts known bugs into softroce's transport, one at a time, and asks whether
//! the simulated network notices. A test that cannot fail says nothing; this says that it can.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, bail, ensure};
use xshell::Shell;

use crate::limit::{Group, exit_code};
use crate::{cargo, environment, packages, project};

/// The crate, below the workspace's root.
const CRATE: &str = "ibverbs-sys/softroce";

/// The bugs, below the crate: patches, with what they do wrong in their first line.
const BUGS: &str = "tests/planted";

/// What of the workspace is not copied.
const LEFT_OUT: &[&str] = &[".git", "target"];

/// A run that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(1200);

/// What to plant.
#[derive(Debug)]
pub(crate) struct Choice {
    /// The bugs; all when empty.
    pub(crate) bugs: Vec<String>,
    /// How many schedules may pass until a bug counts as missed.
    pub(crate) schedules: u64,
}

/// Plants one bug after the other in a copy of the workspace. The exit status tells whether all
/// were noticed.
pub(crate) fn run(shell: &Shell, choice: &Choice) -> anyhow::Result<u8> {
    let patches = chosen(patches()?, &choice.bugs)?;
    packages::install(shell, packages::BUILD)?;
    let field = Field::new(choice.schedules);
    field.clear()?;
    if let Verdict::Caught(why) = field.judge()? {
        bail!("the simulation fails with no bug planted: {why}");
    }
    let mut missed = 0;
    let mut report = String::new();
    for patch in &patches {
        let name = name(patch);
        field.clear()?;
        apply(patch, &field.copy.join(CRATE), false)?;
        let verdict = field.judge().with_context(|| format!("with bug {name}"))?;
        let (word, why) = match &verdict {
            Verdict::Caught(why) => ("caught", why.as_str()),
            Verdict::Missed => ("MISSED", ""),
        };
        missed += usize::from(matches!(verdict, Verdict::Missed));
        let line = format!("{word}  {name:<36} {why}\n");
        eprint!("{line}");
        report.push_str(&line);
    }
    print!("\n{report}");
    println!(
        "{} of {} bugs caught",
        patches.len() - missed,
        patches.len()
    );
    Ok(u8::from(missed > 0))
}

/// All bugs.
fn patches() -> anyhow::Result<BTreeSet<PathBuf>> {
    let directory = project::root().join(CRATE).join(BUGS);
    let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
    let mut patches = BTreeSet::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "patch")
        {
            patches.insert(path);
        }
    }
    ensure!(!patches.is_empty(), "no bug in {}", directory.display());
    Ok(patches)
}

fn name(patch: &Path) -> String {
    let stem = patch.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// Those of `all` that are wished.
fn chosen(all: BTreeSet<PathBuf>, wished: &[String]) -> anyhow::Result<BTreeSet<PathBuf>> {
    let names: Vec<_> = all.iter().map(|patch| name(patch)).collect();
    if let Some(unknown) = wished.iter().find(|wish| !names.contains(wish)) {
        bail!("no bug `{unknown}`; there are: {}", names.join(" "));
    }
    let is_wished = |patch: &PathBuf| wished.is_empty() || wished.contains(&name(patch));
    Ok(all.into_iter().filter(is_wished).collect())
}

/// Applies a patch to the crate in `directory`, or only tries it.
fn apply(patch: &Path, directory: &Path, only_try: bool) -> anyhow::Result<()> {
    let mut command = Command::new("git");
    command.args(["apply", "-p0", "-C1"]);
    if only_try {
        command.arg("--check");
    }
    // The directory is within a repository, whose root git would count the patch's paths from.
    let ceiling = directory.parent().unwrap_or(directory);
    let output = command
        .arg(patch)
        .current_dir(directory)
        .env("GIT_CEILING_DIRECTORIES", ceiling)
        .output()
        .context("starting git")?;
    ensure!(
        output.status.success(),
        "the bug {} does not fit the code any more; make it again by hand, with `git diff --relative \
         --no-prefix -U2` in {CRATE}:\n{}",
        name(patch),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// What became of a bug.
enum Verdict {
    /// The simulation failed, and said this.
    Caught(String),
    /// It did not.
    Missed,
}

/// A copy of the workspace to plant bugs in.
struct Field {
    copy: PathBuf,
    build: PathBuf,
    schedules: String,
}

impl Field {
    fn new(schedules: u64) -> Self {
        let place = project::target().join("planted");
        Self {
            copy: place.join("workspace"),
            build: place.join("build"),
            schedules: schedules.to_string(),
        }
    }

    /// Makes the copy what the workspace is.
    fn clear(&self) -> anyhow::Result<()> {
        mirror(project::root(), &self.copy, LEFT_OUT)
            .with_context(|| format!("copying the workspace to {}", self.copy.display()))
    }

    /// Builds the copy and runs the simulation.
    fn judge(&self) -> anyhow::Result<Verdict> {
        let manifest = self.copy.join("Cargo.toml");
        let manifest = manifest.to_str().context("a path that is not UTF-8")?;
        let build = self.build.to_str().context("a path that is not UTF-8")?;
        let arguments = [
            "build",
            "--quiet",
            "--manifest-path",
            manifest,
            "--target-dir",
            build,
            "--package=softroce",
            "--features=sim",
            "--example=simulate",
        ];
        // A bug may leave something unused.
        let built = cargo::build_with(&arguments, &[("RUSTFLAGS", "-Awarnings")])?;
        let simulate = built
            .iter()
            .find(|executable| executable.target == "simulate")
            .context("cargo built no example `simulate`")?;
        let mut command = Command::new(&simulate.path);
        command
            .args(["--schedules", &self.schedules])
            .env_clear()
            .envs(environment::inherited())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut group = Group::spawn(&mut command)?;
        let stderr = group.child().stderr.take();
        // It says little, so it never waits for a reader.
        let Some(status) = group.wait(Some(LIMIT))? else {
            return Ok(Verdict::Caught("it does not end".to_owned()));
        };
        if exit_code(status) == 0 {
            return Ok(Verdict::Missed);
        }
        let said = stderr.map(io::read_to_string).transpose()?;
        let said = said.unwrap_or_default();
        let seed = said.lines().find(|line| line.starts_with("seed "));
        match seed {
            Some(line) => Ok(Verdict::Caught(line.to_owned())),
            // An abort of the whole program is noticed as well, but not by the model.
            None => bail!("the simulation ended with {status}, and said:\n{said}"),
        }
    }
}

/// Makes `to` the same tree as `from`. What is the same already keeps its time, so that it is not built anew.
fn mirror(from: &Path, to: &Path, left_out: &[&str]) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_left_out = name.to_str().is_some_and(|name| left_out.contains(&name));
        // A target directory may have another name, and then holds this copy.
        if is_left_out || to.starts_with(entry.path()) {
            continue;
        }
        let (source, copy) = (entry.path(), to.join(&name));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            mirror(&source, &copy, left_out)?;
        } else if kind.is_file() {
            let bytes = fs::read(&source)?;
            if fs::read(&copy).ok().as_ref() != Some(&bytes) {
                fs::write(&copy, bytes)?;
            }
        } else {
            continue;
        }
        names.insert(name);
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !names.contains(&entry.file_name()) {
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_fits_the_code_and_says_what_it_is() {
        let patches = patches().unwrap();
        assert!(patches.len() >= 10);
        let directory = project::root().join(CRATE);
        for patch in &patches {
            apply(patch, &directory, true).unwrap_or_else(|error| panic!("{error:#}"));
            let text = fs::read_to_string(patch).unwrap();
            let first = text.lines().next().unwrap_or_default();
            assert!(first.ends_with('.'), "{}: {first}", patch.display());
            let touched = text.lines().filter_map(|line| line.strip_prefix("+++ "));
            for file in touched {
                assert!(
                    file.starts_with("src/proto/"),
                    "{}: {file}",
                    patch.display()
                );
            }
        }
    }

    #[test]
    fn a_mirror_has_what_the_original_has() {
        let place = std::env::temp_dir().join(format!("xtask-mirror-{}", std::process::id()));
        let (from, to) = (place.join("from"), place.join("to"));
        fs::create_dir_all(from.join("target")).unwrap();
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir_all(to.join("gone")).unwrap();
        fs::write(from.join("a/b/file"), "new").unwrap();
        fs::write(to.join("file"), "gone").unwrap();
        mirror(&from, &to, LEFT_OUT).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/b/file")).unwrap(), "new");
        let names: Vec<_> = fs::read_dir(&to)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a"]);
        fs::remove_dir_all(&place).unwrap();
    }
}
