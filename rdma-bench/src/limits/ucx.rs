//! UCX's benchmark `ucx_perftest`, over shared memory.

use std::ffi::OsString;

use super::statistic::Statistic;
use crate::error::{Error, Result};

/// The name of UCX's benchmark program.
pub(super) const PROGRAM: &str = "ucx_perftest";
/// The environment variable, with its value, that limits UCX to shared memory and copies between
/// processes.
const TRANSPORTS: &str = "UCX_TLS=posix,cma";
/// The name of the column with the message rate in the output of `ucx_perftest`.
const RATE: &str = "overall_mr";

/// Returns whether the result of UCX's test `test` is a time rather than a rate.
pub(super) fn is_time(test: &str) -> bool {
    test.ends_with("_lat")
}

/// Returns the part of `ucx_perftest`'s command line that server and client have in common. The two
/// processes connect through the TCP port `port`. The command line begins with `env -u LD_PRELOAD`,
/// so that softroce is not loaded: UCX uses shared memory instead.
pub(super) fn argv(port: u16) -> Vec<OsString> {
    let port = port.to_string();
    let argv = ["env", "-u", "LD_PRELOAD", TRANSPORTS, PROGRAM, "-p", &port];
    argv.map(OsString::from).to_vec()
}

/// Returns the arguments of `ucx_perftest` that only the client has: the host, the test `test`, the
/// message size `size` and the number of messages `iterations`. If the test measures a time, a
/// further argument selects a percentile, according to `statistic`.
pub(super) fn client_args(
    test: &str,
    size: usize,
    iterations: usize,
    statistic: Statistic,
) -> Vec<OsString> {
    let (size, count) = (size.to_string(), iterations.to_string());
    let warm = (iterations / 10).max(10).to_string();
    let argv = [
        "127.0.0.1",
        "-t",
        test,
        "-s",
        &size,
        "-n",
        &count,
        "-w",
        &warm,
        "-f",
        "-v",
    ];
    let mut argv = argv.map(OsString::from).to_vec();
    if let (true, Some(percentile)) = (is_time(test), statistic.percentile()) {
        argv.extend(["-R", percentile].map(OsString::from));
    }
    argv
}

/// Returns the number that `statistic` selects from `printed`, the output of the client of UCX's
/// test `test`. The number is in microseconds if the test measures a time, else in messages per
/// second.
pub(super) fn figure(test: &str, statistic: Statistic, printed: &str) -> Result<f64> {
    let wanted = match statistic.percentile() {
        Some(percentile) if is_time(test) => format!("{percentile}_percentile_lat"),
        _ => RATE.to_owned(),
    };
    let found = || -> Option<f64> {
        let mut lines = printed
            .lines()
            .skip_while(|line| !line.starts_with("iterations,"));
        let column = lines.next()?.split(',').position(|name| name == wanted)?;
        // The last line is for the whole run.
        let figure: f64 = lines.last()?.split(',').nth(column)?.trim().parse().ok()?;
        statistic.if_valid(figure)
    };
    found().ok_or_else(|| Error::Program {
        program: format!("{PROGRAM} {test}"),
        reason: format!("no {wanted} in its output:\n{printed}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
200000,0.020,0.023,0.024,337.59,337.59,44248381,44248380
";

    fn typical(test: &str, printed: &str) -> Result<f64> {
        figure(test, Statistic::Typical, printed)
    }

    #[test]
    fn its_lines_are_read() {
        assert_eq!(typical("tag_lat", PRINTED).unwrap(), 0.020);
        assert_eq!(typical("ucp_put_bw", PRINTED).unwrap(), 44_248_380.0);
        assert_eq!(typical("ucp_fadd", PRINTED).unwrap(), 44_248_380.0);
    }

    #[test]
    fn percentiles_are_asked_for_and_read() {
        let argv = client_args("tag_lat", 8, 1000, Statistic::P99_9);
        assert!(argv.ends_with(&["-R".into(), "99.9".into()]), "{argv:?}");
        let argv = client_args("tag_bw", 8, 1000, Statistic::Typical);
        assert!(!argv.contains(&"-R".into()), "{argv:?}");
        let printed = PRINTED.replace("50.0_percentile", "99.0_percentile");
        let read = |statistic| figure("tag_lat", statistic, &printed);
        assert_eq!(read(Statistic::P99).unwrap(), 0.020);
        assert!(read(Statistic::Typical).is_err());
    }

    #[test]
    fn what_is_no_result_is_shown() {
        let error = typical("tag_lat", "[1] ucx ERROR no transport\n").unwrap_err();
        assert!(error.to_string().contains("no transport"), "{error}");
        let unknown = PRINTED.replace("0.020", "nan");
        assert!(typical("tag_lat", &unknown).is_err());
        let header = PRINTED.lines().next().unwrap();
        assert!(typical("tag_lat", header).is_err());
    }

    #[test]
    fn latencies_are_known_by_their_names() {
        assert!(is_time("ucp_put_lat") && is_time("tag_lat"));
        assert!(!is_time("tag_bw") && !is_time("ucp_fadd"));
    }
}
