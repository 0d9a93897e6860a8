//! What can be measured, and by which program.

use std::ffi::OsString;
use std::fmt;
use std::path::Path as FilePath;
use std::time::Duration;

use serde_json::Value;

use super::judge::{Networks, Programs};
use super::ucx;
use crate::compare::Case;
use crate::compare::ends::{free_port, run_alone, run_with_servers};
use crate::compare::program::{Network, Program, in_path};
use crate::compare::run::Scratch;
use crate::error::{Error, Result};
use crate::plan::Layer;
use crate::test::{Metric, Test, Verb};

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(180);

/// What measures something.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// `rdma-bench` over rdma-core.
    Ours(Run),
    /// The C program of the test.
    Perftest(Run),
    /// A test of `ucx_perftest` with messages of a size, over shared memory.
    Ucx {
        /// The test.
        test: &'static str,
        /// The size in bytes.
        size: usize,
    },
    /// A measurement of the program `yardstick`.
    Yardstick(&'static [&'static str]),
    /// The round trip of a cache line around the pair, in microseconds.
    CacheLine,
}

/// A test on an RDMA device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    verb: Verb,
    metric: Metric,
    size: usize,
    path: Path,
    mtu: Option<usize>,
    words: &'static [&'static str],
    servers: usize,
}

/// Which way messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The one that softroce chooses between two processes of a machine.
    Chosen,
    /// Softroce's, through UDP.
    Udp,
    /// That of the kernel's device.
    Kernel,
}

impl Path {
    /// What makes softroce take a path.
    const UDP: &'static str = "SOFTROCE_PATH=udp";

    /// The words in front of those of the program.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Chosen => &[],
            Self::Udp => &["env", Self::UDP],
            // The real library alone.
            Self::Kernel => &["env", "-u", "LD_PRELOAD"],
        }
    }
}

impl Run {
    /// A test with messages of a size.
    pub const fn new(verb: Verb, metric: Metric, size: usize) -> Self {
        Self {
            verb,
            metric,
            size,
            path: Path::Chosen,
            mtu: None,
            words: &[],
            servers: 1,
        }
    }

    /// The same on another path.
    pub const fn by(self, path: Path) -> Self {
        Self { path, ..self }
    }

    /// The same with another MTU than the port's.
    pub const fn mtu(self, bytes: usize) -> Self {
        let mtu = Some(bytes);
        Self { mtu, ..self }
    }

    /// The same with more options.
    pub const fn with(self, words: &'static [&'static str]) -> Self {
        Self { words, ..self }
    }

    /// The same with so many servers.
    pub const fn servers(self, servers: usize) -> Self {
        Self { servers, ..self }
    }

    fn case(self, iterations: usize) -> Case {
        Case {
            test: Test {
                verb: self.verb,
                metric: self.metric,
            },
            size: self.size,
            iterations,
        }
    }

    fn network<'n>(&self, networks: &'n Networks) -> Result<&'n Network> {
        match self.path {
            Path::Chosen | Path::Udp => Ok(&networks.softroce),
            Path::Kernel => networks.kernel.as_ref().ok_or_else(|| Error::Program {
                program: "rxe".into(),
                reason: "this machine has no device of the kernel's Soft-RoCE".into(),
            }),
        }
    }

    /// Runs it with `program` and so many messages.
    fn measure(self, program: &Program, networks: &Networks, count: usize) -> Result<Reading> {
        let case = self.case(count);
        let mut network = self.network(networks)?.clone();
        network.mtu = self.mtu.unwrap_or(network.mtu);
        let mut servers = Vec::new();
        for _ in 0..self.servers {
            let port = free_port()?;
            let mut words: Vec<OsString> = self.path.words().iter().map(OsString::from).collect();
            words.extend(program.words(&case, &network, port));
            words.extend(self.words.iter().map(OsString::from));
            servers.push((words, port));
        }
        let file = Scratch::new(servers[0].1);
        let mut client = [servers[0].0.clone(), program.client_words(&file.0)].concat();
        if let [_, further @ ..] = &*servers
            && !further.is_empty()
        {
            let ports: Vec<_> = further.iter().map(|(_, port)| port.to_string()).collect();
            client.extend(["--also".into(), ports.join(",").into()]);
        }
        let printed = run_with_servers(&servers, &client, &program.name(&case), LIMIT)?;
        let reading = program.read(&case, &printed, &file.0)?;
        Ok(Reading {
            figure: reading.figure,
            document: reading
                .document
                .map_or(Value::String(printed), without_samples),
        })
    }
}

/// What a program measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reading {
    /// Microseconds, or messages each second.
    pub(super) figure: f64,
    /// What it wrote or printed.
    pub(super) document: Value,
}

impl Source {
    /// Whether it measures a time, in place of a rate.
    pub const fn is_time(&self) -> bool {
        match self {
            Self::Ours(run) | Self::Perftest(run) => matches!(run.metric, Metric::Latency),
            Self::Ucx { test, .. } => ucx::is_time(test),
            Self::Yardstick(words) => matches!(
                (words[0].as_bytes(), words.len()),
                // The fourth word is `--latency`.
                (b"udp-ping" | b"eventfd", _) | (b"vm-write", 4)
            ),
            Self::CacheLine => true,
        }
    }

    /// The numbers of messages that are worth a run, least and most. None for programs that are told
    /// how long to measure.
    pub(super) fn counts(&self) -> Option<(usize, usize)> {
        match self {
            Self::Ours(run) | Self::Perftest(run) => Some(match (run.metric, run.size) {
                (Metric::Latency, _) => (1000, 200_000),
                (Metric::Bandwidth, 0..=8192) => (5000, 20_000_000),
                (Metric::Bandwidth, _) => (200, 200_000),
            }),
            Self::Ucx { .. } => Some((10_000, 20_000_000)),
            Self::Yardstick(_) | Self::CacheLine => None,
        }
    }

    /// How long one message takes, in seconds, by what was measured.
    pub(super) fn seconds(&self, figure: f64) -> f64 {
        match self.is_time() {
            // There and back.
            true => figure * 2e-6,
            false => 1.0 / figure,
        }
    }

    /// Measures with so many messages, or for so long.
    pub(super) fn measure(
        &self,
        (programs, networks): (&Programs, &Networks),
        count: usize,
        time: Duration,
    ) -> Result<Reading> {
        match self {
            Self::Ours(run) => {
                let program = Program::Ours(programs.bench.clone(), Layer::Core);
                run.measure(&program, networks, count)
            }
            Self::Perftest(run) => {
                const TRIES: usize = 3;
                // Now and then it does not find out the processor's frequency.
                let mut outcome = run.measure(&Program::Perftest, networks, count);
                for _ in 1..TRIES {
                    if outcome.is_ok() {
                        break;
                    }
                    outcome = run.measure(&Program::Perftest, networks, count);
                }
                outcome
            }
            Self::Ucx { test, size } => {
                if !in_path(ucx::PROGRAM) {
                    return Err(Error::Program {
                        program: ucx::PROGRAM.into(),
                        reason: "it is not installed (Debian: ucx-utils)".into(),
                    });
                }
                let port = free_port()?;
                let words = ucx::words(port);
                let client = [words.clone(), ucx::client_words(test, *size, count)].concat();
                let name = format!("{} {test}", ucx::PROGRAM);
                let printed = run_with_servers(&[(words, port)], &client, &name, LIMIT)?;
                Ok(Reading {
                    figure: ucx::figure(test, &printed)?,
                    document: Value::String(printed),
                })
            }
            Self::Yardstick(words) => yardstick(&programs.yardstick, words, time),
            Self::CacheLine => yardstick(&programs.yardstick, &["cache-line"], time),
        }
    }
}

/// Runs the program `yardstick`.
fn yardstick(program: &FilePath, words: &[&str], time: Duration) -> Result<Reading> {
    let millis = time.as_millis().to_string();
    let mut line: Vec<OsString> = ["env", "-u", "LD_PRELOAD"].map(OsString::from).to_vec();
    line.push(program.into());
    line.extend(["--time", &millis].map(OsString::from));
    line.extend(words.iter().map(OsString::from));
    let name = format!("yardstick {}", words.join(" "));
    let printed = run_alone(&line, &name, LIMIT)?;
    parsed(&name, &printed)
}

/// What it printed.
fn parsed(name: &str, printed: &str) -> Result<Reading> {
    let refuse = |reason: String| Error::Program {
        program: name.to_owned(),
        reason,
    };
    let document: Value = serde_json::from_str(printed.trim())
        .map_err(|error| refuse(format!("{error} in what it printed:\n{printed}")))?;
    let figure = document["figure"].as_f64();
    let figure = figure.filter(|figure| figure.is_finite() && *figure > 0.0);
    let figure = figure.ok_or_else(|| refuse(format!("no figure in {document}")))?;
    Ok(Reading { figure, document })
}

/// A document of this program without the samples of latencies, of which there are many.
fn without_samples(mut document: Value) -> Value {
    if let Some(results) = document["results"].as_object_mut() {
        results.remove("samples");
    }
    document
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(run) => write!(f, "rdma-bench {run}"),
            Self::Perftest(run) => write!(f, "ib_{run}"),
            Self::Ucx { test, size } => write!(f, "{} {test} -s {size}", ucx::PROGRAM),
            Self::Yardstick(words) => write!(f, "yardstick {}", words.join(" ")),
            Self::CacheLine => f.write_str("yardstick cache-line"),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -s {}", self.case(0).test, self.size)?;
        for word in self.words {
            write!(f, " {word}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " -m {mtu}")?;
        }
        match self.path {
            Path::Chosen => Ok(()),
            Path::Udp => write!(f, " ({})", Path::UDP),
            Path::Kernel => write!(f, " (rxe)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_yardstick_are_read() {
        let line = r#"{"figure":0.105,"min":0.1,"schema":"rdma-bench/yardstick/1","unit":"usec"}"#;
        assert_eq!(parsed("cache-line", line).unwrap().figure, 0.105);
        for wrong in ["", "{}", r#"{"figure":0}"#, "panicked"] {
            assert!(parsed("cache-line", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sources_say_what_they_are() {
        let run = Run::new(Verb::Write, Metric::Bandwidth, 8).by(Path::Udp);
        let run = run.with(&["-l", "32"]).mtu(1024);
        assert_eq!(
            Source::Ours(run).to_string(),
            "rdma-bench write_bw -s 8 -l 32 -m 1024 (SOFTROCE_PATH=udp)"
        );
        assert!(!Source::Yardstick(&["vm-write", "-s", "8"]).is_time());
        assert!(Source::Yardstick(&["vm-write", "-s", "8", "--latency"]).is_time());
    }
}
