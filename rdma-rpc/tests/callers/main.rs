//! Ten thousand callers over 64 connections to four servers, while processes of servers and clients
//! are killed, stopped and started again, through shared memory and over a network that loses
//! packets. Each call ends in its answer or in an error of the framework soon after its deadline at
//! the latest, no call of a method with `#[rpc(once)]` is executed twice, and no process uses more
//! and more memory.
//!
//! The environment variable `SECONDS` is the duration of each run, and `SEED` repeats the order of
//! its calls and kills. The device is softroce: the paths are those of softroce.

#[path = "../common/mod.rs"]
mod common;

mod client;
mod outcome;
mod process;
mod server;
mod stalls;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use common::chance::{self, Chance};
use libtest_mimic::{Arguments, Failed, Trial};
use process::{Process, Usage};

/// Number of servers. The first one is never killed or stopped, so that its memory can be compared.
const SERVERS: usize = 4;

/// Number of clients of the process that is never killed. Each has a connection to each server.
const CLIENTS: usize = 16;

/// Number of callers of that process.
const CALLERS: usize = 10_000;

/// Numbers of clients and callers of a process that is killed.
const VICTIM: (usize, usize) = (2, 200);

/// Time limit for everything except the calls themselves.
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    match process::role().as_deref() {
        Some("server") => return server::run(),
        Some("client") => return client::run(),
        _ => {}
    }
    let trial = |name: &str, path: &'static [(&str, &str)]| {
        Trial::test(name, move || {
            soak(path);
            Ok::<(), Failed>(())
        })
    };
    let trials = vec![
        trial(
            "calls_end_in_time_through_shared_memory",
            &[("SOFTROCE_PATH", "shared")],
        ),
        trial(
            "calls_end_in_time_over_a_network_that_loses_packets",
            &[("SOFTROCE_PATH", "udp"), ("SOFTROCE_LOSS", "0.001")],
        ),
    ];
    let arguments = Arguments {
        // Each test measures times.
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    libtest_mimic::run(&arguments, trials).exit();
}

/// Returns the duration of a run in seconds.
fn seconds() -> u64 {
    env::var("SECONDS").map_or(10, |text| text.parse().expect("a number"))
}

/// The processes of a run.
struct Run {
    path: &'static [(&'static str, &'static str)],
    /// Directory of the files in which servers record the calls that they execute, and clients
    /// those that were answered.
    directory: PathBuf,
    addresses: Vec<String>,
    servers: Vec<Process>,
    /// Number of servers and clients that were started.
    started: usize,
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.directory));
    }
}

impl Run {
    fn server(&mut self, index: usize) -> Process {
        self.started += 1;
        let record = self.directory.join(format!("executed-{}", self.started));
        let words = [&self.addresses[index], record.to_str().expect("UTF-8")];
        Process::start("server", &words, self.path)
    }

    fn client(&mut self, (clients, callers): (usize, usize), seconds: u64, seed: u64) -> Process {
        self.started += 1;
        let answered = self.directory.join(format!("answered-{}", self.started));
        let numbers = [
            self.started as u64,
            clients as u64,
            callers as u64,
            seconds,
            seed,
        ];
        let mut words: Vec<String> = numbers.iter().map(u64::to_string).collect();
        words.push(answered.to_str().expect("UTF-8").to_owned());
        words.extend(self.addresses.iter().cloned());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Process::start("client", &words, self.path)
    }
}

/// Runs the callers, and checks what they and the servers recorded.
fn soak(path: &'static [(&'static str, &'static str)]) {
    if env::var_os("RDMA_DEVICE").is_some_and(|device| device != "softroce0") {
        eprintln!("skipped: only softroce has the paths of this test");
        return;
    }
    let (seconds, seed) = (seconds(), chance::seed());
    let mut run = Run {
        path,
        directory: new_directory(),
        addresses: process::free_addresses(SERVERS),
        servers: Vec::new(),
        started: 0,
    };
    for index in 0..SERVERS {
        let mut server = run.server(index);
        server.wait_until_ready();
        run.servers.push(server);
    }
    let mut callers = run.client((CLIENTS, CALLERS), seconds, seed);
    callers.wait_until_ready();
    let begun = Instant::now();
    let mut chance = Chance::new(seed);
    let mut victim = run.client(VICTIM, seconds, seed + 1);
    let mut half = None::<Usage>;
    let mut kills = 0;
    while !callers.has_ended() {
        let elapsed = begun.elapsed();
        assert!(
            elapsed < Duration::from_secs(seconds) + LIMIT,
            "SEED={seed}: the callers have not ended"
        );
        if elapsed >= Duration::from_secs(seconds) / 2 {
            half.get_or_insert_with(|| run.servers[0].usage());
        }
        if elapsed >= Duration::from_secs(seconds) {
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        let index = chance.within(1, SERVERS as u64) as usize;
        let pause = Duration::from_millis(chance.within(0, 500));
        match kills % 3 {
            0 => {
                run.servers[index].kill();
                thread::sleep(pause);
                run.servers[index] = run.server(index);
                run.servers[index].wait_until_ready();
            }
            1 => {
                // Longer than the interval of the clients' health checks.
                run.servers[index].stop();
                thread::sleep(2 * client::HEALTH_CHECK + pause);
                run.servers[index].resume();
            }
            _ => {
                victim.kill();
                let seed = seed.wrapping_add(kills);
                victim = run.client(VICTIM, seconds, seed);
            }
        }
        kills += 1;
        thread::sleep(pause);
    }
    let used = run.servers[0].usage();
    println!("{}", callers.report(seed).trim_end());
    let half = half.expect("the run has a second half");
    println!("{kills} processes were killed or stopped; a server used {half} and then {used}");
    assert!(used.is_about(&half), "{half} and then {used}");
    drop(victim);
    run.servers.clear();
    check_executions(&run.directory);
}

/// Creates a directory for the files of one run.
fn new_directory() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::SeqCst);
    let name = format!("rdma-rpc-callers-{}-{count}", std::process::id());
    let directory = env::temp_dir().join(name);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Checks that no call was executed twice, and that each call with an answer was executed.
fn check_executions(directory: &Path) {
    let (mut executed, mut answered) = (HashSet::new(), Vec::new());
    for file in fs::read_dir(directory).unwrap() {
        let file = file.unwrap();
        let calls = numbers(&file.path());
        if file.file_name().as_encoded_bytes().starts_with(b"answered") {
            answered.extend(calls);
            continue;
        }
        for call in calls {
            assert!(executed.insert(call), "call {call:#x} was executed twice");
        }
    }
    println!(
        "{} calls were executed at most once, of which {} were answered",
        executed.len(),
        answered.len()
    );
    for call in &answered {
        assert!(executed.contains(call), "call {call:#x} was not executed");
    }
    assert!(!answered.is_empty());
}

/// Reads the numbers of calls that a process recorded.
fn numbers(file: &Path) -> Vec<u64> {
    let bytes = fs::read(file).unwrap();
    let (numbers, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "{}: half a number", file.display());
    numbers
        .iter()
        .map(|number| u64::from_le_bytes(*number))
        .collect()
}
