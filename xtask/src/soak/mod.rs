//! `cargo xtask soak`: runs soak tests, which find more bugs the longer they run, each for a given
//! time.
//!
//! `cargo xtask test` includes a short run of each soak test except `fuzz`, which continuous
//! integration runs for a minute.

mod repeated;

use std::cell::Cell;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use xshell::Shell;

use self::repeated::Repeated;
use crate::cargo::{self, Executable};
use crate::{environment, fuzz, packages};

/// The options of `cargo xtask soak`, which runs random tests for a given time to find rare bugs.
#[derive(Debug)]
pub(crate) struct Options {
    /// The name of the soak test to run; `None` for all soak tests.
    pub(crate) name: Option<String>,
    /// Time for all chosen soak tests together, without building.
    pub(crate) time: Duration,
    /// Set to list the soak tests without running any.
    pub(crate) list: bool,
}

/// A soak test: a test that can run for any length of time and finds more bugs the longer it runs.
struct Soak {
    name: &'static str,
    description: &'static str,
    /// The function that builds the test and runs it for the given time. Returns the exit status.
    run: fn(&Shell, Duration) -> anyhow::Result<u8>,
}

const SOAKS: &[Soak] = &[
    Soak {
        name: "kills",
        description: "kills a process while another one of the host exchanges messages with it, \
                      and checks that nothing of it stays behind",
        run: kills,
    },
    Soak {
        name: "storms",
        description: "destroys queue pairs while another process of the host writes through them \
                      without a pause, and checks that no memory changes afterwards",
        run: storms,
    },
    Soak {
        name: "schedules",
        description: "runs softroce's transport on a simulated network that loses, delays and \
                      changes packets, each time by another random schedule",
        run: schedules,
    },
    Soak {
        name: "random-rounds",
        description: "makes, uses, fails and drops rdma-core's objects in random order, and checks \
                      that nothing stays behind",
        run: random_rounds,
    },
    Soak {
        name: "dropped-futures",
        description: "operates on connections of rdma-async and drops a third of the futures at \
                      random points, in turn within a process, through shared memory and over \
                      a network that loses packets, and checks every byte",
        run: dropped_futures,
    },
    Soak {
        name: "shared-address",
        description: "kills processes that exchange messages on one address, of which 100 are alive at \
                      a time, and checks that the other processes on the address lose nothing",
        run: shared_address,
    },
    Soak {
        name: "published",
        description: "reads published values of rdma-async that their owner updates without a pause, \
                      and checks that no reader sees a part of an update",
        run: published,
    },
    Soak {
        name: "callers",
        description: "makes calls of rdma-rpc by 10,000 callers over 64 connections, through shared \
                      memory and over a network that loses packets, while processes are killed and \
                      stopped, and checks that each call ends in time and none is executed twice",
        run: callers,
    },
    Soak {
        name: "block-store",
        description: "kills servers of rdma-rpc's block store while clients write, and checks that \
                      no acknowledged block is lost",
        run: block_store,
    },
    Soak {
        name: "fuzz",
        description: "feeds softroce packets, messages and memory of other processes, and calls, \
                      and rdma-rpc messages of peers, all made by libFuzzer, under \
                      AddressSanitizer; the targets divide the time",
        run: fuzz::run_for,
    },
];

/// Runs the chosen soak tests one after the other, each for an equal part of the time. Continues
/// after a failure. Returns the exit status of the first soak test that failed, else 0.
pub(crate) fn run(shell: &Shell, options: &Options) -> anyhow::Result<u8> {
    let chosen = chosen(options.name.as_deref())?;
    if options.list {
        print!("{}", list());
        return Ok(0);
    }
    packages::install(shell, packages::BUILD)?;
    let time = share(options.time, chosen.len());
    let mut failure = 0;
    let mut report = String::new();
    for soak in chosen {
        eprintln!(
            "\n== {} for {} s: {}",
            soak.name,
            time.as_secs(),
            soak.description
        );
        let (status, words) = match (soak.run)(shell, time) {
            Ok(0) => (0, "ok".to_owned()),
            Ok(status) => (status, format!("FAILED with status {status}")),
            Err(error) => (1, format!("FAILED: {error:#}")),
        };
        report += &format!("{:14} {words}\n", soak.name);
        if failure == 0 {
            failure = status;
        }
    }
    print!("\n{report}");
    Ok(failure)
}

/// Returns the soak test called `name`, or all soak tests for `None`. Fails if the name is unknown.
fn chosen(name: Option<&str>) -> anyhow::Result<Vec<&'static Soak>> {
    let chosen: Vec<_> = SOAKS
        .iter()
        .filter(|soak| name.is_none_or(|name| soak.name == name))
        .collect();
    ensure!(
        !chosen.is_empty(),
        "no soak `{}`; there are:\n{}",
        name.unwrap_or_default(),
        list().trim_end()
    );
    Ok(chosen)
}

/// Returns a text with one line for each soak test: its name and its description.
fn list() -> String {
    let lines = SOAKS
        .iter()
        .map(|soak| format!("{:14} {}\n", soak.name, soak.description));
    lines.collect()
}

/// Returns the time that each of `count` soak tests runs if they share `time` equally, but at least
/// one second.
fn share(time: Duration, count: usize) -> Duration {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    (time / count.max(1)).max(Duration::from_secs(1))
}

/// Name of a test of softroce's test program `same_host`. The test kills processes in the middle of
/// their traffic.
const KILLED_PEERS: &str = "the_links_of_killed_peers_are_removed";
/// Name of a test of softroce's test program `same_host`. The test destroys queue pairs during many
/// writes.
const DESTROYED_QUEUE_PAIR: &str = "a_destroyed_queue_pair_receives_nothing";
/// Name of a test of rdma-async's test program `publish`. In the test, readers look for torn
/// (partially updated) values.
const TORN_VALUES: &str = "readers_never_read_a_partial_update";
/// Name of a test of rdma-rpc's test program `block_store`. The test kills servers while clients
/// write.
const KILLED_SERVERS: &str = "a_block_store_loses_no_acknowledged_block_over_rdma";

fn kills(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    let built = test_program("same_host")?;
    let repeated = Repeated {
        name: "kills",
        min: 25,
        max: 1000,
        first_seed: repeated::new_seed(),
    };
    repeated.run(time, |seed, count| {
        let variables = [("SOFTROCE_TEST_SEED", seed), ("SOFTROCE_TEST_KILLS", count)];
        same_host(&built, KILLED_PEERS, &variables)
    })
}

fn storms(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    let built = test_program("same_host")?;
    let repeated = Repeated {
        name: "storms",
        min: 40,
        max: 1000,
        first_seed: 0,
    };
    repeated.run(time, |_, count| {
        let variables = [("SOFTROCE_TEST_STORMS", count)];
        same_host(&built, DESTROYED_QUEUE_PAIR, &variables)
    })
}

/// Returns the command that runs the test `test` of softroce's test program `same_host` with the
/// environment variables `variables`. Also returns the command line with which a user repeats the
/// run.
fn same_host(
    (program, built): &(Executable, Vec<Executable>),
    test: &str,
    variables: &[(&str, u64)],
) -> (Command, String) {
    let mut command = repeated::command(program, built);
    command.arg(test);
    let mut again = String::new();
    for (name, value) in variables {
        command.env(name, value.to_string());
        again += &format!("{name}={value} ");
    }
    again += &format!(
        "cargo xtask test --package softroce --program same_host --filter {test} --device softroce"
    );
    (command, again)
}

fn schedules(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    let built = cargo::build(&["build", "--workspace", "--example", "simulate"])?;
    let program = find(&built, "simulate")?;
    Repeated {
        name: "schedules",
        min: 100,
        max: 10_000,
        first_seed: repeated::new_seed(),
    }
    .run(time, |seed, count| {
        let mut command = repeated::command(program, &built);
        let (seed, count) = (seed.to_string(), count.to_string());
        command.args(["--seed", &seed, "--schedules", &count]);
        let again = format!(
            "cargo run --package softroce --features sim --example simulate -- --seed {seed} \
             --schedules {count}"
        );
        (command, again)
    })
}

fn random_rounds(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    let built = test_program("random_rounds")?;
    let program = &built.0;
    Repeated {
        name: "random-rounds",
        min: 100,
        max: 1000,
        first_seed: repeated::new_seed(),
    }
    .run(time, |seed, count| {
        let mut command = repeated::command(program, &built.1);
        command
            .env("SEED", seed.to_string())
            .env("ROUNDS", count.to_string())
            .env(environment::DEVICE, environment::SOFTROCE);
        let again = format!(
            "SEED={seed} ROUNDS={count} cargo xtask test --package rdma-core \
             --program random_rounds --device softroce"
        );
        (command, again)
    })
}

fn dropped_futures(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    /// The environment variables that select the path on which softroce sends messages: shared
    /// memory, UDP with lost packets, or softroce's own choice. Each run uses the next element, so
    /// that all paths are tested.
    const PATHS: [&[(&str, &str)]; 3] = [
        &[("SOFTROCE_PATH", "shared")],
        &[("SOFTROCE_PATH", "udp"), ("SOFTROCE_LOSS", "0.001")],
        &[],
    ];
    let run = Cell::new(0);
    let built = test_program("dropped_futures")?;
    let program = &built.0;
    Repeated {
        name: "dropped-futures",
        min: 10_000,
        // Runs are short, because the next run takes another path, which can be several times
        // slower.
        max: 100_000,
        first_seed: repeated::new_seed(),
    }
    .run(time, |seed, count| {
        let mut command = repeated::command(program, &built.1);
        command
            .env("SEED", seed.to_string())
            .env("OPERATIONS", count.to_string())
            .env(environment::DEVICE, environment::SOFTROCE);
        let mut again = format!("SEED={seed} OPERATIONS={count} ");
        let path = PATHS[run.get() % PATHS.len()];
        run.set(run.get() + 1);
        for (name, value) in path {
            command.env(name, value);
            again += &format!("{name}={value} ");
        }
        again +=
            "cargo xtask test --package rdma-async --program dropped_futures --device softroce";
        (command, again)
    })
}

fn shared_address(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    let built = test_program("shared_address")?;
    let program = &built.0;
    Repeated {
        name: "shared-address",
        min: 150,
        max: 1000,
        first_seed: repeated::new_seed(),
    }
    .run(time, |seed, count| {
        let mut command = repeated::command(program, &built.1);
        command
            .env("SEED", seed.to_string())
            .env("PROCESSES", count.to_string())
            .env("CONCURRENT", "100")
            .env(environment::DEVICE, environment::SOFTROCE);
        let again = format!(
            "SEED={seed} PROCESSES={count} CONCURRENT=100 cargo xtask test --package rdma-async \
             --program shared_address --device softroce"
        );
        (command, again)
    })
}

fn published(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    const TEST: &str = TORN_VALUES;
    let (program, built) = release_test_program("rdma-async", "publish")?;
    Repeated {
        name: "published",
        min: 100_000,
        // Each of four readers performs this number of reads within the time limit of the test,
        // also while other programs use the processors.
        max: 500_000,
        first_seed: 0,
    }
    .run(time, |_, count| {
        let mut command = repeated::command(&program, &built);
        command
            .arg(TEST)
            .env("READS", count.to_string())
            .env(environment::DEVICE, environment::SOFTROCE);
        let again = format!(
            "READS={count} cargo test --release --package rdma-async --test publish {TEST}"
        );
        (command, again)
    })
}

fn callers(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    let built = release_test_program("rdma-rpc", "callers")?;
    Repeated {
        name: "callers",
        // Seconds for each of the two paths.
        min: 60,
        max: 600,
        first_seed: repeated::new_seed(),
    }
    .run(time, |seed, seconds| {
        let mut command = repeated::command(&built.0, &built.1);
        command
            .env("SEED", seed.to_string())
            .env("SECONDS", seconds.to_string())
            .env(environment::DEVICE, environment::SOFTROCE);
        let again = format!(
            "SEED={seed} SECONDS={seconds} cargo test --release --package rdma-rpc --test callers"
        );
        (command, again)
    })
}

fn block_store(_: &Shell, time: Duration) -> anyhow::Result<u8> {
    const TEST: &str = KILLED_SERVERS;
    // The test runs the example as processes. With optimizations, because a restarted server copies
    // all blocks from its peers, and their number grows with each kill.
    let package = ["--release", "--package", "rdma-rpc"];
    let example = ["--example", "block_store"];
    cargo::build(&[&["build"], &package[..], &example].concat())?;
    let built = release_test_program("rdma-rpc", "block_store")?;
    Repeated {
        name: "block-store",
        min: 100,
        max: 100,
        first_seed: repeated::new_seed(),
    }
    .run(time, |seed, count| {
        let mut command = repeated::command(&built.0, &built.1);
        command
            .arg(TEST)
            .env("SEED", seed.to_string())
            .env("KILLS", count.to_string())
            .env(environment::DEVICE, environment::SOFTROCE);
        let again = format!(
            "SEED={seed} KILLS={count} cargo test --release --package rdma-rpc \
             --test block_store {TEST}"
        );
        (command, again)
    })
}

/// Builds the test program `name` as `cargo xtask test` does. Returns the test program, and all
/// executables of the same build, whose paths the test program may need.
fn test_program(name: &str) -> anyhow::Result<(Executable, Vec<Executable>)> {
    let built = cargo::build(&["test", "--workspace", "--no-run", "--test", name])?;
    let program = find(&built, name)?.clone();
    Ok((program, built))
}

/// Builds the test program `name` of `package` with optimizations. Returns the test program, and
/// all executables that were built.
fn release_test_program(
    package: &str,
    name: &str,
) -> anyhow::Result<(Executable, Vec<Executable>)> {
    let options = [
        "test",
        "--release",
        "--package",
        package,
        "--no-run",
        "--test",
        name,
    ];
    let built = cargo::build(&options)?;
    let program = find(&built, name)?.clone();
    Ok((program, built))
}

fn find<'a>(built: &'a [Executable], name: &str) -> anyhow::Result<&'a Executable> {
    let found = built.iter().find(|executable| executable.target == name);
    found.with_context(|| format!("cargo built no `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soaks_are_chosen_by_name() {
        let names = |name| -> Vec<_> {
            let chosen = chosen(name).unwrap();
            chosen.iter().map(|soak| soak.name).collect()
        };
        assert_eq!(names(Some("kills")), ["kills"]);
        assert_eq!(names(None).len(), SOAKS.len());
        let error = chosen(Some("kils")).err().unwrap().to_string();
        assert!(
            error.contains("no soak `kils`; there are:\nkills "),
            "{error}"
        );
    }

    /// Checks that every test that a soak test runs exists. A test program that gets an unknown
    /// test name runs no test and reports success, so a wrong name would otherwise remain
    /// unnoticed.
    #[test]
    fn the_tests_of_the_soaks_exist() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let same_host = "ibverbs-sys/softroce/tests/same_host/main.rs";
        for (file, test) in [
            (same_host, KILLED_PEERS),
            (same_host, DESTROYED_QUEUE_PAIR),
            ("rdma-async/tests/publish.rs", TORN_VALUES),
            ("rdma-rpc/tests/block_store.rs", KILLED_SERVERS),
        ] {
            let source = std::fs::read_to_string(root.join(file)).unwrap();
            assert!(source.contains(test), "{file} has no test {test}");
        }
    }

    #[test]
    fn soaks_divide_the_time() {
        let minute = Duration::from_secs(60);
        assert_eq!(share(minute, 1), minute);
        assert_eq!(share(minute, 4), Duration::from_secs(15));
        assert_eq!(share(Duration::from_secs(1), 4), Duration::from_secs(1));
    }
}
