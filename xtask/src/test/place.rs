//! The places where tests run: the host, without a device, or one of the devices.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use super::program::Program;
use super::quick;
use super::selection::{DOC_TESTS, Selection};
use super::target::{PROGRAMS_OVER_STREAMS, SOFTROCE_PRELOAD, Target};
use crate::cargo::{self, Executable};
use crate::packages::{self, Group};
use crate::{project, rxe};

/// Time limit of a test program. The limit is long, because the guest's processor is possibly
/// emulated, and possibly shares the host's processor with other work.
const PROGRAM_LIMIT: Duration = Duration::from_secs(900);

/// The name of softroce's test program that runs C programs (such as perftest) on softroce: the
/// package, a space, and the cargo target.
pub(crate) const C_PROGRAMS: &str = "softroce c_programs";

/// The name of the test program that runs programs of other projects (UCX, Open MPI, uDAPL) on
/// softroce: the package, a space, and the cargo target.
pub(crate) const FOREIGN: &str = "softroce-preload foreign";

/// The name of the test program that runs the commands shown in the documentation of the workspace.
/// The name consists of the package, a space, and the cargo target. Some commands need the programs
/// in [`packages::PROGRAMS`] and [`packages::FOREIGN`].
const DOCUMENTATION: &str = "xtask documentation";

/// The name of the test program with softroce's unit tests, some of which dissect captured packets
/// ([`packages::DISSECTOR`]). The package and the cargo target are both called `softroce`.
const SOFTROCE_UNIT_TESTS: &str = "softroce softroce";

/// A place where tests run: this machine without a selected device, or an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// This machine. No device is selected. Unit tests that need a device use softroce.
    Host,
    /// A device, on this machine or in the guest.
    Device(Target),
}

impl Place {
    /// Returns the places (the host and devices) that `selection` includes, in the order in which
    /// their tests run.
    pub(crate) fn all(selection: &Selection) -> Vec<Self> {
        let host = selection.host.then_some(Self::Host);
        let devices = selection.devices.iter().filter(|_| selection.device);
        host.into_iter()
            .chain(devices.cloned().map(Self::Device))
            .collect()
    }

    /// Returns the options with which `cargo xtask test` runs only the tests at this place (the
    /// host or a device). The report shows these options in the commands that repeat a test.
    pub(crate) fn options(&self) -> String {
        match self {
            Self::Host => "--host-only".to_owned(),
            Self::Device(target) => format!("--device-only --device {}", target.option()),
        }
    }

    /// Returns the name of the directory for the files, such as outputs, of the tests that run at
    /// this place: the host or a device.
    pub(crate) fn directory(&self) -> String {
        match self {
            Self::Host => "host".to_owned(),
            Self::Device(target) => target.option().to_string(),
        }
    }

    /// Returns the groups of Debian packages that the tests at this place (the host or a device)
    /// need. `runs` must return whether the test program with a given name runs at this place.
    pub(crate) fn needs(&self, runs: impl Fn(&str) -> bool) -> Vec<&'static Group> {
        let mut needs = Vec::new();
        match self {
            Self::Host => {
                needs.extend(runs(SOFTROCE_UNIT_TESTS).then_some(packages::DISSECTOR));
                needs.extend(runs(DOCUMENTATION).then_some(packages::PROGRAMS));
                needs.extend(runs(DOCUMENTATION).then_some(packages::FOREIGN));
            }
            Self::Device(Target::Softroce) => {
                needs.extend(runs(C_PROGRAMS).then_some(packages::PROGRAMS));
                needs.extend(runs(FOREIGN).then_some(packages::FOREIGN));
            }
            Self::Device(target) => {
                let requirements = target.requirements();
                let runs_in_guest =
                    requirements.is_some_and(|requirements| rxe::runs_in_guest(&requirements));
                needs.extend(runs_in_guest.then_some(packages::GUEST));
            }
        }
        needs
    }

    /// Returns the test programs of `selection` that run on this host or device, sorted by name.
    /// Leaves out the programs without a test that the option `--filter` selects. `matches` caches
    /// this check for later calls. `built` has all built executables.
    pub(crate) fn programs(
        &self,
        selection: &Selection,
        built: &[Executable],
        matches: &mut Matches,
    ) -> Vec<Program> {
        let chosen = built.iter().filter(|executable| match self {
            Self::Host => selection.is_on_host(executable),
            Self::Device(target) => selection.is_on_device(executable, target),
        });
        let mut programs: Vec<_> = chosen
            .map(|executable| program(executable, selection, built))
            .filter(|program| selection.filter.is_none() || matches.is_match(program))
            .collect();
        // Cargo lists executables in the order in which they were built, which is random.
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        if let Self::Device(target) = self {
            for program in &mut programs {
                program.environment.extend(target.environment());
            }
        } else {
            programs.extend(doc_tests(selection, built));
        }
        programs
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Device(target) => target.fmt(f),
        }
    }
}

/// A cache that shows whether a test program has a test selected by the option `--filter`. The key
/// is the path of the program. The cache is filled as needed, so that the tests of each program are
/// listed only once.
#[derive(Debug, Default)]
pub(crate) struct Matches(HashMap<OsString, bool>);

impl Matches {
    fn is_match(&mut self, program: &Program) -> bool {
        // Two programs may have the same name: the unit tests of a binary, and a test of that name.
        let asked = self.0.entry(program.command[0].clone());
        // A program that cannot list its tests is kept, and fails when it runs.
        *asked.or_insert_with(|| program.has_selected_tests().unwrap_or(true))
    }
}

fn program(executable: &Executable, selection: &Selection, built: &[Executable]) -> Program {
    let (package, target) = (&executable.package_name, &executable.target);
    let mut command = vec![executable.path.clone().into()];
    command.extend(selection.arguments());
    let mut environment = cargo::environment_of(executable, built);
    if selection.quick {
        command.extend(quick::arguments(package, target));
        environment.extend(quick::environment());
    }
    Program {
        name: format!("{package} {target}"),
        command,
        directory: executable.package.clone(),
        environment,
        limit: PROGRAM_LIMIT,
    }
}

/// Returns a test program for the examples in the documentation of all selected libraries: the
/// command `cargo test --doc`. `built` has all built executables, which show the packages with a
/// library. Returns `None` if no library is selected.
fn doc_tests(selection: &Selection, built: &[Executable]) -> Option<Program> {
    if !selection.has_doc_tests() {
        return None;
    }
    let mut command: Vec<OsString> = ["cargo", "test", "--doc"].map(OsString::from).to_vec();
    if selection.packages.is_empty() {
        command.push("--workspace".into());
    } else {
        let is_library = |name: &&String| {
            let mut parts = built.iter();
            ![PROGRAMS_OVER_STREAMS, SOFTROCE_PRELOAD].contains(&name.as_str())
                && parts.any(|part| {
                    part.package_name == **name && part.package.join("src/lib.rs").exists()
                })
        };
        let mut libraries = selection.packages.iter().filter(is_library).peekable();
        libraries.peek()?;
        command.extend(libraries.flat_map(|name| ["--package".into(), name.into()]));
    }
    command.push("--".into());
    command.extend(selection.arguments());
    Some(Program {
        name: format!("workspace {DOC_TESTS}"),
        command,
        directory: project::root().to_owned(),
        environment: vec![("CARGO_TERM_COLOR".into(), "never".into())],
        limit: PROGRAM_LIMIT,
    })
}
