//! Measures the reductions of rdma-async's example `ring_all_reduce`.

use std::ffi::OsString;
use std::path::Path;

use super::run::{RUN_TIMEOUT, Reading};
use super::source::WITHOUT_PRELOAD;
use crate::compare::ends::{free_port, run_group};
use crate::error::{Error, Result};

/// Number of processes that take part in the measured all-reduce. The reference value of the
/// comparison (`E15`) is measured with the same number of threads.
const RANKS: usize = 4;
/// Size in bytes of the vector that each process contributes to the all-reduce. The reference value
/// of the comparison, the row `E15`, is measured with the same size.
const SIZE: usize = 64 << 20;
/// Number of all-reduce operations in a run of the example. The example does not measure the first
/// operation.
const ROUNDS: usize = 6;
const NAME: &str = "ring_all_reduce";

/// Runs [`RANKS`] processes of the example `ring_all_reduce`, whose path is `program`. Returns the
/// time of one all-reduce in microseconds, measured by the slowest process.
pub(super) fn measure(program: &Path) -> Result<Reading> {
    let ports = (0..RANKS).map(|_| free_port());
    let ports = ports.collect::<Result<Vec<_>>>()?;
    let address = |rank: usize| format!("127.0.0.1:{}", ports[rank % RANKS]);
    let elements = (SIZE / size_of::<f32>()).to_string();
    let (ranks, rounds) = (RANKS.to_string(), ROUNDS.to_string());
    let line = |rank: usize| {
        let mut line: Vec<OsString> = WITHOUT_PRELOAD.map(OsString::from).to_vec();
        line.push(program.into());
        let (listen, next) = (address(rank), address(rank + 1));
        let number = rank.to_string();
        let words = [
            "--rank",
            &number,
            "--ranks",
            &ranks,
            "--elements",
            &elements,
        ];
        line.extend(words.map(OsString::from));
        let words = ["--rounds", &rounds, "--listen", &listen, "--next", &next];
        line.extend(words.map(OsString::from));
        line
    };
    let lines: Vec<_> = (0..RANKS).map(line).collect();
    let printed = run_group(&lines, NAME, RUN_TIMEOUT)?;
    let times = printed.iter().map(|text| time_in(text));
    let times = times.collect::<Option<Vec<f64>>>();
    let times = times.ok_or_else(|| Error::Program {
        program: NAME.into(),
        reason: format!("no time in {printed:?}"),
    })?;
    Ok(Reading {
        figure: times.into_iter().fold(0.0, f64::max),
        document: printed.into(),
    })
}

/// Returns the time of one all-reduce, in microseconds, from `printed`, the output of a process;
/// `None` if the output has no such time.
fn time_in(printed: &str) -> Option<f64> {
    let millis = printed.trim().strip_suffix(" ms")?.rsplit(' ').next()?;
    Some(millis.parse::<f64>().ok()? * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_the_last_number_of_the_output() {
        let printed = "listening at 127.0.0.1:1\n16 elements are right, after 12.345 ms\n";
        assert_eq!(time_in(printed), Some(12_345.0));
        assert_eq!(time_in("listening at 127.0.0.1:1\n"), None);
    }
}
