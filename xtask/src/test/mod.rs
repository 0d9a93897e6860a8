//! `cargo xtask test`: runs every test of the workspace.
//!
//! Unit tests and documentation tests run on this machine, and use softroce if they need a device.
//! Integration tests run on softroce, in part also between two network namespaces, and then on the
//! kernel's Soft-RoCE: on this machine if it has such a device, else all of them in one boot of the
//! guest. The integration tests of `xtask` need no device, and run once, on this machine. The tests
//! in `rdma-async/interop`, which is not part of the workspace, run like the integration tests, but
//! not in the guest.

mod hosts;
mod installed;
mod libtest;
mod nested;
mod place;
mod plan;
mod program;
mod quick;
mod report;
mod selection;
mod target;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use xshell::Shell;

use self::hosts::Hosts;
use self::installed::Installed;
use self::place::{C_PROGRAMS, FOREIGN, Matches, Place};
use self::program::{Outcome, Program};
use self::report::{PlaceResults, Report};
pub(crate) use self::selection::Selection;
pub(crate) use self::target::Target;
use crate::cargo::{self, Executable};
use crate::rxe::{self, Requirements};
use crate::{packages, project, softroce};

/// Time limit for all tests together on a device other than softroce, such as the kernel's
/// Soft-RoCE. After this time, the tests that still run are killed.
const DEVICE_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Runs the selected tests, prints the report, and returns the exit status: 1 if the report has a
/// failure, else 0.
pub(crate) fn run(shell: &Shell, selection: &Selection) -> anyhow::Result<u8> {
    let mut installed = Installed::default();
    let places = Place::all(selection);
    let mut groups = vec![packages::BUILD];
    if !selection.quick && !selection.is_by_name() {
        groups.extend(places.iter().flat_map(|place| place.needs(|_| true)));
    }
    installed.install(shell, groups);
    let built = build(selection, &installed)?;

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
        installed.install(shell, places.iter().flat_map(needs).collect());
    }

    let is_on_softroce = |(place, _): &(Place, _)| *place == Place::Device(Target::Softroce);
    if places.iter().any(is_on_softroce) {
        // Some tests build this library if it is missing. Without this line, the build would count
        // as time of the first such test.
        softroce::library(shell)?;
    }

    let mut report = Report::default();
    let scratch = RunDirectory::new()?;
    for (place, programs) in &places {
        if let Err(problem) = run_at(shell, place, programs, &installed, &scratch, &mut report) {
            report
                .problems
                .push(format!("{place}: no test ran: {problem:#}"));
        }
    }
    if selection.is_by_name() {
        if !report.places.iter().any(PlaceResults::has_tests) && report.problems.is_empty() {
            let left_out = if selection.quick {
                ", or --quick leaves it out"
            } else {
                ""
            };
            let problem = format!("no test has this name{left_out}");
            report.problems.push(problem);
        }
    } else {
        let without = report.places.iter().filter(|place| !place.has_run());
        let problems = without.map(|part| format!("no test ran on {}", part.name));
        report.problems.extend(problems.collect::<Vec<_>>());
    }
    if selection.quick {
        report.left_out = quick::left_out().collect();
    }
    println!("\n{report}");
    Ok(u8::from(report.total().failed > 0))
}

/// Runs the programs that the file `plan` lists, one after the other. Appends the outcome of each
/// program to the file `outcomes` as soon as the program ends, because a later program can crash
/// the machine. The output of each program goes to a file in the directory of `outcomes`.
pub(crate) fn run_plan(plan: &Path, outcomes: &Path) -> anyhow::Result<()> {
    let directory = outcomes.parent().context("the file has no directory")?;
    for program in plan::read(plan)? {
        plan::append(outcomes, &run_and_print(&program, directory)?)?;
    }
    Ok(())
}

/// Builds the test programs of all packages, and returns the executables. Packages that `selection`
/// does not select are built as well: for a single package, cargo would choose other features of
/// the dependencies, and so build different programs.
fn build(selection: &Selection, installed: &Installed) -> anyhow::Result<Vec<Executable>> {
    let built = cargo::build(&["test", "--workspace", "--no-run"]);
    let mut built = match installed.problem(packages::BUILD) {
        // The build may succeed without these packages, because the headers may be installed in
        // another way.
        Some(problem) => built.with_context(|| problem.to_owned())?,
        None => built?,
    };
    if nested::is_selected(selection) {
        built.extend(nested::build()?);
    }
    let names: BTreeSet<&str> = built.iter().map(|part| &*part.package_name).collect();
    for name in &selection.packages {
        let known: Vec<_> = names.iter().copied().collect();
        let is_known = names.contains(&**name);
        ensure!(
            is_known,
            "no package `{name}`; there are: {}",
            known.join(" ")
        );
    }
    Ok(built)
}

/// Runs the test programs `programs` at `place` (on the host or on a device), and adds the outcomes
/// to `report`. The files of the run are in `scratch`. Fails if no program could run.
fn run_at(
    shell: &Shell,
    place: &Place,
    programs: &[Program],
    installed: &Installed,
    scratch: &RunDirectory,
    report: &mut Report,
) -> anyhow::Result<()> {
    println!("\n== {place}");
    let requirements = match place {
        Place::Host => None,
        Place::Device(target) => target.requirements(),
    };
    let hosts = match place {
        Place::Device(Target::Hosts) => match Hosts::create()? {
            None => {
                println!("left out: this system does not allow network namespaces");
                return Ok(());
            }
            hosts => hosts,
        },
        _ => None,
    };
    let outcomes = match requirements {
        None if let Some(hosts) = &hosts => programs
            .iter()
            .map(|program| run_and_print(&hosts.place(program), &scratch.0))
            .collect::<Result<_, _>>()?,
        None => programs
            .iter()
            .map(|program| run_and_print(program, &scratch.0))
            .collect::<Result<_, _>>()?,
        Some(requirements) => {
            if rxe::runs_in_guest(&requirements)
                && let Some(problem) = installed.problem(packages::GUEST)
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
            && let Some(problem) = installed.problem(group)
        {
            let problem = format!("{place}: programs were left out: {problem}");
            report.problems.push(problem);
        }
    }
    report.places.push(PlaceResults {
        name: place.to_string(),
        options: place.options(),
        outcomes,
    });
    Ok(())
}

/// Runs `programs` in a separate process, on a machine that meets `requirements`: this machine or
/// the guest (a virtual machine). The files of the run are in `directory`. Returns the outcomes of
/// the programs. If the process fails after a program has started, adds a message to `problems`. If
/// the process fails earlier, returns the error.
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
    // Runs a copy of this executable: if cargo has rebuilt it meanwhile, the original file has
    // another name.
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
        // A program that succeeded has an outcome, but its log file was removed.
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

/// Returns a failure as the outcome of `program`, which was not started or did not run to its end.
/// Also prints the contents of the program's output file in `directory`, if the file exists.
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

/// Runs `program`, prints a line with the result, and returns the outcome. If a test failed, also
/// prints the program's output. `directory` is the directory for the file with the output.
fn run_and_print(program: &Program, directory: &Path) -> anyhow::Result<Outcome> {
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

/// A directory for the files of one run of `cargo xtask test`. The directory is removed when this
/// value is dropped.
struct RunDirectory(PathBuf);

impl RunDirectory {
    fn new() -> anyhow::Result<Self> {
        let path = project::target().join(format!("xtask-test-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // Files that could not be removed do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}
