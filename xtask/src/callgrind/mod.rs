//! `cargo xtask callgrind`: counts the instructions of posting and polling over rdma-core, and
//! compares them with the instructions of the same loop in C.
//!
//! Both programs post one request after the other between two queue pairs of their own process, on
//! softroce, in one thread. Each runs twice, the second time with twice as many requests: the
//! difference is the cost of the requests, without the cost of the program's start. Callgrind
//! counts instructions, so other load on the machine hardly matters.
//!
//! Only instructions outside of the device are counted: those of the program with its crates, and
//! of the libraries that it calls. Both programs use the same device, whose work in a run depends
//! on when its own thread wakes up.
//!
//! The number of empty polls (polls that find no completion) also depends on the device's thread,
//! and an empty poll costs more or less than other polls. Therefore both programs pause between
//! posting and polling, so that the first poll finds the completion. The pause is not counted. A
//! request then is one post and one poll, a message two of each. A run in which many requests
//! needed more polls, because the device's thread was not scheduled in time, is repeated. The cost
//! of the few remaining empty polls is measured on an empty queue, and subtracted.

mod profile;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use xshell::{Shell, cmd};

use self::profile::Profile;
use crate::cargo::{self, Kind};
use crate::limit::ProcessGroup;
use crate::{environment, packages, project, softroce};

/// The package with the two programs whose instructions callgrind counts for comparison: one in
/// Rust, one in C.
const PACKAGE: &str = "rdma-bench";
/// The name of two directories: the directory of the C program in the package `rdma-bench`, and the
/// directory of the results in the target directory.
const DIRECTORY: &str = "callgrind";
/// The name of the two programs whose instructions are counted and compared: an example in Rust,
/// which uses rdma-core, and a source file in C.
const PROGRAM: &str = "posting";

/// Maximum number of additional instructions for posting and polling one request: the Rust program
/// over rdma-core may need at most this number more than the C program. More instructions miss the
/// goal.
const GOAL: f64 = 30.0;

/// Maximum number of calls of a library function, per request on average, that the comparison
/// ignores. Such rare calls do not belong to the requests: they happen once in a run, or in polls
/// that find no completion.
const NEGLIGIBLE: f64 = 0.05;

/// Number of requests in the shorter of two runs of a program. The longer run has twice as many
/// requests. The difference of both runs is the cost of `COUNT` requests, and does not include the
/// cost of the program's start.
const COUNT: u64 = 2000;

/// Maximum average number of polls per request that find no completion. A run with more of these
/// polls is repeated, because they make the measured cost inaccurate.
const MAX_EMPTY_POLLS: f64 = 0.02;

/// Maximum number of times that a program is run to get a run with few empty polls (at most
/// [`MAX_EMPTY_POLLS`] per request). After that, the last run counts.
const MAX_RUNS: usize = 10;

/// Time limit of one run of a program under callgrind. A run that takes longer counts as failed.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// The operations whose cost is measured, each with the number of work requests that it needs. A
/// send needs two requests, because the peer must post a receive. Every other operation needs one
/// request.
const OPERATIONS: [(&str, u32); 4] = [("send", 2), ("write", 1), ("read", 1), ("atomic", 1)];

/// The name of the operation that polls an empty queue. The cost of this operation is the cost of
/// an empty poll, which is subtracted from the costs of the other operations.
const IDLE: &str = "idle";

/// The names of all [`OPERATIONS`]: the measured operations of the interfaces in [`WAYS`] that
/// support every operation.
const ALL: &[&str] = &["send", "write", "read", "atomic"];
/// The names of the operations send and write: the measured operations of the interfaces in
/// [`WAYS`] that support neither reads nor atomic operations.
const SENDS_WRITES: &[&str] = &["send", "write"];
/// The name of the operation send: the only measured operation of some interfaces in [`WAYS`]. The
/// other operations of these interfaces do not exist, or cost the same as with another measured
/// interface.
const SENDS: &[&str] = &["send"];

/// The measured ways of posting requests in the Rust program. A way is an interface of rdma-core
/// together with a type of queue pair. Each entry has a name, whether its cost must meet [`GOAL`],
/// and the measured operations. One C program serves for all comparisons, because the cost of a
/// request in C is nearly the same for all these ways.
const WAYS: [(&str, bool, &[&str]); 8] = [
    ("owned", true, ALL),
    ("scope", true, ALL),
    ("raw", true, ALL),
    ("inline", true, SENDS_WRITES),
    ("uc", true, SENDS_WRITES),
    ("ud", false, SENDS),
    ("srq", false, SENDS),
    ("concurrent", false, ALL),
];

/// The average cost of posting and polling one request: the number of instructions, of polls, and
/// of calls of library functions.
#[derive(Clone, Debug, Default)]
struct Cost {
    /// Average number of instructions outside of the device's library.
    outside: f64,
    /// Average number of instructions in the device's library (softroce).
    device: f64,
    /// Average number of polls of the completion queue.
    polls: f64,
    /// Average number of calls of each function in libraries other than the device's.
    calls: BTreeMap<String, f64>,
}

/// A program whose instructions callgrind counts: the Rust program or the C program. `way` is the
/// name in [`WAYS`] of the interface by which the Rust program posts requests. For the C program,
/// `way` is `None`.
struct Subject {
    program: PathBuf,
    way: Option<&'static str>,
}

/// The environment in which the Rust program and the C program run: the device's library, the
/// environment variables that select the device, and the directory for the measured profiles
/// (counts of instructions).
struct Bench {
    library: PathBuf,
    environment: Vec<(OsString, OsString)>,
    results: PathBuf,
}

/// Builds a program over rdma-core and its counterpart in C, counts the instructions of both, and
/// prints a table. Returns the exit status: 0 if every goal is met, else 1.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<u8> {
    packages::install(shell, packages::BUILD)?;
    packages::install(shell, packages::CALLGRIND)?;
    let results = project::target().join(DIRECTORY);
    fs::create_dir_all(&results)?;
    let in_rust = build_rust()?;
    let bench = Bench {
        library: softroce::library(shell)?.canonicalize()?,
        environment: softroce::environment(shell)?,
        results,
    };
    let in_c = Subject {
        program: bench.build_c(shell)?,
        way: None,
    };
    let idle_c = bench.cost(&in_c, IDLE, 1)?;
    println!(
        "instructions for each request, outside of the device\n\
         {:<9}{:<12}{:>8}{:>8}{:>12}  {:<16}{:>6}  device: C, Rust",
        "request", "way", "C", "Rust", "difference", "goal", "calls"
    );
    let mut missed = 0;
    let in_c: Vec<Cost> = OPERATIONS
        .iter()
        .map(|&(operation, polls)| Ok(bench.cost(&in_c, operation, polls)?.net(&idle_c, polls)))
        .collect::<anyhow::Result<_>>()?;
    for (way, judged, posted) in WAYS {
        let subject = Subject {
            program: in_rust.clone(),
            way: Some(way),
        };
        let idle = bench.cost(&subject, IDLE, 1)?;
        for (&(operation, polls), c) in OPERATIONS.iter().zip(&in_c) {
            if !posted.contains(&operation) {
                continue;
            }
            let rust = bench.cost(&subject, operation, polls)?.net(&idle, polls);
            missed += u32::from(!line((operation, way), c, &rust, judged.then_some(polls)));
        }
        println!(
            "{IDLE:<9}{way:<12}{:>8.1}{:>8.1}{:>+12.1}  (a poll that finds nothing)",
            idle_c.outside,
            idle.outside,
            idle.outside - idle_c.outside
        );
    }
    println!(
        "\ngoals missed: {missed}; profiles: {}",
        bench.results.display()
    );
    Ok(u8::from(missed > 0))
}

/// Prints one line of the result table: the costs `c` and `rust` of the operation `operation` in
/// the C program and in the Rust program, with the interface `way` (see [`WAYS`]). The goal is at
/// most [`GOAL`] more instructions in Rust for each of the `posts` work requests of the operation,
/// and no calls of library functions. If `posts` is `None`, no goal is checked. Returns `false` if
/// the goal is missed.
fn line((operation, way): (&str, &str), c: &Cost, rust: &Cost, posts: Option<u32>) -> bool {
    let difference = rust.outside - c.outside;
    let calls: Vec<_> = rust
        .calls
        .iter()
        .filter(|(_, calls)| **calls > NEGLIGIBLE)
        .collect();
    let most = posts.map(|posts| GOAL * f64::from(posts));
    let met = most.is_none_or(|most| difference <= most && calls.is_empty());
    let verdict = if met { "met" } else { "MISSED" };
    let goal = most.map_or(String::new(), |most| format!("<= {most:+.0} {verdict}"));
    println!(
        "{operation:<9}{way:<12}{:>8.1}{:>8.1}{difference:>+12.1}  {goal:<16}{:>6.2}  {:.0}, {:.0}",
        c.outside,
        rust.outside,
        calls.iter().fold(0.0, |sum, (_, calls)| sum + **calls),
        c.device,
        rust.device
    );
    for (function, calls) in calls {
        println!("         calls {function}: {calls:.2}");
    }
    met
}

/// Builds the Rust program whose instructions are counted (the example [`PROGRAM`], which posts
/// over rdma-core), and returns the path of its executable.
fn build_rust() -> anyhow::Result<PathBuf> {
    let build = ["build", "--release", "--package", PACKAGE];
    // Without its default features, the program uses the preloaded device, as the C program does.
    let build = [&build[..], &["--no-default-features", "--example", PROGRAM]].concat();
    let built = cargo::build(&build)?;
    let program = built
        .into_iter()
        .find(|executable| executable.kind == Kind::Program && executable.target == PROGRAM)
        .with_context(|| format!("{PACKAGE} has no example `{PROGRAM}`"))?;
    Ok(program.path.canonicalize()?)
}

impl Bench {
    /// Builds the C program (`posting.c`), which posts requests by libibverbs and is compared with
    /// the Rust program. Returns the path of its executable.
    fn build_c(&self, shell: &Shell) -> anyhow::Result<PathBuf> {
        let source = project::root().join(PACKAGE).join(DIRECTORY);
        let source = source.join(PROGRAM).with_extension("c");
        let program = self.results.join(PROGRAM);
        let flags = ["-O2", "-g", "-Wall", "-Wextra", "-Werror"];
        packages::run_quietly(cmd!(shell, "cc {flags...} -o {program} {source} -libverbs"))?;
        Ok(program.canonicalize()?)
    }

    /// Measures the average cost of one request in the program `subject`. `operation` is the kind
    /// of the request, such as "send". `polls` is the number of polls that find the completions of
    /// such a request. Runs with many more polls are repeated, because polls that find no
    /// completion distort the measured cost.
    fn cost(&self, subject: &Subject, operation: &str, polls: u32) -> anyhow::Result<Cost> {
        let less = self.repeat(subject, operation, COUNT, polls)?;
        let more = self.repeat(subject, operation, 2 * COUNT, polls)?;
        let each = |more: u64, less: u64| (more as f64 - less as f64) / COUNT as f64;
        let of = |calls: &BTreeMap<String, u64>, name: &str| calls.get(name).copied().unwrap_or(0);
        let calls = more.calls.keys().map(|name| {
            let calls = each(of(&more.calls, name), of(&less.calls, name));
            (name.clone(), calls)
        });
        Ok(Cost {
            outside: each(more.own + more.libraries, less.own + less.libraries),
            device: each(more.device, less.device),
            polls: each(of(&more.verbs, "poll_cq"), of(&less.verbs, "poll_cq")),
            calls: calls.collect(),
        })
    }

    /// Runs the program `subject` with `count` requests of the kind `operation`, and returns the
    /// profile (the counted instructions). Repeats a run with many more than `polls` polls per
    /// request, because polls that find no completion distort the profile. After [`MAX_RUNS`] runs,
    /// returns the last profile.
    fn repeat(
        &self,
        subject: &Subject,
        operation: &str,
        count: u64,
        polls: u32,
    ) -> anyhow::Result<Profile> {
        let mut profile = self.profile(subject, operation, count)?;
        for _ in 1..MAX_RUNS {
            let done = profile.verbs.get("poll_cq").copied().unwrap_or(0);
            if done as f64 <= count as f64 * (f64::from(polls) + MAX_EMPTY_POLLS) {
                break;
            }
            profile = self.profile(subject, operation, count)?;
        }
        Ok(profile)
    }

    /// Runs the program `subject` under callgrind with `count` requests of the kind `operation`.
    /// Returns the profile (the counted instructions) of the program's main thread.
    fn profile(&self, subject: &Subject, operation: &str, count: u64) -> anyhow::Result<Profile> {
        let way = subject.way.unwrap_or("c");
        let file = self.results.join(format!("{operation}-{way}-{count}.out"));
        let mut command = Command::new("valgrind");
        command
            .args(["--quiet", "--tool=callgrind", "--separate-threads=yes"])
            .args([
                "--dump-line=no",
                "--compress-strings=no",
                "--compress-pos=no",
            ])
            .arg(format!("--callgrind-out-file={}", file.display()))
            .arg(format!("--log-file={}", suffixed(&file, ".log").display()))
            .arg(&subject.program)
            .args([operation, &count.to_string()])
            .args(subject.way)
            .env_clear()
            .envs(environment::inherited())
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let ended = ProcessGroup::spawn(&mut command)
            .context("starting valgrind")?
            .wait(Some(RUN_LIMIT))?;
        let what = || format!("{} {operation} {count} {way}", subject.program.display());
        match ended {
            Some(status) => ensure!(status.success(), "{}: {status}", what()),
            None => bail!("{} did not end within {RUN_LIMIT:?}", what()),
        }
        // The suffix that callgrind gives the profile of the first thread.
        let file = suffixed(&file, "-01");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = |path: &Path| path.to_string_lossy().into_owned();
        let profile = Profile::parse(&text, &name(&subject.program), &name(&self.library));
        profile.with_context(|| file.display().to_string())
    }
}

impl Cost {
    /// Subtracts the instructions of empty polls (polls that find no completion) from this cost of
    /// a request. Counts all polls beyond the number `polls` as empty. `idle` is the measured cost
    /// of an empty poll.
    fn net(self, idle: &Self, polls: u32) -> Self {
        let in_vain = self.polls - f64::from(polls);
        Self {
            outside: self.outside - in_vain * idle.outside,
            ..self
        }
    }
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
