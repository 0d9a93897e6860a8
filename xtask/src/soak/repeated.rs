//! Runs a test program repeatedly, with new random seeds, until the given time is over.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;

use crate::cargo::{self, Executable};
use crate::limit::{ProcessGroup, TIMED_OUT, exit_code};
use crate::{environment, project};

/// Maximum time for which the last run of a soak test may continue after the time of the soak test
/// is over. A run that takes longer is killed as hung. The limit is long, because the last run can
/// be slower than earlier runs.
const MAX_OVERRUN: Duration = Duration::from_secs(120);

/// The parameters of a soak test that runs a test program again and again. Each run of the program
/// performs a number of repetitions of the test, with consecutive random seeds.
#[derive(Debug)]
pub(crate) struct Repeated {
    /// The name of the soak test, for messages and for the name of the log file.
    pub(crate) name: &'static str,
    /// Minimum number of repetitions in a run. The first run has this number of repetitions.
    pub(crate) min: u64,
    /// Maximum number of repetitions in a run.
    pub(crate) max: u64,
    /// The random seed of the first repetition. Each further repetition uses the next number.
    pub(crate) first_seed: u64,
}

impl Repeated {
    /// Runs a test again and again with new seeds, until `time` is over or a run fails. The
    /// function `command` gets a seed and a number of repetitions. The function returns the command
    /// of the next run, and the command line with which a user repeats this run. Returns 0, or the
    /// exit status of the run that failed.
    pub(crate) fn run(
        &self,
        time: Duration,
        command: impl Fn(u64, u64) -> (Command, String),
    ) -> anyhow::Result<u8> {
        let end = Instant::now() + time;
        let log = self.log()?;
        let (mut seed, mut count) = (self.first_seed, self.min);
        let mut total = 0;
        loop {
            let (mut command, again) = command(seed, count);
            let file = File::create(&log).with_context(|| log.display().to_string())?;
            command
                .stdin(Stdio::null())
                .stdout(file.try_clone()?)
                .stderr(file);
            let begin = Instant::now();
            let limit = end.saturating_duration_since(begin) + MAX_OVERRUN;
            let ended = ProcessGroup::spawn(&mut command)?.wait(Some(limit))?;
            let status = ended.map_or(TIMED_OUT, exit_code);
            if status != 0 {
                io::copy(&mut File::open(&log)?, &mut io::stderr())?;
                eprintln!("{}: exit status {status}; run again: {again}", self.name);
                return Ok(status);
            }
            let now = Instant::now();
            total += count;
            eprintln!(
                "{}: {count} in {:.1} s, {total} in all",
                self.name,
                (now - begin).as_secs_f64()
            );
            seed = seed.wrapping_add(count);
            match self.next(count, now - begin, end.saturating_duration_since(now)) {
                Some(next) => count = next,
                None => return Ok(0),
            }
        }
    }

    /// Chooses the number of repetitions for the next run, which must end within the time `left`.
    /// Assumes the speed of the previous run, in which `count` repetitions took `took`. Returns
    /// `None` if the time does not suffice for the minimum number.
    fn next(&self, count: u64, took: Duration, left: Duration) -> Option<u64> {
        let fitting = count as f64 * left.as_secs_f64() / took.as_secs_f64().max(1e-3);
        // The conversion truncates; a number that is too large becomes the largest integer.
        let fitting = fitting as u64;
        (fitting >= self.min).then(|| fitting.min(self.max))
    }

    fn log(&self) -> anyhow::Result<PathBuf> {
        let directory = project::target().join("soak");
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        Ok(directory.join(format!("{}.log", self.name)))
    }
}

/// Returns a command that runs `executable` in the directory and with the environment that cargo
/// would use. This environment contains paths of programs in `built`, the built executables.
pub(crate) fn command(executable: &Executable, built: &[Executable]) -> Command {
    let mut command = Command::new(&executable.path);
    command
        .current_dir(&executable.package)
        .env_clear()
        .envs(environment::inherited())
        .envs(cargo::environment_of(executable, built));
    command
}

/// Returns a new seed for random numbers: the current time in microseconds, so that every run has
/// another seed.
pub(crate) fn new_seed() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    now.as_secs() * 1_000_000 + u64::from(now.subsec_micros())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn repeated(name: &'static str) -> Repeated {
        Repeated {
            name,
            min: 10,
            max: 100,
            first_seed: 5,
        }
    }

    #[test]
    fn the_next_run_fits_into_the_time_that_is_left() {
        let next = |count, took, left| {
            repeated("x").next(count, Duration::from_secs(took), Duration::from_secs(left))
        };
        assert_eq!(next(10, 1, 5), Some(50));
        assert_eq!(next(10, 1, 60), Some(100));
        assert_eq!(next(10, 2, 1), None);
        assert_eq!(next(10, 0, 0), None);
    }

    #[test]
    fn a_run_goes_on_behind_the_last_seed() {
        let runs = RefCell::new(Vec::new());
        let status = repeated("test-seeds").run(Duration::from_millis(400), |seed, count| {
            runs.borrow_mut().push((seed, count));
            let mut command = Command::new("sleep");
            command.arg("0.1");
            (command, String::new())
        });
        assert_eq!(status.unwrap(), 0);
        let runs = runs.into_inner();
        assert_eq!(runs[0], (5, 10));
        for pair in runs.windows(2) {
            assert_eq!(pair[1].0, pair[0].0 + pair[0].1);
        }
    }

    #[test]
    fn the_first_failure_ends_it() {
        let runs = RefCell::new(0);
        let status = repeated("test-failure").run(Duration::from_secs(60), |_, _| {
            *runs.borrow_mut() += 1;
            let mut command = Command::new("sh");
            command.args(["-c", "exit 7"]);
            (command, "again".to_owned())
        });
        assert_eq!((status.unwrap(), runs.into_inner()), (7, 1));
    }
}
