//! The tests in `rdma-async/interop`: programs of other projects over the streams of rdma-async.
//! The package of the tests is in a workspace of its own, because it depends on these projects.

use anyhow::Context;

use super::selection::Selection;
use super::target::{PROGRAMS_OVER_STREAMS, Target};
use crate::cargo::{self, Executable};
use crate::project;

/// The directory of the package `rdma-async-interop`, relative to the root of the workspace. The
/// tests of the package run programs of other projects over the streams of rdma-async.
const DIRECTORY: &str = "rdma-async/interop";

/// Returns whether `selection` can include tests of the package `rdma-async-interop`, so that this
/// package must be built.
pub(crate) fn is_selected(selection: &Selection) -> bool {
    let is_program = |name: &String| {
        let file = project::root().join(DIRECTORY).join("tests").join(name);
        file.with_extension("rs").is_file()
    };
    let is_package = |name: &String| name == PROGRAMS_OVER_STREAMS;
    let has_device = |device: &Target| device.has_test(PROGRAMS_OVER_STREAMS, "");
    !selection.quick
        && selection.device
        && selection.devices.iter().any(has_device)
        && (selection.packages.is_empty() || selection.packages.iter().any(is_package))
        && (selection.programs.is_empty() || selection.programs.iter().any(is_program))
}

/// Builds the test programs of the package `rdma-async-interop`, and returns them.
pub(crate) fn build() -> anyhow::Result<Vec<Executable>> {
    let manifest = format!("{DIRECTORY}/Cargo.toml");
    let directory = project::target().join("interop");
    let directory = directory.to_str().context("a path is not UTF-8")?;
    let command = ["test", "--no-run", "--locked", "--manifest-path", &manifest];
    cargo::build(&[&command[..], &["--target-dir", directory]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_built_only_if_its_tests_can_run() {
        let all = || Selection {
            host: true,
            device: true,
            quick: false,
            packages: Vec::new(),
            programs: Vec::new(),
            filter: None,
            exact: false,
            devices: vec![Target::Softroce, Target::Rxe],
        };
        let names = |name: &str| vec![name.to_owned()];
        assert!(is_selected(&all()));
        assert!(is_selected(&Selection {
            packages: names(PROGRAMS_OVER_STREAMS),
            programs: names("axum"),
            ..all()
        }));
        for without in [
            Selection {
                quick: true,
                ..all()
            },
            Selection {
                device: false,
                ..all()
            },
            Selection {
                packages: names("rdma-core"),
                ..all()
            },
            Selection {
                programs: names("holes"),
                ..all()
            },
            Selection {
                devices: vec![Target::Rxe],
                ..all()
            },
        ] {
            assert!(!is_selected(&without), "{without:?}");
        }
    }
}
