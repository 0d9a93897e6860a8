//! The programs whose results the judge compares: how they are run, and how their results are read.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::copy;
use super::flows;
use super::hosts::{Host, Hosts};
use super::judge::{Networks, Programs};
use super::key_value;
use super::ring;
use super::row::Quantity;
use super::run::{RUN_TIMEOUT, Reading, Run};
use super::statistic::Statistic;
use super::ucx;
use crate::compare::ends::{free_port, run_alone, run_with_servers};
use crate::compare::program::{Program, in_path};
use crate::error::{Error, Result};
use crate::plan::Layer;

/// The source of a measured number: a benchmark program, with the arguments of its test. Both
/// values of a comparison (the value under test and the reference value) have such sources.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// `rdma-bench` over a layer. rdma-rpc is the layer for tests of calls and of streamed items.
    Ours(Layer, Run),
    /// The C program of perftest that performs the given test.
    Perftest(Run),
    /// A test of `ucx_perftest` with messages of a size, over shared memory.
    Ucx {
        /// The name of UCX's test.
        test: &'static str,
        /// The message size in bytes.
        size: usize,
    },
    /// The program `yardstick`, with these arguments.
    Yardstick(&'static [&'static str]),
    /// The program `connections`, which measures within one process, with these arguments.
    Connections(&'static [&'static str]),
    /// The program `streams`, which measures streams of bytes between two processes, with these
    /// arguments.
    Streams(&'static [&'static str]),
    /// The program `web`, which measures a web server over RDMA or TCP, with these arguments.
    Web(&'static [&'static str]),
    /// The example `rdma_cp` of rdma-async, which copies a cached file of 1 GiB, with these
    /// arguments.
    Copier(&'static [&'static str]),
    /// The example `key_value` of rdma-async, whose client reads values as long as the measurement
    /// lasts, with these arguments.
    KeyValue(&'static [&'static str]),
    /// The example `ring_all_reduce` of rdma-async, with four processes that add vectors of 64 MiB.
    AllReduce,
    /// The program `rdma-bench-peers`, which measures another RPC framework over TCP, with these
    /// arguments.
    Peer(&'static [&'static str]),
    /// A program that measures without softroce between two simulated hosts, with these arguments
    /// and with this MTU of the network in bytes.
    Hosts(Tool, &'static [&'static str], usize),
    /// Several runs of `ib_write_bw` at the same time between two simulated hosts, each with a
    /// client on one host and a server on the other.
    Flows {
        /// The number of processes of each host.
        count: usize,
        /// The size of a write in bytes.
        size: usize,
    },
    /// The round trip of a cache line, in microseconds, measured before and after each pair of
    /// measurements.
    CacheLine,
}

/// A program that measures the network of two simulated hosts without softroce, as a reference
/// value for softroce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The program `yardstick`.
    Yardstick,
    /// The program `rdma-bench-peers`.
    Peers,
}

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Self::Yardstick => "yardstick",
            Self::Peers => "rdma-bench-peers",
        }
    }
}

impl Source {
    /// Returns the kind of this program's main result: a time, a rate or a count.
    pub fn quantity(&self) -> Quantity {
        match self {
            Self::Ours(_, run) | Self::Perftest(run) => run.quantity(),
            Self::Ucx { test, .. } if ucx::is_time(test) => Quantity::Time,
            Self::Ucx { .. } => Quantity::Rate,
            Self::Yardstick(["udp-ping" | "eventfd" | "cache-line" | "all-reduce", ..]) => {
                Quantity::Time
            }
            Self::Yardstick(args) if args.contains(&"--latency") => Quantity::Time,
            Self::Yardstick(_) => Quantity::Rate,
            Self::Connections(["write" | "connect" | "grant", ..]) => Quantity::Time,
            Self::Connections(_) => Quantity::Rate,
            Self::Streams(["latency", ..]) | Self::Web(["latency", ..]) => Quantity::Time,
            Self::Streams(_) | Self::Web(_) => Quantity::Rate,
            Self::Copier(_) | Self::KeyValue(_) => Quantity::Rate,
            Self::Peer([_, "latency", ..]) | Self::Hosts(_, ["udp", ..], _) => Quantity::Time,
            Self::Peer(_) | Self::Hosts(..) | Self::Flows { .. } => Quantity::Rate,
            Self::CacheLine | Self::AllReduce => Quantity::Time,
        }
    }

    /// Returns whether the result of this program contains the number for `statistic`, such as a
    /// percentile.
    pub fn has(&self, statistic: Statistic) -> bool {
        match statistic {
            Statistic::Typical => true,
            Statistic::P99 | Statistic::P99_9 => {
                let has_percentiles =
                    matches!(self, Self::Ours(..) | Self::Perftest(_) | Self::Ucx { .. });
                has_percentiles && self.quantity() == Quantity::Time
            }
            Statistic::Beside => {
                matches!(
                    self,
                    Self::Ours(Layer::Core | Layer::Rpc, run) if run.has_messages_beside()
                )
            }
            // The other programs write no JSON document.
            Statistic::Counter(_) => {
                matches!(
                    self,
                    Self::Ours(..)
                        | Self::Yardstick(_)
                        | Self::Connections(_)
                        | Self::Streams(_)
                        | Self::Web(_)
                        | Self::Peer(_)
                        | Self::Hosts(..)
                        | Self::Flows { .. }
                )
            }
        }
    }

    /// Returns the minimum and the maximum number of messages in a run of this program; `None` if
    /// the program takes a duration instead of a number.
    pub(super) fn counts(&self) -> Option<(usize, usize)> {
        match self {
            Self::Ours(_, run) | Self::Perftest(run) => Some(run.counts()),
            Self::Ucx { .. } => Some((10_000, 20_000_000)),
            Self::Yardstick(_)
            | Self::Connections(_)
            | Self::Streams(_)
            | Self::Web(_)
            | Self::Copier(_)
            | Self::KeyValue(_)
            | Self::AllReduce
            | Self::Peer(_)
            | Self::Hosts(..)
            | Self::Flows { .. }
            | Self::CacheLine => None,
        }
    }

    /// Returns the time in seconds that this program takes for one message. The judge chooses the
    /// number of messages of later runs by this time. `figure` is the result of a run: a time in
    /// microseconds, or a rate per second.
    pub(super) fn seconds(&self, figure: f64) -> f64 {
        let times = match self {
            Self::Ours(_, run) | Self::Perftest(run) => run.times_per_message(),
            // UCX reports half of a round trip, too.
            _ => 2.0,
        };
        match self.quantity() {
            Quantity::Time => figure * times * 1e-6,
            Quantity::Rate | Quantity::Count => 1.0 / figure,
        }
    }

    /// Runs this program, and returns the number that `statistic` selects from its result, such as
    /// the median time in microseconds. The run has `count` messages. A program that takes a
    /// duration runs for `time` instead.
    pub(super) fn measure(
        &self,
        (programs, networks): (&Programs, &Networks),
        count: usize,
        time: Duration,
        statistic: Statistic,
    ) -> Result<Reading> {
        if !self.has(statistic) {
            return Err(Error::Unsupported(format!("{self} has no {statistic}")));
        }
        match self {
            Self::Ours(layer, run) => {
                let program = Program::Ours(programs.bench.clone(), *layer);
                run.measure(&program, (programs, networks), count, statistic)
            }
            Self::Perftest(run) => {
                const TRIES: usize = 3;
                let ends = (programs, networks);
                let measure = || run.measure(&Program::Perftest, ends, count, statistic);
                // Sometimes perftest cannot determine the processor's frequency.
                let mut outcome = measure();
                for _ in 1..TRIES {
                    if outcome.is_ok() {
                        break;
                    }
                    outcome = measure();
                }
                outcome
            }
            Self::Ucx { test, size } => ucx(test, *size, count, statistic),
            Self::Yardstick(args) => yardstick(&programs.yardstick, args, time, statistic),
            Self::Connections(args) => connections(&programs.connections, args, time, statistic),
            Self::Streams(args) => {
                let line = timed_command(&programs.streams, args, time);
                run_served(line, &format!("streams {}", args.join(" ")), statistic)
            }
            Self::Web(args) => {
                let mut line = WITHOUT_PRELOAD.map(OsString::from).to_vec();
                line.extend(timed_command(programs.web()?, args, time));
                run_served(line, &format!("web {}", args.join(" ")), statistic)
            }
            Self::Copier(args) => copy::measure(&programs.example("rdma_cp")?, args),
            Self::KeyValue(args) => key_value::measure(&programs.example("key_value")?, args, time),
            Self::AllReduce => ring::measure(&programs.example("ring_all_reduce")?),
            Self::Peer(args) => peers(programs.peers()?, args, time, statistic),
            Self::Hosts(tool, args, mtu) => {
                let program = match tool {
                    Tool::Yardstick => &programs.yardstick,
                    Tool::Peers => programs.peers()?,
                };
                on_hosts((program, tool.name()), args, *mtu, time, statistic)
            }
            Self::Flows { count, size } => {
                flows::measure(&networks.softroce, *count, *size, statistic)
            }
            Self::CacheLine => yardstick(&programs.yardstick, &["cache-line"], time, statistic),
        }
    }
}

/// Runs the server and the client of UCX's benchmark `ucx_perftest` for its test `test`. Returns
/// the number that `statistic` selects from the result. The run has `count` messages of `size`
/// bytes.
fn ucx(test: &str, size: usize, count: usize, statistic: Statistic) -> Result<Reading> {
    if !in_path(ucx::PROGRAM) {
        return Err(Error::Program {
            program: ucx::PROGRAM.into(),
            reason: "it is not installed (Debian: ucx-utils)".into(),
        });
    }
    let port = free_port()?;
    let argv = ucx::argv(port);
    let client = ucx::client_args(test, size, count, statistic);
    let client = [argv.clone(), client].concat();
    let name = format!("{} {test}", ucx::PROGRAM);
    let printed = run_with_servers(&[(argv, port)], &client, &name, RUN_TIMEOUT, None)?;
    Ok(Reading {
        figure: ucx::figure(test, statistic, &printed)?,
        document: Value::String(printed),
    })
}

/// The words that precede a program on its command line, so that the program runs without softroce.
/// Without these words, the environment variable `LD_PRELOAD` loads softroce into the program.
pub(super) const WITHOUT_PRELOAD: [&str; 3] = ["env", "-u", "LD_PRELOAD"];

/// Runs the program `yardstick` (at the path `program`), which measures copies, system calls and
/// sockets, for the duration `time`. `args` select the operation. softroce is not loaded. Returns
/// the number that `statistic` selects from the result.
fn yardstick(
    program: &Path,
    args: &[&str],
    time: Duration,
    statistic: Statistic,
) -> Result<Reading> {
    let mut line: Vec<OsString> = WITHOUT_PRELOAD.map(OsString::from).to_vec();
    line.extend(timed_command(program, args, time));
    let name = format!("yardstick {}", args.join(" "));
    let printed = run_alone(&line, None, &name, RUN_TIMEOUT)?;
    read_json(&name, statistic, &printed)
}

/// Runs the server and the client of `program` on two simulated hosts for the duration `time`. The
/// two processes measure the network of the hosts (with an MTU of `mtu` bytes), so softroce is not
/// loaded into them. Returns the number that `statistic` selects from the client's result.
fn on_hosts(
    (program, name): (&Path, &str),
    args: &[&str],
    mtu: usize,
    time: Duration,
    statistic: Statistic,
) -> Result<Reading> {
    let hosts = Hosts::create(mtu)?;
    let port = free_port()?;
    let line = |host| {
        let mut line = hosts.prefix(host);
        line.extend(WITHOUT_PRELOAD.map(OsString::from));
        line.extend(timed_command(program, args, time));
        line.extend(["--port", &port.to_string()].map(OsString::from));
        line
    };
    let mut client = line(Host::Client);
    client.push(Host::Server.address().into());
    let name = format!("{name} {}", args.join(" "));
    let server = (line(Host::Server), port);
    let printed = run_with_servers(&[server], &client, &name, RUN_TIMEOUT, None)?;
    read_json(&name, statistic, &printed)
}

/// Runs the program `connections` (at the path `program`) on one processor for the duration `time`.
/// `args` select the measured quantity, such as the rate of writes beside idle connections. Returns
/// the number that `statistic` selects from the result.
fn connections(
    program: &Path,
    args: &[&str],
    time: Duration,
    statistic: Statistic,
) -> Result<Reading> {
    let name = format!("connections {}", args.join(" "));
    let line = timed_command(program, args, time);
    let printed = run_alone(&line, Some(0), &name, RUN_TIMEOUT)?;
    read_json(&name, statistic, &printed)
}

/// Runs a server and a client with the command line `line`, and returns the value of `statistic`.
/// The client has the server's address as an additional, last argument. `name` is the program's
/// name in errors.
fn run_served(mut line: Vec<OsString>, name: &str, statistic: Statistic) -> Result<Reading> {
    let port = free_port()?;
    line.extend(["--port", &port.to_string()].map(OsString::from));
    let client = [&*line, &["127.0.0.1".into()]].concat();
    let printed = run_with_servers(&[(line, port)], &client, name, RUN_TIMEOUT, None)?;
    read_json(name, statistic, &printed)
}

/// Runs the server and the client of the program `rdma-bench-peers` (at the path `program`) for the
/// duration `time`. softroce is not loaded. Returns the value of `statistic` from the client's
/// result.
fn peers(program: &Path, args: &[&str], time: Duration, statistic: Statistic) -> Result<Reading> {
    let mut line = WITHOUT_PRELOAD.map(OsString::from).to_vec();
    line.extend(timed_command(program, args, time));
    let name = format!("rdma-bench-peers {}", args.join(" "));
    run_served(line, &name, statistic)
}

/// Returns the command line with which `program` measures for the duration `time`, with the
/// arguments `args`.
fn timed_command(program: &Path, args: &[&str], time: Duration) -> Vec<OsString> {
    let millis = time.as_millis().to_string();
    let mut line = vec![program.into()];
    line.extend(["--time", &millis].map(OsString::from));
    line.extend(args.iter().map(OsString::from));
    line
}

/// Reads the number that `statistic` selects, such as a percentile, from `printed`: the JSON output
/// of the program `name` (`yardstick`, `connections`, `streams`, `web` or `rdma-bench-peers`).
fn read_json(name: &str, statistic: Statistic, printed: &str) -> Result<Reading> {
    let refuse = |reason: String| Error::Program {
        program: name.to_owned(),
        reason,
    };
    let document: Value = serde_json::from_str(printed.trim())
        .map_err(|error| refuse(format!("{error} in its output:\n{printed}")))?;
    let figure = statistic.in_document(&document);
    let figure = figure.ok_or_else(|| refuse(format!("no {statistic} in {document}")))?;
    Ok(Reading { figure, document })
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(Layer::Core, run) => write!(f, "rdma-bench {run}"),
            Self::Ours(layer, run) => write!(f, "rdma-bench {run} --layer {layer}"),
            Self::Perftest(run) => write!(f, "ib_{run}"),
            Self::Ucx { test, size } => write!(f, "{} {test} -s {size}", ucx::PROGRAM),
            Self::Yardstick(args) => write!(f, "yardstick {}", args.join(" ")),
            Self::Connections(args) => write!(f, "connections {}", args.join(" ")),
            Self::Streams(args) => write!(f, "streams {}", args.join(" ")),
            Self::Web(args) => write!(f, "web {}", args.join(" ")),
            Self::Copier(args) => write!(f, "rdma_cp {}", args.join(" ")),
            Self::KeyValue(args) => write!(f, "key_value measure {}", args.join(" ")),
            Self::AllReduce => f.write_str("ring_all_reduce"),
            Self::Peer(args) => write!(f, "rdma-bench-peers {}", args.join(" ")),
            Self::Hosts(tool, args, mtu) => {
                let (name, args) = (tool.name(), args.join(" "));
                write!(f, "{name} {args} (two hosts, MTU {mtu})")
            }
            Self::Flows { count, size } => write!(f, "{count} ib_write_bw -s {size} (two hosts)"),
            Self::CacheLine => f.write_str("yardstick cache-line"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::Path;
    use super::*;
    use crate::test::{Metric, Verb};

    #[test]
    fn lines_of_the_yardstick_are_read() {
        let line = r#"{"figure":0.105,"count":0,"schema":"rdma-bench/yardstick/1","unit":"usec"}"#;
        let read = |statistic, line| read_json("cache-line", statistic, line);
        assert_eq!(read(Statistic::Typical, line).unwrap().figure, 0.105);
        let count = Statistic::Counter("/count");
        assert_eq!(read(count, line).unwrap().figure, 0.0);
        for wrong in ["", "{}", r#"{"figure":0}"#, "panicked"] {
            assert!(read(Statistic::Typical, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sources_are_printed_as_commands() {
        let run = Run::new(Verb::Write, Metric::Bandwidth, 8).path(Path::Udp);
        let run = run.with(&["-l", "32"]).mtu(1024);
        assert_eq!(
            Source::Ours(Layer::Core, run).to_string(),
            "rdma-bench write_bw -s 8 -l 32 -m 1024 (SOFTROCE_PATH=udp)"
        );
        let echo = Run::new(Verb::Echo, Metric::Latency, 8);
        assert_eq!(
            Source::Ours(Layer::Rpc, echo).to_string(),
            "rdma-bench echo_lat -s 8 --layer rpc"
        );
    }

    #[test]
    fn sources_measure_times_or_rates() {
        let time = |args| Source::Yardstick(args).quantity() == Quantity::Time;
        let peer = |args| Source::Peer(args).quantity();
        assert_eq!(peer(&["tcp", "latency"]), Quantity::Time);
        assert_eq!(peer(&["tonic", "rate"]), Quantity::Rate);
        assert!(!time(&["vm-write", "-s", "8"]));
        assert!(time(&["vm-write", "-s", "8", "--latency"]) && time(&["eventfd"]));
        let echo = Run::new(Verb::Echo, Metric::Latency, 8);
        let echo = Source::Ours(Layer::Rpc, echo);
        // A call's latency is the whole round trip; a message's latency is half of it.
        assert!((echo.seconds(10.0) - 10e-6).abs() < 1e-12);
        let send = Source::Perftest(Run::new(Verb::Send, Metric::Latency, 8));
        assert!((send.seconds(10.0) - 20e-6).abs() < 1e-12);
    }

    #[test]
    fn percentiles_are_of_latencies_and_counters_of_documents() {
        let run = |metric| Run::new(Verb::Send, metric, 8);
        let counter = Statistic::Counter("/results/n_iterations");
        for layer in [Layer::Core, Layer::Async] {
            let latency = Source::Ours(layer, run(Metric::Latency));
            assert!(latency.has(Statistic::P99) && latency.has(counter));
        }
        let perftest = Source::Perftest(run(Metric::Latency));
        assert!(perftest.has(Statistic::P99_9) && !perftest.has(counter));
        assert!(!Source::Perftest(run(Metric::Bandwidth)).has(Statistic::P99));
        let alone = run(Metric::Latency);
        assert!(!Source::Ours(Layer::Core, alone).has(Statistic::Beside));
        let beside = Source::Ours(Layer::Core, alone.with(&["--beside", "64K"]));
        assert!(beside.has(Statistic::Beside) && beside.has(Statistic::P99));
        let yardstick = Source::Yardstick(&["eventfd"]);
        assert!(!yardstick.has(Statistic::P99) && yardstick.has(Statistic::Counter("/count")));
        assert!(!Source::CacheLine.has(counter));
    }
}
