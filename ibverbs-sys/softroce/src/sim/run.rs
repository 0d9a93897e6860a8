use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::proto::Counter;

use super::scenario::Scenario;
use super::schedule::Schedule;
use super::trace::Lines;
use super::world::Traffic;

/// Statistics of a successful run of a [`Schedule`]: a simulation in which the model has found no
/// violation of a rule by the transport (protocol code).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of posted requests.
    pub requests: u64,
    /// Number of successful requests.
    pub completed: u64,
    /// Number of queue pairs whose requests failed.
    pub failed: u64,
    /// Number of requests that failed or were flushed.
    pub flushed: u64,
    /// Traffic on the simulated network.
    pub traffic: Traffic,
    /// Sums of the queue pairs' counters, indexed by [`Counter`].
    pub counters: [u64; Counter::COUNT],
    /// Duration of the run in virtual time.
    pub time: Duration,
    /// Hash of all packets. Two identical runs have equal hashes.
    pub digest: u64,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            requests: 0,
            completed: 0,
            failed: 0,
            flushed: 0,
            traffic: Traffic::default(),
            counters: [0; Counter::COUNT],
            time: Duration::default(),
            digest: 0,
        }
    }
}

/// Error: a run of the simulation violated a rule that the model checks.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Seed of the schedule.
    pub seed: u64,
    /// Description of the violation: the rule, the queue pair and the time.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {}\nto see every packet: cargo run -p softroce --release --features sim \
             --example simulate -- --seed {} --trace",
            self.seed, self.what, self.seed
        )
    }
}

impl std::error::Error for Failure {}

impl Schedule {
    /// Runs a simulation of the connections and requests of this schedule, and checks every byte
    /// and every completion. `lines`, if given, is called with each line of a trace of all packets.
    pub fn run(&self, lines: Option<&mut Lines<'_>>) -> Result<Outcome, Failure> {
        let run = AssertUnwindSafe(|| match lines {
            Some(lines) => {
                let mut lines = |line: &str| lines(line);
                Scenario::new(self, Some(&mut lines)).run()
            }
            None => Scenario::new(self, None).run(),
        });
        let result = panic::catch_unwind(run).unwrap_or_else(|panic| {
            let what = match panic.downcast::<String>() {
                Ok(text) => *text,
                Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"").to_string(),
            };
            Err(format!("panic: {what}"))
        });
        result.map_err(|what| Failure {
            seed: self.seed,
            what,
        })
    }
}

/// Runs `count` simulations in parallel on all processors, with consecutive seeds from `first` on.
/// A seed determines the [`Schedule`]: the network, the connections and the requests. Returns the
/// sum of the statistics, or the failure with the lowest seed. After a failure, starts no further
/// simulation.
pub fn run_all(first: u64, count: u64) -> Result<Outcome, Failure> {
    let next = AtomicU64::new(first);
    let end = first.saturating_add(count);
    let results = Mutex::new((Outcome::default(), None::<Failure>));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let result = Schedule::of_seed(seed).run(None);
            let mut results = results.lock().unwrap_or_else(|e| e.into_inner());
            match result {
                Ok(outcome) => results.0.add(&outcome),
                Err(failure) => {
                    // Runs with lower seeds are already in progress, and may fail too.
                    next.store(end, Ordering::Relaxed);
                    let lowest = results.1.as_ref().is_none_or(|other| seed < other.seed);
                    if lowest {
                        results.1 = Some(failure);
                    }
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (sum, failure) = results.into_inner().unwrap_or_else(|e| e.into_inner());
    failure.map_or(Ok(sum), Err)
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.completed += other.completed;
        self.failed += other.failed;
        self.flushed += other.flushed;
        self.traffic.packets += other.traffic.packets;
        self.traffic.lost += other.traffic.lost;
        self.traffic.disturbed += other.traffic.disturbed;
        self.traffic.events += other.traffic.events;
        for (sum, count) in self.counters.iter_mut().zip(other.counters) {
            *sum += count;
        }
        self.time += other.time;
        self.digest = self.digest.wrapping_add(other.digest);
    }
}
