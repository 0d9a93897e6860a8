//! The programs whose results the judge compares, and how these results are read.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::copy;
use super::flows;
use super::hosts::{Host, Hosts};
use super::judge::{Networks, Programs};
use super::row::Quantity;
use super::run::{LIMIT, Reading, Run};
use super::statistic::Statistic;
use super::ucx;
use crate::compare::ends::{free_port, run_alone, run_with_servers};
use crate::compare::program::{Program, in_path};
use crate::error::{Error, Result};
use crate::plan::Layer;

/// A program that measures a quantity, with its arguments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// `rdma-bench` over a layer. Tests of calls and of streamed items are those of rdma-rpc.
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
    /// The example `rdma_cp` of rdma-async, which copies a cached file of 1 GiB, with these arguments.
    Copier(&'static [&'static str]),
    /// The program `rdma-bench-peers`, which measures another RPC framework over TCP, with these
    /// arguments.
    Peer(&'static [&'static str]),
    /// A program without softroce, with its arguments, between two hosts whose network has the given MTU
    /// in bytes.
    Hosts(Tool, &'static [&'static str], usize),
    /// `ib_write_bw` of several processes of one host to as many processes of another, at the same
    /// time.
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

/// A program that measures two hosts without softroce.
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
    /// Returns whether the main result of this program is a time or a rate.
    pub fn quantity(&self) -> Quantity {
        match self {
            Self::Ours(_, run) | Self::Perftest(run) => run.quantity(),
            Self::Ucx { test, .. } if ucx::is_time(test) => Quantity::Time,
            Self::Ucx { .. } => Quantity::Rate,
            Self::Yardstick(["udp-ping" | "eventfd" | "cache-line", ..]) => Quantity::Time,
            Self::Yardstick(words) if words.contains(&"--latency") => Quantity::Time,
            Self::Yardstick(_) => Quantity::Rate,
            Self::Connections(["write" | "connect" | "grant", ..]) => Quantity::Time,
            Self::Connections(_) => Quantity::Rate,
            Self::Streams(["latency", ..]) | Self::Web(["latency", ..]) => Quantity::Time,
            Self::Streams(_) | Self::Web(_) | Self::Copier(_) => Quantity::Rate,
            Self::Peer([_, "latency", ..]) | Self::Hosts(_, ["udp", ..], _) => Quantity::Time,
            Self::Peer(_) | Self::Hosts(..) | Self::Flows { .. } => Quantity::Rate,
            Self::CacheLine => Quantity::Time,
        }
    }

    /// Returns whether this program reports `statistic`.
    pub fn has(&self, statistic: Statistic) -> bool {
        match statistic {
            Statistic::Typical => true,
            Statistic::P99 | Statistic::P99_9 => {
                let has_percentiles =
                    matches!(self, Self::Ours(..) | Self::Perftest(_) | Self::Ucx { .. });
                has_percentiles && self.quantity() == Quantity::Time
            }
            Statistic::Beside => {
                matches!(self, Self::Ours(Layer::Core, run) if run.has_messages_beside())
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

    /// Returns the minimum and the maximum number of messages of a run; `None` for programs that take
    /// a duration instead.
    pub(super) fn counts(&self) -> Option<(usize, usize)> {
        match self {
            Self::Ours(_, run) | Self::Perftest(run) => Some(run.counts()),
            Self::Ucx { .. } => Some((10_000, 20_000_000)),
            Self::Yardstick(_)
            | Self::Connections(_)
            | Self::Streams(_)
            | Self::Web(_)
            | Self::Copier(_)
            | Self::Peer(_)
            | Self::Hosts(..)
            | Self::Flows { .. }
            | Self::CacheLine => None,
        }
    }

    /// Returns the duration of one message in seconds, given the result `figure` of this program: a
    /// time in microseconds, or a rate per second.
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

    /// Runs the program and returns the value of `statistic`. The run has `count` messages, or the
    /// duration `time` if the program takes a duration.
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
            Self::Yardstick(words) => yardstick(&programs.yardstick, words, time, statistic),
            Self::Connections(words) => connections(&programs.connections, words, time, statistic),
            Self::Streams(words) => {
                let line = timed(&programs.streams, words, time);
                served(line, &format!("streams {}", words.join(" ")), statistic)
            }
            Self::Web(words) => {
                let mut line = WITHOUT_PRELOAD.map(OsString::from).to_vec();
                line.extend(timed(programs.web()?, words, time));
                served(line, &format!("web {}", words.join(" ")), statistic)
            }
            Self::Copier(words) => copy::measure(programs.copier()?, words),
            Self::Peer(words) => peer(programs.peers()?, words, time, statistic),
            Self::Hosts(tool, words, mtu) => {
                let program = match tool {
                    Tool::Yardstick => &programs.yardstick,
                    Tool::Peers => programs.peers()?,
                };
                on_hosts((program, tool.name()), words, *mtu, time, statistic)
            }
            Self::Flows { count, size } => {
                flows::measure(&networks.softroce, *count, *size, statistic)
            }
            Self::CacheLine => yardstick(&programs.yardstick, &["cache-line"], time, statistic),
        }
    }
}

/// Runs the server and the client of UCX's benchmark, and returns the value of `statistic`.
fn ucx(test: &str, size: usize, count: usize, statistic: Statistic) -> Result<Reading> {
    if !in_path(ucx::PROGRAM) {
        return Err(Error::Program {
            program: ucx::PROGRAM.into(),
            reason: "it is not installed (Debian: ucx-utils)".into(),
        });
    }
    let port = free_port()?;
    let words = ucx::words(port);
    let client = ucx::client_words(test, size, count, statistic);
    let client = [words.clone(), client].concat();
    let name = format!("{} {test}", ucx::PROGRAM);
    let printed = run_with_servers(&[(words, port)], &client, &name, LIMIT, None)?;
    Ok(Reading {
        figure: ucx::figure(test, statistic, &printed)?,
        document: Value::String(printed),
    })
}

/// First words of the command line of a program without the preloaded softroce.
pub(super) const WITHOUT_PRELOAD: [&str; 3] = ["env", "-u", "LD_PRELOAD"];

/// Runs the program `yardstick` without softroce, and returns the value of `statistic`.
fn yardstick(
    program: &Path,
    words: &[&str],
    time: Duration,
    statistic: Statistic,
) -> Result<Reading> {
    let mut line: Vec<OsString> = WITHOUT_PRELOAD.map(OsString::from).to_vec();
    line.extend(timed(program, words, time));
    let name = format!("yardstick {}", words.join(" "));
    let printed = run_alone(&line, None, &name, LIMIT)?;
    parsed(&name, statistic, &printed)
}

/// Runs the server and the client of a program on two hosts, without softroce, and returns the value of
/// `statistic`.
fn on_hosts(
    (program, name): (&Path, &str),
    words: &[&str],
    mtu: usize,
    time: Duration,
    statistic: Statistic,
) -> Result<Reading> {
    let hosts = Hosts::create(mtu)?;
    let port = free_port()?;
    let line = |host| {
        let mut line = hosts.words(host);
        line.extend(WITHOUT_PRELOAD.map(OsString::from));
        line.extend(timed(program, words, time));
        line.extend(["--port", &port.to_string()].map(OsString::from));
        line
    };
    let mut client = line(Host::Client);
    client.push(Host::Server.address().into());
    let name = format!("{name} {}", words.join(" "));
    let server = (line(Host::Server), port);
    let printed = run_with_servers(&[server], &client, &name, LIMIT, None)?;
    parsed(&name, statistic, &printed)
}

/// Runs the program `connections` on one processor, and returns the value of `statistic`.
fn connections(
    program: &Path,
    words: &[&str],
    time: Duration,
    statistic: Statistic,
) -> Result<Reading> {
    let name = format!("connections {}", words.join(" "));
    let line = timed(program, words, time);
    let printed = run_alone(&line, Some(0), &name, LIMIT)?;
    parsed(&name, statistic, &printed)
}

/// Runs the server and the client of a program with this command line, and returns the value of
/// `statistic`. The client has the server's address as its last argument.
fn served(mut line: Vec<OsString>, name: &str, statistic: Statistic) -> Result<Reading> {
    let port = free_port()?;
    line.extend(["--port", &port.to_string()].map(OsString::from));
    let client = [&*line, &["127.0.0.1".into()]].concat();
    let printed = run_with_servers(&[(line, port)], &client, name, LIMIT, None)?;
    parsed(name, statistic, &printed)
}

/// Runs the server and the client of the program `rdma-bench-peers` without softroce, and returns the
/// value of `statistic`.
fn peer(program: &Path, words: &[&str], time: Duration, statistic: Statistic) -> Result<Reading> {
    let mut line = WITHOUT_PRELOAD.map(OsString::from).to_vec();
    line.extend(timed(program, words, time));
    let name = format!("rdma-bench-peers {}", words.join(" "));
    served(line, &name, statistic)
}

/// Returns the command line of a program that measures for the duration `time`.
fn timed(program: &Path, words: &[&str], time: Duration) -> Vec<OsString> {
    let millis = time.as_millis().to_string();
    let mut line = vec![program.into()];
    line.extend(["--time", &millis].map(OsString::from));
    line.extend(words.iter().map(OsString::from));
    line
}

/// Reads the value of `statistic` from the JSON output of the program `yardstick`, `connections`,
/// `streams` or `rdma-bench-peers`.
fn parsed(name: &str, statistic: Statistic, printed: &str) -> Result<Reading> {
    let refuse = |reason: String| Error::Program {
        program: name.to_owned(),
        reason,
    };
    let document: Value = serde_json::from_str(printed.trim())
        .map_err(|error| refuse(format!("{error} in what it printed:\n{printed}")))?;
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
            Self::Yardstick(words) => write!(f, "yardstick {}", words.join(" ")),
            Self::Connections(words) => write!(f, "connections {}", words.join(" ")),
            Self::Streams(words) => write!(f, "streams {}", words.join(" ")),
            Self::Web(words) => write!(f, "web {}", words.join(" ")),
            Self::Copier(words) => write!(f, "rdma_cp {}", words.join(" ")),
            Self::Peer(words) => write!(f, "rdma-bench-peers {}", words.join(" ")),
            Self::Hosts(tool, words, mtu) => {
                write!(
                    f,
                    "{} {} (two hosts, MTU {mtu})",
                    tool.name(),
                    words.join(" ")
                )
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
        let read = |statistic, line| parsed("cache-line", statistic, line);
        assert_eq!(read(Statistic::Typical, line).unwrap().figure, 0.105);
        let count = Statistic::Counter("/count");
        assert_eq!(read(count, line).unwrap().figure, 0.0);
        for wrong in ["", "{}", r#"{"figure":0}"#, "panicked"] {
            assert!(read(Statistic::Typical, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sources_say_what_they_are() {
        let run = Run::new(Verb::Write, Metric::Bandwidth, 8).by(Path::Udp);
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
        let time = |words| Source::Yardstick(words).quantity() == Quantity::Time;
        let peer = |words| Source::Peer(words).quantity();
        assert_eq!(peer(&["tcp", "latency"]), Quantity::Time);
        assert_eq!(peer(&["tonic", "rate"]), Quantity::Rate);
        assert!(!time(&["vm-write", "-s", "8"]));
        assert!(time(&["vm-write", "-s", "8", "--latency"]) && time(&["eventfd"]));
        let echo = Run::new(Verb::Echo, Metric::Latency, 8);
        let echo = Source::Ours(Layer::Rpc, echo);
        // The whole round trip of a call, but half of that of a message.
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
