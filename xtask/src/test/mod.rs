//! `cargo xtask test`: runs every test of the workspace.
//!
//! Unit tests and documentation tests run on this machine, and use softroce if they need a device.
//! Integration tests run on softroce, and then on the kernel's Soft-RoCE: on this machine if it has
//! such a device, else all of them in one boot of the guest. The integration tests of `xtask` need no
//! device and run once, on this machine. The tests in `rdma-async/interop` are not part of the workspace;
//! they run like its integration tests, but not in the guest.

mod libtest;
mod nested;
mod place;
mod plan;
mod program;
mod quick;
mod report;
mod selection;
mod supplies;
mod target;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use xshell::Shell;

use self::place::{C_PROGRAMS, FOREIGN, Matches, Place};
use self::program::{Outcome, Program};
use self::report::{Part, Report};
pub(crate) use self::selection::Selection;
use self::supplies::Supplies;
pub(crate) use self::target::Target;
use crate::cargo::{self, Executable};
use crate::rxe::{self, Requirements};
use crate::{packages, project, softroce};

/// Time limit of all tests together on a device of the kernel.
const DEVICE_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Runs the selected tests, prints the report, and returns the exit status.
pub(crate) fn run(shell: &Shell, selection: &Selection) -> anyhow::Result<u8> {
    let mut supplies = Supplies::default();
    let places = Place::all(selection);
    let mut groups = vec![packages::BUILD];
    if !selection.quick && !selection.is_by_name() {
        groups.extend(places.iter().flat_map(|place| place.needs(|_| true)));
    }
    supplies.install(shell, groups);
    let built = build(selection, &supplies)?;

    let mut matches = Matches::default();
    let places: Vec<(Place, Vec<Program>)> = places
        .into_iter()
        .map(|place| {
            let programs = place.programs(selection, &built, &mut matches);
            (place, programs)
        })
        .filter(|(_, programs)| !programs.is_empty())
        .collect();
    if !selection.quick {
        let needs = |(place, programs): &(Place, Vec<Program>)| {
            place.needs(|name| programs.iter().any(|program| program.name == name))
        };
        supplies.install(shell, places.iter().flat_map(needs).collect());
    }

    let is_on_softroce = |(place, _): &(Place, _)| *place == Place::Device(Target::Softroce);
    if places.iter().any(is_on_softroce) {
        // Tests that need this library build it, too. The build would count as time of the first of them.
        softroce::library(shell)?;
    }

    let mut report = Report::default();
    let scratch = Scratch::new()?;
    for (place, programs) in &places {
        if let Err(problem) = run_at(shell, place, programs, &supplies, &scratch, &mut report) {
            report
                .problems
                .push(format!("{place}: no test ran: {problem:#}"));
        }
    }
    if selection.is_by_name() {
        if !report.parts.iter().any(Part::has_tests) && report.problems.is_empty() {
            let left_out = if selection.quick {
                ", or --quick leaves it out"
            } else {
                ""
            };
            let problem = format!("no test has such a name{left_out}");
            report.problems.push(problem);
        }
    } else {
        let without = report.parts.iter().filter(|part| !part.has_run());
        let problems = without.map(|part| format!("no test ran on {}", part.name));
        report.problems.extend(problems.collect::<Vec<_>>());
    }
    if selection.quick {
        report.left_out = quick::left_out().collect();
    }
    println!("\n{report}");
    Ok(u8::from(report.total().failed > 0))
}

/// Runs the programs that the file `plan` lists, one after the other. Appends the outcome of each to
/// the file `outcomes` as soon as the program ends, because a later program may crash the machine. The
/// output of the programs goes to files beside `outcomes`.
pub(crate) fn run_plan(plan: &Path, outcomes: &Path) -> anyhow::Result<()> {
    let directory = outcomes.parent().context("a file without a directory")?;
    for program in plan::read(plan)? {
        plan::append(outcomes, &announced(&program, directory)?)?;
    }
    Ok(())
}

/// Builds the test programs of all packages, even if only some are selected: for a single package,
/// cargo selects other features of the dependencies, so a test that is repeated alone would run in a
/// different program.
fn build(selection: &Selection, supplies: &Supplies) -> anyhow::Result<Vec<Executable>> {
    let built = cargo::build(&["test", "--workspace", "--no-run"]);
    let mut built = match supplies.problem(packages::BUILD) {
        // The build may succeed without these packages, because the headers may be installed in another
        // way.
        Some(problem) => built.with_context(|| problem.to_owned())?,
        None => built?,
    };
    if nested::is_selected(selection) {
        built.extend(nested::build()?);
    }
    let names: BTreeSet<&str> = built.iter().map(|part| &*part.package_name).collect();
    for wish in &selection.packages {
        let known: Vec<_> = names.iter().copied().collect();
        let is_known = names.contains(&**wish);
        ensure!(
            is_known,
            "no package `{wish}`; there are: {}",
            known.join(" ")
        );
    }
    Ok(built)
}

/// Runs `programs` at `place` (on the host or a device) and adds the outcomes to `report`. An error
/// means that no program ran.
fn run_at(
    shell: &Shell,
    place: &Place,
    programs: &[Program],
    supplies: &Supplies,
    scratch: &Scratch,
    report: &mut Report,
) -> anyhow::Result<()> {
    println!("\n== {place}");
    let requirements = match place {
        Place::Host => None,
        Place::Device(target) => target.requirements(),
    };
    let outcomes = match requirements {
        None => programs
            .iter()
            .map(|program| announced(program, &scratch.0))
            .collect::<Result<_, _>>()?,
        Some(requirements) => {
            if rxe::takes_guest(&requirements)
                && let Some(problem) = supplies.problem(packages::GUEST)
            {
                anyhow::bail!("{problem}");
            }
            let directory = scratch.0.join(place.directory());
            run_remotely(
                shell,
                requirements,
                programs,
                &directory,
                &mut report.problems,
            )?
        }
    };
    for (program, group) in [
        (C_PROGRAMS, packages::PROGRAMS),
        (FOREIGN, packages::FOREIGN),
    ] {
        let ignores = |outcome: &Outcome| outcome.name == program && outcome.counts.ignored > 0;
        if outcomes.iter().any(ignores)
            && let Some(problem) = supplies.problem(group)
        {
            let problem = format!("{place}: programs were left out: {problem}");
            report.problems.push(problem);
        }
    }
    report.parts.push(Part {
        name: place.to_string(),
        options: place.options(),
        outcomes,
    });
    Ok(())
}

/// Runs `programs` in a separate process on the machine that has the device: this machine or the
/// guest.
fn run_remotely(
    shell: &Shell,
    requirements: Requirements,
    programs: &[Program],
    directory: &Path,
    problems: &mut Vec<String>,
) -> anyhow::Result<Vec<Outcome>> {
    fs::create_dir_all(directory)?;
    let (list, path) = (
        directory.join("plan.json"),
        directory.join("outcomes.jsonl"),
    );
    plan::write(&list, programs)?;
    let requirements = Requirements {
        limit: Some(DEVICE_LIMIT),
        shares: vec![directory.to_owned()],
        ..requirements
    };
    // Copies this program: cargo may have rebuilt it meanwhile, and then the original file has another
    // name.
    let this = directory.join("xtask");
    fs::copy("/proc/self/exe", &this).with_context(|| format!("writing {}", this.display()))?;
    let command = [
        this.into(),
        "run-plan".into(),
        list.into(),
        path.clone().into(),
    ];
    let ended = rxe::run(shell, &requirements, command.to_vec());
    let outcomes = plan::outcomes(&path)?;
    let problem = match ended {
        Ok(0) => None,
        Ok(status) => Some(anyhow::anyhow!("the tests ended with status {status}")),
        Err(error) => Some(error),
    };
    if let Some(problem) = problem {
        // A program that succeeded has an outcome, but its log was removed.
        let started = programs
            .iter()
            .any(|program| log(program, directory).exists());
        if !started && outcomes.is_empty() {
            return Err(problem);
        }
        problems.push(format!("the tests did not run to their end: {problem:#}"));
    }
    programs
        .iter()
        .map(|program| {
            let known = outcomes.iter().find(|outcome| outcome.name == program.name);
            match known {
                Some(outcome) => Ok(outcome.clone()),
                None => unfinished(program, directory),
            }
        })
        .collect()
}

/// Prints the output of a program that wrote no outcome, and returns a failure as its outcome.
fn unfinished(program: &Program, directory: &Path) -> anyhow::Result<Outcome> {
    let log = log(program, directory);
    if !log.exists() {
        return Ok(Outcome::failed(&program.name, "was not started", 0.0));
    }
    println!("{}: did not run to its end", program.name);
    print_log(&log)?;
    Ok(Outcome::failed(
        &program.name,
        "did not run to its end",
        0.0,
    ))
}

/// Runs `program`, prints a line about it, and returns the outcome. Prints the program's output, too,
/// if a test failed.
fn announced(program: &Program, directory: &Path) -> anyhow::Result<Outcome> {
    print!("{:44}", program.name);
    io::stdout().flush()?;
    let path = log(program, directory);
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("writing {}", path.display()))?;
    let outcome = program.run(file);
    println!("{}", outcome.summary());
    if outcome.counts.failed > 0 {
        print_log(&path)?;
    } else {
        fs::remove_file(&path)?;
    }
    Ok(outcome)
}

fn print_log(path: &Path) -> anyhow::Result<()> {
    let mut log = File::open(path).with_context(|| format!("reading {}", path.display()))?;
    io::copy(&mut log, &mut io::stdout())?;
    println!();
    Ok(())
}

/// Returns the path of the file in `directory` that receives the output of `program`.
fn log(program: &Program, directory: &Path) -> PathBuf {
    directory.join(format!("{}.log", program.name.replace(['/', ' '], "-")))
}

/// A directory for the files of this run. The directory is removed when this value is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = project::target().join(format!("xtask-test-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Remaining files do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
