//! The benchmark programs that are compared: command lines, and parsing of results.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Case, Network};
use crate::error::{Error, Result};
use crate::limits::Statistic;
use crate::plan::Layer;
use crate::statistics::Bandwidth;
use crate::test::{Metric, Verb};

/// Returns whether a directory of the `PATH` has a program with the name `name`.
pub(crate) fn in_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// A benchmark program: `rdma-bench`, or a program of perftest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// `rdma-bench` at the given path, with the layer that it measures.
    Ours(PathBuf, Layer),
    /// The C program of perftest that performs the test to measure.
    Perftest,
}

/// The result of one run of a benchmark program: the measured latency or rate, and further data if
/// the program reports them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reading {
    /// The measured value: microseconds, or messages per second.
    pub(crate) figure: f64,
    /// The 99th percentile of the latency, in microseconds; `None` if the program did not report
    /// it.
    pub(crate) percentile_99: Option<f64>,
    /// The JSON document of the program, if it writes one.
    pub(crate) document: Option<Value>,
}

impl Program {
    /// Returns the command that measures the test `case`, as a short text for error messages, such
    /// as `ib_write_bw`.
    pub(crate) fn name(&self, case: &Case) -> String {
        match self {
            Self::Ours(_, layer) => format!("rdma-bench {} --layer {layer}", case.test),
            Self::Perftest => case.test.perftest_program(),
        }
    }

    /// Returns the command line that server and client have in common: the program with the options
    /// of `case`, and `port` for the control connection.
    pub(crate) fn argv(&self, case: &Case, network: &Network, port: u16) -> Vec<OsString> {
        let mut argv: Vec<OsString> = match self {
            Self::Ours(path, _) => vec![path.into(), case.test.to_string().into()],
            // Registers memory without relaxed ordering, as rdma-bench does.
            Self::Perftest => vec![
                case.test.perftest_program().into(),
                "-F".into(),
                "--disable_pcie_relaxed".into(),
            ],
        };
        let mut option = |name: &str, value: String| argv.extend([name.into(), value.into()]);
        option("-d", network.device.clone());
        option("-i", network.port.to_string());
        option("-x", network.gid_index.to_string());
        option("-m", network.mtu.to_string());
        option("-p", port.to_string());
        option("-n", case.iterations.to_string());
        if !case.test.verb.is_atomic() {
            option("-s", case.size.to_string());
        }
        if let Self::Ours(_, layer @ (Layer::Async | Layer::Rpc)) = self {
            option("--layer", layer.to_string());
            return argv;
        }
        if matches!(case.test.verb, Verb::Send | Verb::Write) {
            option("-I", "0".into());
        }
        if case.test.metric == Metric::Bandwidth {
            let settings = case.settings();
            option("-t", settings.tx_depth.to_string());
            option("-Q", settings.cq_moderation.unwrap_or(1).to_string());
            // No timestamp for each message: its cost would count against the device.
            argv.push("-N".into());
        }
        argv
    }

    /// Returns the arguments that only the client has. The first argument is `host`, the host of
    /// the server. Further arguments make `rdma-bench` write its JSON document to the path
    /// `document`.
    pub(crate) fn client_args(&self, host: &str, document: &Path) -> Vec<OsString> {
        let mut argv: Vec<OsString> = vec![host.into()];
        if let Self::Ours(..) = self {
            argv.extend(["--out_json", "--out_json_file"].map(OsString::from));
            argv.push(document.into());
        }
        argv
    }

    /// Reads the client's result from the output that it printed (perftest) or from the JSON
    /// document at the path `document` (`rdma-bench`).
    pub(crate) fn read(&self, case: &Case, printed: &str, document: &Path) -> Result<Reading> {
        let refuse = |reason: String| Error::Program {
            program: self.name(case),
            reason,
        };
        match self {
            Self::Perftest => {
                let figure = figure(case, printed)
                    .ok_or_else(|| refuse(format!("no result in its output:\n{printed}")))?;
                let percentile_99 = match case.test.metric {
                    Metric::Latency => columns(case, printed)
                        .and_then(|columns| Statistic::P99.in_columns(&columns)),
                    Metric::Bandwidth => None,
                };
                Ok(Reading {
                    figure,
                    percentile_99,
                    document: None,
                })
            }
            Self::Ours(..) => {
                let text = fs::read_to_string(document)
                    .map_err(|error| refuse(format!("{}: {error}", document.display())))?;
                let document: Value = serde_json::from_str(&text)
                    .map_err(|error| refuse(format!("reading its JSON document: {error}")))?;
                let results = &document["results"];
                let figure = match case.test.metric {
                    Metric::Latency => results["t_typical"].as_f64(),
                    Metric::Bandwidth => results["MsgRate"].as_f64().map(|rate| rate * 1e6),
                };
                Ok(Reading {
                    figure: figure
                        .ok_or_else(|| refuse("no result in its JSON document".into()))?,
                    percentile_99: Statistic::P99.in_document(&document),
                    document: Some(document),
                })
            }
        }
    }
}

/// Returns the result in `printed`, the output of perftest, for messages of the size of `case`: the
/// typical latency in microseconds, or the average number of messages per second. Returns `None` if
/// the output has no valid number, as when perftest could not determine the processor's frequency.
fn figure(case: &Case, printed: &str) -> Option<f64> {
    let columns = columns(case, printed)?;
    let figure = match case.test.metric {
        Metric::Latency => *columns.get(4)?,
        // For large messages the column MiB/sec has more digits than the message rate.
        Metric::Bandwidth if case.size >= 4096 => {
            *columns.get(3)? / Bandwidth::mebibytes(1.0, case.size)
        }
        Metric::Bandwidth => *columns.get(4)? * 1e6,
    };
    (figure.is_finite() && figure > 0.0).then_some(figure)
}

/// Returns the numbers of the result line in `printed`, the output of perftest. The result line is
/// the last line of numbers that begins with the message size of `case`. Returns `None` if there is
/// no such line.
pub(crate) fn columns(case: &Case, printed: &str) -> Option<Vec<f64>> {
    printed.lines().rev().find_map(|line| {
        let columns: Option<Vec<f64>> = line
            .split_whitespace()
            .map(|word| word.parse().ok())
            .collect();
        columns.filter(|columns| columns.first() == Some(&(case.size as f64)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::Test;

    fn case(verb: Verb, metric: Metric, size: usize) -> Case {
        Case {
            test: Test { verb, metric },
            size,
            iterations: 1000,
        }
    }

    #[test]
    fn perftests_lines_are_read() {
        let lines = " #bytes #iterations    t_min[usec] \n 8       200          9.78           247.11       10.10    \t       12.48       \t11.83  \t\t159.45  \t\t247.11 \n-----\n";
        let latency = case(Verb::Send, Metric::Latency, 8);
        assert_eq!(figure(&latency, lines), Some(10.10));
        let line = " 8          5000             0.41               0.18   \t\t   0.023241\n";
        let rate = figure(&case(Verb::Send, Metric::Bandwidth, 8), line);
        assert!((rate.unwrap() - 23241.0).abs() < 1e-6);
        let line = " 1048576    128              95.30              79.42  \t\t   0.000079\n";
        let rate = figure(&case(Verb::Write, Metric::Bandwidth, 1 << 20), line);
        assert_eq!(rate, Some(79.42));
        let unknown = " 8       200          inf            inf          inf      \t       inf         \t-nan   \t\tinf     \t\tinf    ";
        assert_eq!(figure(&latency, unknown), None);
    }

    #[test]
    fn both_programs_get_the_same_options() {
        let network = Network {
            device: "rxe_0".into(),
            port: 1,
            gid_index: 1,
            mtu: 4096,
        };
        let case = case(Verb::Write, Metric::Bandwidth, 8);
        let options = |program: Program| {
            let argv = program.argv(&case, &network, 20000);
            let device = argv.iter().position(|word| word == "-d").unwrap();
            argv[device..].to_vec()
        };
        let ours = options(Program::Ours("rdma-bench".into(), Layer::Core));
        assert_eq!(ours, options(Program::Perftest));
        assert!(ours.contains(&"-Q".into()) && ours.contains(&"-I".into()));
        let layered = options(Program::Ours("rdma-bench".into(), Layer::Async));
        assert!(layered.ends_with(&["--layer".into(), "async".into()]));
        assert!(!layered.contains(&"-Q".into()) && !layered.contains(&"-I".into()));
    }
}
