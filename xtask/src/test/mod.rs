//! `cargo xtask test`: every test of the workspace.
//!
//! Unit tests and documentation tests run here; where they need a device, it is softroce.
//! Integration tests run on softroce, and then where the kernel's Soft-RoCE is: here if there is
//! a device, else all of them in one boot of the guest.

mod libtest;
mod plan;
mod program;
mod report;
mod target;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use xshell::Shell;

use self::program::{Outcome, Program};
use self::report::Report;
pub(crate) use self::target::Target;
use crate::cargo::{self, Executable, Kind};
use crate::rxe::{self, Requirements};
use crate::{packages, project};

/// How long one test executable may run. The guest's processor is emulated, and may share the
/// host's with other work.
const PROGRAM_LIMIT: Duration = Duration::from_secs(900);

/// How long all device tests together may run.
const DEVICE_LIMIT: Duration = Duration::from_secs(40 * 60);

/// What to test.
#[derive(Debug)]
pub(crate) struct Selection {
    /// Tests that need no device.
    pub(crate) host: bool,
    /// Tests that do.
    pub(crate) device: bool,
    /// Only tests with this in their names.
    pub(crate) filter: Option<String>,
    /// The devices to test on.
    pub(crate) devices: Vec<Target>,
}

/// Runs the selected tests, reports, and returns the exit status.
pub(crate) fn run(shell: &Shell, selection: &Selection) -> anyhow::Result<u8> {
    packages::install(shell, packages::BUILD)?;
    let built = cargo::build(&["test", "--workspace", "--no-run"])?;
    let mut report = Report::default();
    if selection.host {
        if let Err(error) = packages::install(shell, packages::DISSECTOR) {
            eprintln!("captures are not dissected: {error:#}");
        }
        let programs = programs(&built, Kind::UnitTest, selection);
        report.host = programs.iter().map(announced).collect();
        report.host.push(announced(&documentation(selection)));
    }
    if selection.device {
        if selection.devices.contains(&Target::Softroce) {
            packages::install(shell, packages::PROGRAMS)?;
        }
        for target in &selection.devices {
            let mut programs = programs(&built, Kind::IntegrationTest, selection);
            programs.retain(|program| {
                let (package, test) = program.package_and_test();
                target.has_test(package, test)
            });
            let outcomes = on_device(shell, target, programs, &mut report.problems)?;
            report.devices.push((target.to_string(), outcomes));
        }
    }

    let ran = |outcomes: &[Outcome]| {
        outcomes
            .iter()
            .any(|o| o.counts.passed + o.counts.failed > 0)
    };
    if selection.filter.is_some() {
        if !ran(&report.host) && !report.devices.iter().any(|(_, outcomes)| ran(outcomes)) {
            let problem = "no test has a name like that";
            report.problems.push(problem.to_owned());
        }
    } else {
        let without = report.devices.iter().filter(|(_, outcomes)| !ran(outcomes));
        let problems: Vec<_> = without
            .map(|(device, _)| format!("no test ran on {device}"))
            .collect();
        report.problems.extend(problems);
    }
    println!("\n{report}");
    Ok(u8::from(report.total().failed > 0))
}

/// Runs the programs listed in `plan`, one after the other, and writes each one's outcome to
/// `outcomes` as soon as there is one: what follows may bring the machine down.
pub(crate) fn run_plan(plan: &Path, outcomes: &Path) -> anyhow::Result<()> {
    for program in plan::read(plan)? {
        plan::append(outcomes, &announced(&program))?;
    }
    Ok(())
}

/// Runs `program` between lines that tell which one it is.
fn announced(program: &Program) -> Outcome {
    println!("\n==== {}", program.name);
    let outcome = program.run(io::stdout());
    if let Some(problem) = &outcome.problem {
        println!("{}: {problem}", program.name);
    }
    outcome
}

/// The built executables of one kind, as programs to run.
fn programs(built: &[Executable], kind: Kind, selection: &Selection) -> Vec<Program> {
    let chosen = built.iter().filter(|executable| executable.kind == kind);
    let mut programs: Vec<_> = chosen
        .map(|executable| Program {
            name: format!("{} {}", executable.package_name(), executable.target),
            command: std::iter::once(executable.path.clone().into())
                .chain(selection.filter.iter().map(OsString::from))
                .collect(),
            directory: executable.package.clone(),
            environment: cargo::environment_of(executable, built),
            limit: PROGRAM_LIMIT,
        })
        .collect();
    // Cargo lists them in the order in which they happened to be built.
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    programs
}

/// The documentation tests of all packages. They are no executables: rustdoc builds and runs them.
fn documentation(selection: &Selection) -> Program {
    let words = ["cargo", "test", "--workspace", "--doc"]
        .into_iter()
        .map(OsString::from);
    let filter = selection
        .filter
        .iter()
        .flat_map(|name| ["--".into(), name.into()]);
    Program {
        name: "documentation".to_owned(),
        command: words.chain(filter).collect(),
        directory: project::root().to_owned(),
        environment: vec![("CARGO_TERM_COLOR".into(), "never".into())],
        limit: PROGRAM_LIMIT,
    }
}

/// Runs `programs` where the device is.
fn on_device(
    shell: &Shell,
    target: &Target,
    mut programs: Vec<Program>,
    problems: &mut Vec<String>,
) -> anyhow::Result<Vec<Outcome>> {
    for program in &mut programs {
        program.environment.extend(target.environment());
    }
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    let Some(requirements) = target.requirements() else {
        return Ok(programs.iter().map(announced).collect());
    };
    let exchange = project::target().join(format!("xtask-test-{}", std::process::id()));
    fs::create_dir_all(&exchange)?;
    let (list, outcomes) = (exchange.join("plan.json"), exchange.join("outcomes.jsonl"));
    plan::write(&list, &programs)?;
    plan::clear(&outcomes)?;
    let requirements = Requirements {
        limit: Some(DEVICE_LIMIT),
        shares: vec![exchange.clone()],
        ..requirements
    };
    let this = std::env::current_exe()?;
    let command = [
        this.into(),
        "run-plan".into(),
        list.into(),
        outcomes.clone().into(),
    ];
    match rxe::run(shell, &requirements, command.to_vec()) {
        Ok(0) => {}
        Ok(status) => problems.push(format!("the tests on {target} ended with status {status}")),
        Err(error) => problems.push(format!("the tests on {target} did not end: {error:#}")),
    }
    let outcomes = plan::outcomes(&outcomes, &programs);
    fs::remove_dir_all(exchange)?;
    outcomes
}
