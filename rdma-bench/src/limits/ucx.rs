//! UCX's `ucx_perftest`, over shared memory.

use std::ffi::OsString;

use crate::error::{Error, Result};

/// The program.
pub(super) const PROGRAM: &str = "ucx_perftest";
/// What it may move messages by: shared memory, and copies between processes.
const TRANSPORTS: &str = "UCX_TLS=posix,cma";
/// The columns of its line that are of interest.
const MEDIAN: &str = "50.0_percentile_lat";
const RATE: &str = "overall_mr";

/// Whether a test measures the time of a message, in place of a rate.
pub(super) const fn is_time(test: &str) -> bool {
    let name = test.as_bytes();
    let count = name.len();
    count > 4
        && name[count - 4] == b'_'
        && name[count - 3] == b'l'
        && name[count - 2] == b'a'
        && name[count - 1] == b't'
}

/// The words that start either end. The device under test is none of its matter.
pub(super) fn words(port: u16) -> Vec<OsString> {
    let port = port.to_string();
    let words = ["env", "-u", "LD_PRELOAD", TRANSPORTS, PROGRAM, "-p", &port];
    words.map(OsString::from).to_vec()
}

/// What the client gets besides.
pub(super) fn client_words(test: &str, size: usize, iterations: usize) -> Vec<OsString> {
    let (size, count) = (size.to_string(), iterations.to_string());
    let warm = (iterations / 10).max(10).to_string();
    let words = [
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
    words.map(OsString::from).to_vec()
}

/// The microseconds, or the messages each second, of what the client printed.
pub(super) fn figure(test: &str, printed: &str) -> Result<f64> {
    let wanted = if is_time(test) { MEDIAN } else { RATE };
    let found = || -> Option<f64> {
        let mut lines = printed
            .lines()
            .skip_while(|line| !line.starts_with("iterations,"));
        let column = lines.next()?.split(',').position(|name| name == wanted)?;
        // What is printed last is of the whole run.
        let figure: f64 = lines.last()?.split(',').nth(column)?.trim().parse().ok()?;
        (figure.is_finite() && figure > 0.0).then_some(figure)
    };
    found().ok_or_else(|| Error::Program {
        program: format!("{PROGRAM} {test}"),
        reason: format!("no {wanted} in what it printed:\n{printed}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
200000,0.020,0.023,0.024,337.59,337.59,44248381,44248380
";

    #[test]
    fn its_lines_are_read() {
        assert_eq!(figure("tag_lat", PRINTED).unwrap(), 0.020);
        assert_eq!(figure("ucp_put_bw", PRINTED).unwrap(), 44_248_380.0);
        assert_eq!(figure("ucp_fadd", PRINTED).unwrap(), 44_248_380.0);
    }

    #[test]
    fn what_is_no_result_is_shown() {
        let error = figure("tag_lat", "[1] ucx ERROR no transport\n").unwrap_err();
        assert!(error.to_string().contains("no transport"), "{error}");
        let unknown = PRINTED.replace("0.020", "nan");
        assert!(figure("tag_lat", &unknown).is_err());
        let header = PRINTED.lines().next().unwrap();
        assert!(figure("tag_lat", header).is_err());
    }

    #[test]
    fn latencies_are_known_by_their_names() {
        assert!(is_time("ucp_put_lat") && is_time("tag_lat"));
        assert!(!is_time("tag_bw") && !is_time("ucp_fadd"));
    }
}
