//! The selection of tests that a run of `cargo xtask test` includes.

use std::ffi::OsString;

use super::quick;
use super::target::{Target, XTASK};
use crate::cargo::{Executable, Kind};

/// The value of the option `--program` of `cargo xtask test` that selects the examples in the
/// documentation.
pub(crate) const DOC_TESTS: &str = "doc-tests";

/// The tests that a run includes, by machine, package, program and name.
#[derive(Debug)]
pub(crate) struct Selection {
    /// Set to run the tests that need no device.
    pub(crate) host: bool,
    /// Set to run the tests that need a device.
    pub(crate) device: bool,
    /// Set to run only quick tests, on softroce.
    pub(crate) quick: bool,
    /// Names of the packages. If empty, all packages of the workspace.
    pub(crate) packages: Vec<String>,
    /// Names of the test programs. If empty, all programs.
    pub(crate) programs: Vec<String>,
    /// Text that the names of the tests must contain.
    pub(crate) filter: Option<String>,
    /// Set if `filter` is the whole name of a test.
    pub(crate) exact: bool,
    /// The devices to test on.
    pub(crate) devices: Vec<Target>,
}

impl Selection {
    /// Returns whether this selection of tests is restricted by names of packages, programs or
    /// tests.
    pub(crate) fn is_by_name(&self) -> bool {
        !self.packages.is_empty() || !self.programs.is_empty() || self.filter.is_some()
    }

    /// Returns the arguments with which a test program runs only the tests that the options
    /// `--filter` and `--exact` select.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = OsString> {
        let exact = self.exact && self.filter.is_some();
        let filter = self.filter.iter().map(OsString::from);
        filter.chain(exact.then(|| "--exact".into()))
    }

    /// Returns whether this selection runs `executable` on the host, without a device. Such an
    /// executable contains unit tests or tests of `xtask`.
    pub(crate) fn is_on_host(&self, executable: &Executable) -> bool {
        let needs_none = executable.kind == Kind::UnitTest
            || executable.kind == Kind::IntegrationTest && executable.package_name == XTASK;
        self.host && needs_none && self.has(executable)
    }

    /// Returns whether this selection of tests includes the test program `executable` on `device`.
    pub(crate) fn is_on_device(&self, executable: &Executable, device: &Target) -> bool {
        self.device
            && executable.kind == Kind::IntegrationTest
            && device.has_test(&executable.package_name, &executable.target)
            && self.has(executable)
    }

    /// Returns whether this selection of tests includes the examples in the documentation, which
    /// rustdoc builds and runs.
    pub(crate) fn has_doc_tests(&self) -> bool {
        self.host && !self.quick && self.has_program(DOC_TESTS)
    }

    fn has(&self, executable: &Executable) -> bool {
        let (package, program) = (&executable.package_name, &executable.target);
        (self.packages.is_empty() || self.packages.contains(package))
            && self.has_program(program)
            && !(self.quick && quick::leaves_out(package, program))
    }

    fn has_program(&self, name: &str) -> bool {
        self.programs.is_empty() || self.programs.iter().any(|program| program == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Selection {
        Selection {
            host: true,
            device: true,
            quick: false,
            packages: Vec::new(),
            programs: Vec::new(),
            filter: None,
            exact: false,
            devices: vec![Target::Softroce, Target::Rxe],
        }
    }

    fn executable(kind: Kind, package: &str, target: &str) -> Executable {
        Executable {
            kind,
            package_name: package.into(),
            target: target.into(),
            package: "/w/p".into(),
            path: "/w/target/p".into(),
        }
    }

    #[test]
    fn each_program_runs_where_it_belongs() {
        let all = everything();
        let unit = executable(Kind::UnitTest, "rdma-core", "rdma_core");
        let device = executable(Kind::IntegrationTest, "rdma-core", "holes");
        let own = executable(Kind::IntegrationTest, "xtask", "documentation");
        assert!(all.is_on_host(&unit) && !all.is_on_device(&unit, &Target::Rxe));
        assert!(!all.is_on_host(&device) && all.is_on_device(&device, &Target::Rxe));
        assert!(all.is_on_host(&own) && !all.is_on_device(&own, &Target::Softroce));
        let without = Selection {
            host: false,
            ..everything()
        };
        assert!(!without.is_on_host(&unit) && !without.has_doc_tests());
    }

    #[test]
    fn packages_and_programs_are_chosen_by_name() {
        let chosen = Selection {
            packages: vec!["rdma-core".into()],
            programs: vec!["holes".into()],
            ..everything()
        };
        assert!(chosen.is_by_name() && !everything().is_by_name());
        let runs = |package, target| {
            let executable = executable(Kind::IntegrationTest, package, target);
            chosen.is_on_device(&executable, &Target::Softroce)
        };
        assert!(runs("rdma-core", "holes"));
        assert!(!runs("rdma-core", "windows"));
        assert!(!runs("rdma-async", "holes"));
        assert!(!chosen.has_doc_tests());
    }

    #[test]
    fn quick_leaves_out_what_is_slow() {
        let quick = Selection {
            quick: true,
            ..everything()
        };
        let runs = |package, target| {
            let executable = executable(Kind::IntegrationTest, package, target);
            quick.is_on_device(&executable, &Target::Softroce)
        };
        assert!(runs("rdma-core", "holes"));
        assert!(!runs("softroce", "c_programs"));
        assert!(!quick.has_doc_tests());
    }

    #[test]
    fn a_filter_is_passed_on() {
        let chosen = Selection {
            filter: Some("a::b".into()),
            exact: true,
            ..everything()
        };
        assert!(chosen.arguments().eq(["a::b", "--exact"]));
        let none = Selection {
            exact: true,
            ..everything()
        };
        assert_eq!(none.arguments().count(), 0);
    }
}
