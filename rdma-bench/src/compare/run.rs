//! Runs the two programs of a comparison in turns.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use serde_json::Value;

use super::ends::{free_port, run};
use super::outcome::{Comparison, Pair};
use super::program::{Program, Reading};
use super::{Case, Effort, Goal, Network};
use crate::error::Result;
use crate::limits::Verdict;

/// Time limit of one run of a program, from the start of its client. A longer run counts as failed.
const RUN_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum number of attempts to run a perftest program. A run can fail because perftest cannot
/// determine the processor's frequency.
const ATTEMPTS: usize = 3;

/// The arguments that make `rdma-bench` allocate the memory of messages itself, as perftest does.
/// By default, `rdma-bench` uses memory that the device provides.
const MALLOC: &[&str] = &["--memory", "malloc"];

/// Compares `rdma-bench` (`ours`) with a program of perftest (`peer`): runs the test `case` with
/// both alternately. Without `peer`, only measures `ours`.
///
/// Measures pairs of runs until the results show that `goal` is met or missed, or until `effort`
/// allows no further pair. Without a goal or `peer`, stops after the smallest number of pairs that
/// `effort` allows. The order within a pair alternates, so that it favors neither program.
///
/// # Errors
///
/// [`crate::Error::Program`] if a run fails in every attempt.
pub fn compare(
    case: Case,
    network: &Network,
    (ours, peer): (&Program, Option<&Program>),
    (effort, goal): (Effort, Option<Goal>),
) -> Result<Comparison> {
    let mut comparison = Comparison {
        case,
        goal,
        pairs: Vec::new(),
    };
    let theirs = || -> Result<Option<f64>> {
        let Some(peer) = peer else { return Ok(None) };
        Ok(Some(measure(peer, &case, network, &[])?.figure))
    };
    for look in effort.checks() {
        while comparison.pairs.len() < *look {
            let (own, theirs) = if comparison.pairs.len().is_multiple_of(2) {
                let own = measure(ours, &case, network, MALLOC)?;
                (own, theirs()?)
            } else {
                let theirs = theirs()?;
                (measure(ours, &case, network, MALLOC)?, theirs)
            };
            comparison.pairs.push(Pair {
                ours: own.figure,
                perftest: theirs,
                document: own.document.unwrap_or(Value::Null),
            });
        }
        // Without a goal, more pairs cannot change the verdict.
        if comparison.verdict() != Some(Verdict::Undecided) {
            break;
        }
    }
    Ok(comparison)
}

/// Runs the server and the client of `program` (rdma-bench or perftest) for the test `case`, with
/// the additional options `options`. Returns the measured result. Repeats a run of perftest that
/// fails, up to [`ATTEMPTS`] runs in total.
pub(crate) fn measure(
    program: &Program,
    case: &Case,
    network: &Network,
    options: &[&str],
) -> Result<Reading> {
    let mut outcome = once(program, case, network, options);
    for _ in 1..ATTEMPTS {
        if matches!(program, Program::Ours(..)) || outcome.is_ok() {
            break;
        }
        outcome = once(program, case, network, options);
    }
    outcome
}

fn once(program: &Program, case: &Case, network: &Network, options: &[&str]) -> Result<Reading> {
    let port = free_port()?;
    let file = TemporaryFile::new(port);
    let mut argv = program.argv(case, network, port);
    argv.extend(options.iter().map(OsString::from));
    let client = program.client_args("127.0.0.1", &file.0);
    let printed = run(&argv, &client, port, &program.name(case), RUN_TIMEOUT)?;
    program.read(case, &printed, &file.0)
}

/// The path of a temporary file. The file is removed when this value is dropped.
pub(crate) struct TemporaryFile(pub(crate) PathBuf);

impl TemporaryFile {
    pub(crate) fn new(number: u16) -> Self {
        let name = format!("rdma-bench-{}-{number}.json", process::id());
        Self(env::temp_dir().join(name))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // The file does not exist if the run failed.
        let _ = fs::remove_file(&self.0);
    }
}
