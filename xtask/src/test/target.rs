//! The devices that tests and benchmarks run on.

use std::ffi::OsString;
use std::fmt;

use crate::environment;
use crate::rxe::Requirements;
use crate::soft_roce::device;

/// A device on which tests and benchmarks run. softroce counts as several devices, which differ in
/// how messages are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// softroce, the user-space device, with its own choice of how messages are sent.
    Softroce,
    /// softroce, which is forced to send messages within one process as UDP packets.
    Packets,
    /// softroce, which is forced to send messages within one process through shared memory, as
    /// between two processes of a host.
    Shared,
    /// softroce on two hosts (network namespaces of this machine): the servers of the tests run on
    /// one, the tests and their clients on the other.
    Hosts,
    /// The kernel's Soft-RoCE, on this machine or in the guest.
    Rxe,
    /// softroce and the kernel's Soft-RoCE on one network, in the guest.
    Wire,
    /// The device of this machine with the given name.
    Named(String),
}

/// The name of softroce's package, whose test programs run on softroce only.
const SOFTROCE: &str = "softroce";

/// The name of the package that builds softroce as a library for other programs, which load the
/// library by `LD_PRELOAD`. The package has no interface for Rust.
pub(crate) const SOFTROCE_PRELOAD: &str = "softroce-preload";

/// The name of the package `xtask`, whose integration tests need no device, and run only on the
/// host.
pub(crate) const XTASK: &str = "xtask";

/// The test programs, each with its package, that also run on [`Target::Packets`] and
/// [`Target::Shared`]: softroce that is forced to send messages as packets, or through shared
/// memory. Together, these programs send every kind of message, and make messages succeed and fail
/// in every possible way.
const ON_ALL_PATHS: [(&str, &str); 4] = [
    ("ibverbs-sys", "conformance"),
    (SOFTROCE, "direct"),
    ("rdma-core", "messages"),
    ("rdma-core", "random_rounds"),
];

/// The test programs, each with its package, that also run on [`Target::Hosts`] (two simulated
/// hosts), because they run servers and clients in separate processes.
const BETWEEN_HOSTS: [(&str, &str); 10] = [
    ("rdma-async", "board"),
    ("rdma-async", "first_program"),
    ("rdma-async", "key_value"),
    ("rdma-async", "loan"),
    ("rdma-async", "lock"),
    ("rdma-async", "rdma_cp"),
    ("rdma-async", "ring_all_reduce"),
    ("rdma-bench", "device"),
    ("rdma-rpc", "block_store"),
    ("rdma-rpc", "programs"),
];

/// The name of softroce's test program that exchanges packets with the kernel's Soft-RoCE.
const INTEROP: &str = "interop";

/// The package that runs programs of other projects over the streams of rdma-async. The package is
/// in a workspace of its own.
pub(crate) const PROGRAMS_OVER_STREAMS: &str = "rdma-async-interop";

/// The name of the test program, in several packages, that checks that the compiler rejects wrong
/// code. The program does not run on the kernel's Soft-RoCE, because the guest (a virtual machine)
/// has no compiler, and the result does not depend on the device.
const COMPILE_FAIL: &str = "compile_fail";

impl Target {
    /// Returns the devices to test: only the device called `name` (the value of `--device`), if
    /// given, or the device named by `RDMA_DEVICE`. Without a name, returns all variants of
    /// softroce, the kernel's Soft-RoCE, and a network that connects both.
    pub(crate) fn chosen(name: Option<String>) -> Vec<Self> {
        match name.or_else(by_environment) {
            Some(name) if name == "packets" => vec![Self::Packets],
            Some(name) if name == "shared" => vec![Self::Shared],
            Some(name) if name == "hosts" => vec![Self::Hosts],
            Some(name) if name == "wire" => vec![Self::Wire],
            Some(name) => vec![Self::named(name)],
            None => vec![
                Self::Softroce,
                Self::Packets,
                Self::Shared,
                Self::Hosts,
                Self::Rxe,
                Self::Wire,
            ],
        }
    }

    /// Returns the device to measure: the device called `name` (the value of `--device`), if given,
    /// or the device named by `RDMA_DEVICE`. Without a name, returns the first device of this
    /// machine, or softroce if the machine has no device.
    pub(crate) fn measured(name: Option<String>) -> Self {
        match name.or_else(by_environment).or_else(device::first) {
            Some(name) => Self::named(name),
            None => Self::Softroce,
        }
    }

    /// Returns the value of the option `--device` of `cargo xtask test` that selects this device
    /// alone.
    pub(crate) fn option(&self) -> &str {
        match self {
            Self::Softroce => "softroce",
            Self::Packets => "packets",
            Self::Shared => "shared",
            Self::Hosts => "hosts",
            Self::Rxe => "rxe",
            Self::Wire => "wire",
            Self::Named(name) => name,
        }
    }

    fn named(name: String) -> Self {
        match name.as_str() {
            "rxe" => Self::Rxe,
            name if name.starts_with("softroce") => Self::Softroce,
            _ => Self::Named(name),
        }
    }

    /// Returns whether the test program `test` of the package `package` runs on this device.
    /// Softroce's own test programs run only on softroce. The test programs of `xtask` run on no
    /// device. Checks of compiler errors and tests with programs of other projects do not run on
    /// the kernel's device.
    pub(crate) fn has_test(&self, package: &str, test: &str) -> bool {
        if package == XTASK {
            return false;
        }
        let interop = package == SOFTROCE && test == INTEROP;
        let is_of_softroce = [SOFTROCE, SOFTROCE_PRELOAD].contains(&package);
        match self {
            Self::Softroce => !interop,
            Self::Packets | Self::Shared => ON_ALL_PATHS.contains(&(package, test)),
            Self::Hosts => BETWEEN_HOSTS.contains(&(package, test)),
            Self::Rxe => {
                !is_of_softroce && package != PROGRAMS_OVER_STREAMS && test != COMPILE_FAIL
            }
            Self::Named(_) => !is_of_softroce,
            Self::Wire => interop,
        }
    }

    /// Returns the machine (this machine or the guest, a virtual machine) and the settings that
    /// tests or benchmarks on this device require. Returns `None` for softroce, which runs on
    /// every machine.
    pub(crate) fn requirements(&self) -> Option<Requirements> {
        let usual = Requirements::default();
        match self {
            Self::Softroce | Self::Packets | Self::Shared | Self::Hosts => None,
            Self::Rxe => Some(usual),
            Self::Wire => Some(Requirements {
                guest: true,
                modules: vec!["veth".into(), "sch_netem".into()],
                ..usual
            }),
            Self::Named(name) => Some(Requirements {
                device: Some(name.clone()),
                ..usual
            }),
        }
    }

    /// Returns the environment variables that tests on this device need.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        match self {
            Self::Softroce | Self::Hosts => {
                vec![(environment::DEVICE.into(), environment::SOFTROCE.into())]
            }
            Self::Packets | Self::Shared => {
                let way = if *self == Self::Shared {
                    "shared"
                } else {
                    "udp"
                };
                vec![
                    (environment::DEVICE.into(), environment::SOFTROCE.into()),
                    (environment::SOFTROCE_PATH.into(), way.into()),
                ]
            }
            Self::Wire => vec![("INTEROP".into(), "required".into())],
            Self::Rxe | Self::Named(_) => Vec::new(),
        }
    }
}

fn by_environment() -> Option<String> {
    let name = std::env::var(environment::DEVICE).ok();
    name.filter(|name| name.starts_with("softroce") || device::exists(name))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Softroce => f.write_str("softroce"),
            Self::Packets => f.write_str("softroce by packets"),
            Self::Shared => f.write_str("softroce by shared memory"),
            Self::Hosts => f.write_str("softroce between hosts"),
            Self::Rxe => f.write_str("rxe"),
            Self::Wire => f.write_str("softroce and rxe"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BETWEEN_HOSTS, INTEROP, ON_ALL_PATHS, PROGRAMS_OVER_STREAMS, SOFTROCE, SOFTROCE_PRELOAD,
        Target, XTASK,
    };
    use crate::project;

    #[test]
    fn a_name_selects_one_device() {
        let chosen = |name: &str| Target::chosen(Some(name.to_owned()));
        assert_eq!(chosen("softroce"), [Target::Softroce]);
        assert_eq!(chosen("softroce0"), [Target::Softroce]);
        assert_eq!(chosen("packets"), [Target::Packets]);
        assert_eq!(chosen("shared"), [Target::Shared]);
        assert_eq!(chosen("rxe"), [Target::Rxe]);
        assert_eq!(chosen("mlx5_0"), [Target::Named("mlx5_0".into())]);
    }

    #[test]
    fn each_device_is_chosen_by_its_option() {
        for target in [
            Target::Softroce,
            Target::Packets,
            Target::Shared,
            Target::Hosts,
            Target::Rxe,
            Target::Wire,
            Target::Named("mlx5_0".into()),
        ] {
            assert_eq!(Target::chosen(Some(target.option().to_owned())), [target]);
        }
    }

    #[test]
    fn the_listed_programs_exist() {
        for (package, test) in ON_ALL_PATHS.into_iter().chain(BETWEEN_HOSTS) {
            let directory = match package {
                SOFTROCE => "ibverbs-sys/softroce",
                package => package,
            };
            let tests = project::root().join(directory).join("tests");
            let paths = [format!("{test}.rs"), format!("{test}/main.rs")];
            let exists = paths.iter().any(|path| tests.join(path).is_file());
            assert!(exists, "{package} has no test program {test}");
        }
    }

    #[test]
    fn softroces_own_tests_run_on_nothing_else() {
        assert!(Target::Softroce.has_test(SOFTROCE, "simulation"));
        assert!(!Target::Rxe.has_test(SOFTROCE, "simulation"));
        assert!(Target::Softroce.has_test(SOFTROCE_PRELOAD, "foreign"));
        assert!(!Target::Rxe.has_test(SOFTROCE_PRELOAD, "foreign"));
        assert!(Target::Rxe.has_test("rdma-core", "messages"));
        assert!(!Target::Rxe.has_test("rdma-core", "compile_fail"));
        assert!(Target::Softroce.has_test("rdma-core", "compile_fail"));
        assert!(!Target::Softroce.has_test(SOFTROCE, INTEROP));
        assert!(Target::Wire.has_test(SOFTROCE, INTEROP));
        assert!(Target::Packets.has_test("ibverbs-sys", "conformance"));
        assert!(!Target::Packets.has_test("rdma-core", "atomics"));
        assert!(!Target::Wire.has_test("rdma-core", "messages"));
        assert!(Target::Hosts.has_test("rdma-rpc", "programs"));
        assert!(!Target::Hosts.has_test("rdma-rpc", "calls"));
        assert!(Target::Softroce.has_test(PROGRAMS_OVER_STREAMS, "axum"));
        assert!(!Target::Rxe.has_test(PROGRAMS_OVER_STREAMS, "axum"));
        assert!(!Target::Softroce.has_test(XTASK, "documentation"));
        assert!(!Target::Named("mlx5_0".into()).has_test(XTASK, "documentation"));
    }
}
