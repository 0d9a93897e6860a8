//! The tests that `cargo xtask test --quick` leaves out: those on every device except softroce;
//! programs and tests that take longer than ten seconds alone, or minutes on a busy machine; and
//! most repetitions of tests that run repeatedly with random numbers.

use std::ffi::OsString;

/// The test programs that a quick run leaves out. Each entry has the names of the package and of
/// the program, and a description of the tests for the report.
const PROGRAMS: &[(&str, &str, &str)] = &[
    (
        "softroce",
        "c_programs",
        "the C programs of libibverbs and perftest on softroce",
    ),
    (
        "softroce-preload",
        "foreign",
        "the programs of UCX, Open MPI and uDAPL on softroce",
    ),
    (
        "rdma-core",
        "compile_fail",
        "the programs that must not compile",
    ),
    (
        "rdma-rpc",
        "compile_fail",
        "the services that must not compile",
    ),
    (
        "xtask",
        "documentation",
        "the commands and programs of the documentation",
    ),
];

/// The single tests that a quick run leaves out. Each entry has the names of the package, the test
/// program and the test, and a description for the report.
const TESTS: &[(&str, &str, &str, &str)] = &[(
    "softroce",
    "same_host",
    "a_destroyed_queue_pair_receives_nothing",
    "queue pairs destroyed under a storm of writes between processes",
)];

/// The environment variables by which a quick run reduces the repetitions of tests. Each entry has
/// the name and the value of the variable, and a description of the repetitions that are left out.
const REPETITIONS: &[(&str, &str, &str)] = &[
    (
        "SOFTROCE_SIM_SCHEDULES",
        "100",
        "900 of 1000 schedules of the simulated network",
    ),
    (
        "ROUNDS",
        "200",
        "800 of 1000 random rounds of rdma-core's objects",
    ),
    (
        "SOFTROCE_TEST_KILLS",
        "5",
        "20 of 25 peers killed in the middle of their traffic",
    ),
    (
        "SECONDS",
        "4",
        "6 of 10 seconds of rdma-rpc's 10,000 callers, on each path",
    ),
    (
        "PROCESSES",
        "20",
        "80 of 100 processes killed on one address",
    ),
    (
        "SOFTROCE_TEST_MEETINGS",
        "4",
        "20 of 24 regions deregistered while a peer connects",
    ),
];

/// Descriptions of groups of tests that `cargo xtask test --quick` leaves out, for its report. The
/// descriptions of single programs and tests are in [`PROGRAMS`], [`TESTS`] and [`REPETITIONS`].
const OTHERS: &[&str] = &[
    "the kernel's Soft-RoCE, and the guest that has it",
    "softroce by packets, by shared memory and between two network namespaces",
    "the examples in the documentation of the crates",
    "the programs of other projects over the streams of rdma-async",
];

/// Returns whether a quick run leaves out the test program `program` of `package`.
pub(crate) fn leaves_out(package: &str, program: &str) -> bool {
    let is_left_out =
        |left_out: &(&str, &str, &str)| (left_out.0, left_out.1) == (package, program);
    PROGRAMS.iter().any(is_left_out)
}

/// Returns the arguments by which `program` of `package` skips the tests that a quick run leaves
/// out.
pub(crate) fn arguments(package: &str, program: &str) -> impl Iterator<Item = OsString> {
    let is_of = move |test: &&(&str, &str, _, _)| (test.0, test.1) == (package, program);
    let tests = TESTS.iter().filter(is_of);
    tests.flat_map(|(_, _, test, _)| ["--skip".into(), test.into()])
}

/// Returns the environment variables that a quick run sets for test programs, so that tests repeat
/// less often.
pub(crate) fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    let variables = REPETITIONS.iter();
    variables.map(|(name, value, _)| (OsString::from(name), OsString::from(value)))
}

/// Returns descriptions of all tests that `cargo xtask test --quick` leaves out. The report of the
/// command lists these descriptions.
pub(crate) fn left_out() -> impl Iterator<Item = &'static str> {
    let programs = PROGRAMS.iter().map(|(_, _, words)| *words);
    let repetitions = REPETITIONS.iter().map(|(_, _, words)| *words);
    let tests = TESTS.iter().map(|(_, _, _, words)| *words);
    let others = OTHERS.iter().copied();
    others.chain(programs).chain(tests).chain(repetitions)
}
