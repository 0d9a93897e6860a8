//! A test of an RDMA device by `rdma-bench` or perftest.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::attack::Attack;
use super::hosts::{Host, Hosts};
use super::judge::{Networks, Programs};
use super::row::Quantity;
use super::statistic::Statistic;
use crate::compare::ends::{Companion, free_port, run_with_servers};
use crate::compare::program::{Program, columns};
use crate::compare::run::TemporaryFile;
use crate::compare::{Case, Network};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::test::{Metric, Test, Verb};

/// Time limit of one run of a program. A longer run counts as failed.
pub(super) const RUN_TIMEOUT: Duration = Duration::from_secs(180);

/// A test of an RDMA device: operation, message size, options, and the network or transport that
/// carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    verb: Verb,
    metric: Metric,
    size: usize,
    path: Path,
    mtu: Option<usize>,
    args: &'static [&'static str],
    /// Environment variables of server and client, of the form `NAME=VALUE`.
    variables: &'static [&'static str],
    servers: usize,
    attack: Option<Attack>,
}

/// The way by which messages pass between server and client of a test: a transport of softroce, or
/// another network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The path that softroce chooses between two processes of one machine.
    Chosen,
    /// The UDP path of softroce.
    Udp,
    /// The network of the kernel's Soft-RoCE device.
    Kernel,
    /// The network of two hosts, with this MTU in bytes.
    Hosts(usize),
}

impl Path {
    /// The environment variable, with its value, that makes softroce send all messages by UDP.
    const UDP: &'static str = "SOFTROCE_PATH=udp";

    /// Returns the words that precede a program on its command line, so that the program uses this
    /// network or transport. The words call `env`, which changes environment variables. Returns no
    /// words if no variable must be changed.
    fn prefix(self) -> &'static [&'static str] {
        match self {
            Self::Chosen => &[],
            Self::Udp => &["env", Self::UDP],
            // Without the preloaded softroce.
            Self::Kernel => &["env", "-u", "LD_PRELOAD"],
            // The prefix of this path is added later: see `Hosts::prefix`.
            Self::Hosts(_) => &[],
        }
    }
}

/// The result of one run of a benchmark program: one number, and the output of the program.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reading {
    /// The value of the requested statistic: microseconds, messages per second, or a count.
    pub(super) figure: f64,
    /// The JSON document that the program wrote, or its output as text.
    pub(super) document: Value,
}

impl Run {
    /// Creates a test that measures the latency or the bandwidth (`metric`) of the operation `verb`
    /// with messages of `size` bytes. By default, the test runs on softroce between two processes
    /// of one machine. The method `path` selects another network or transport.
    pub const fn new(verb: Verb, metric: Metric, size: usize) -> Self {
        Self {
            verb,
            metric,
            size,
            path: Path::Chosen,
            mtu: None,
            args: &[],
            variables: &[],
            servers: 1,
            attack: None,
        }
    }

    /// Returns this test with the network or transport `path` between server and client.
    pub const fn path(self, path: Path) -> Self {
        Self { path, ..self }
    }

    /// Returns this test with a path MTU of `bytes` instead of the port's MTU.
    pub const fn mtu(self, bytes: usize) -> Self {
        let mtu = Some(bytes);
        Self { mtu, ..self }
    }

    /// Returns this test with the additional command line arguments `args` for server and client.
    /// Replaces arguments that were given before.
    pub const fn with(self, args: &'static [&'static str]) -> Self {
        Self { args, ..self }
    }

    /// Returns this test with environment variables, each of the form `NAME=VALUE`, for server and
    /// client.
    pub const fn with_variables(self, variables: &'static [&'static str]) -> Self {
        Self { variables, ..self }
    }

    /// Returns this test with `servers` servers. The client sends to all of them.
    pub const fn servers(self, servers: usize) -> Self {
        Self { servers, ..self }
    }

    /// Returns this test with an attack: while the test runs, another process sends forged packets
    /// to the ports that `attack` selects.
    pub const fn under_attack(self, attack: Attack) -> Self {
        let attack = Some(attack);
        Self { attack, ..self }
    }

    /// Returns whether the test measures remote procedure calls, which only rdma-rpc supports.
    pub fn is_call(self) -> bool {
        self.verb.is_call()
    }

    /// Returns whether this test measures latency under load: `rdma-bench` sends other messages
    /// during the latency test (option `--beside`). Only tests of rdma-core and rdma-rpc support
    /// this option.
    pub(super) fn has_messages_beside(self) -> bool {
        self.args.contains(&"--beside")
    }

    /// Returns the kind of the test's main result: a time or a rate.
    pub(super) const fn quantity(self) -> Quantity {
        match self.metric {
            Metric::Latency => Quantity::Time,
            Metric::Bandwidth => Quantity::Rate,
        }
    }

    /// Returns the minimum and the maximum number of messages in a run of this test. The judge
    /// chooses a number between them, so that a run takes the intended time.
    pub(super) fn counts(self) -> (usize, usize) {
        match (self.metric, self.size) {
            // At least one of the messages beside the calls must be complete before the run ends.
            (Metric::Latency, _) if self.args.contains(&"--beside") => (20_000, 200_000),
            (Metric::Latency, _) => (1000, 200_000),
            (Metric::Bandwidth, 0..=8192) => (5000, 20_000_000),
            (Metric::Bandwidth, _) => (200, 200_000),
        }
    }

    /// Returns the factor that converts the latency reported by this test to the time of one
    /// message: 2 if the test reports half of a round trip, else 1.
    pub(super) fn times_per_message(self) -> f64 {
        match self.verb {
            // The reported latency is half of a round trip.
            Verb::Send | Verb::Write => 2.0,
            _ => 1.0,
        }
    }

    /// Returns the number of queue pairs of the client. Each queue pair transfers its own messages.
    fn queue_pairs(self) -> usize {
        let option = self.args.windows(2).find(|pair| pair[0] == "-q");
        let count = option.and_then(|pair| pair[1].parse().ok());
        count.unwrap_or(1) * self.servers
    }

    /// Runs the test with `program` and about `count` messages. Returns the number that `statistic`
    /// selects from the program's result, such as the median latency in microseconds or the average
    /// number of messages per second.
    pub(super) fn measure(
        self,
        program: &Program,
        (programs, networks): (&Programs, &Networks),
        count: usize,
        statistic: Statistic,
    ) -> Result<Reading> {
        let case = self.case((count / self.queue_pairs()).max(Plan::MIN_ITERATIONS));
        let mut network = self.network(networks)?.clone();
        network.mtu = self.mtu.unwrap_or(network.mtu);
        let hosts = match self.path {
            Path::Hosts(mtu) => Some(Hosts::create(mtu)?),
            _ => None,
        };
        let begin = |host| {
            hosts
                .as_ref()
                .map_or_else(Vec::new, |hosts| hosts.prefix(host))
        };
        let mut servers = Vec::new();
        for _ in 0..self.servers {
            let port = free_port()?;
            let mut argv: Vec<OsString> = self.path.prefix().iter().map(OsString::from).collect();
            if !self.variables.is_empty() {
                argv.push("env".into());
                argv.extend(self.variables.iter().map(OsString::from));
            }
            let mut chosen = program.argv(&case, &network, port);
            // A queue depth among the arguments of the row replaces that of the case.
            let depth = chosen.iter().position(|word| word == "-t");
            if let Some(at) = depth.filter(|_| self.args.contains(&"-t")) {
                chosen.drain(at..at + 2);
            }
            argv.extend(chosen);
            argv.extend(self.args.iter().map(OsString::from));
            servers.push((argv, port));
        }
        let file = TemporaryFile::new(servers[0].1);
        let address = hosts
            .as_ref()
            .map_or("127.0.0.1", |_| Host::Server.address());
        let mut client = [
            begin(Host::Client),
            servers[0].0.clone(),
            program.client_args(address, &file.0),
        ]
        .concat();
        for (argv, _) in &mut servers {
            argv.splice(0..0, begin(Host::Server));
        }
        if let [_, further @ ..] = &*servers
            && !further.is_empty()
        {
            let ports: Vec<_> = further.iter().map(|(_, port)| port.to_string()).collect();
            client.extend(["--also".into(), ports.join(",").into()]);
        }
        let name = program.name(&case);
        let attacker = match self.attack {
            Some(attack) => Some((attack, programs.attacker()?)),
            None => None,
        };
        let attack = attacker.map(|(attack, path)| move |printed: &str| attack.argv(path, printed));
        let attack = attack.as_ref().map(|argv| argv as Companion<'_>);
        let printed = run_with_servers(&servers, &client, &name, RUN_TIMEOUT, attack)?;
        let reading = program.read(&case, &printed, &file.0)?;
        let figure = match (statistic, &reading.document) {
            (Statistic::Typical, _) => Some(reading.figure),
            (_, Some(document)) => statistic.in_document(document),
            (_, None) => columns(&case, &printed).and_then(|all| statistic.in_columns(&all)),
        };
        let figure = figure.ok_or_else(|| Error::Program {
            program: name,
            reason: format!("no {statistic} in its JSON document"),
        })?;
        let document = reading.document;
        Ok(Reading {
            figure,
            document: document.map_or(Value::String(printed), without_samples),
        })
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
            Path::Chosen | Path::Udp | Path::Hosts(_) => Ok(&networks.softroce),
            Path::Kernel => networks.kernel.as_ref().ok_or_else(|| Error::Program {
                program: "rxe".into(),
                reason: "this machine has no Soft-RoCE device of the kernel".into(),
            }),
        }
    }
}

/// Returns a JSON document of `rdma-bench` without its latency samples, which would make it large.
fn without_samples(mut document: Value) -> Value {
    if let Some(results) = document["results"].as_object_mut() {
        results.remove("samples");
    }
    document
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -s {}", self.case(0).test, self.size)?;
        for word in self.args {
            write!(f, " {word}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, " -m {mtu}")?;
        }
        for variable in self.variables {
            write!(f, " ({variable})")?;
        }
        match self.path {
            Path::Chosen => {}
            Path::Udp => write!(f, " ({})", Path::UDP)?,
            Path::Kernel => f.write_str(" (rxe)")?,
            Path::Hosts(mtu) => write!(f, " (two hosts, MTU {mtu})")?,
        }
        match self.attack {
            Some(attack) => write!(f, ", {attack}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_those_with_all_servers() {
        let run = Run::new(Verb::Write, Metric::Bandwidth, 8);
        assert_eq!(run.queue_pairs(), 1);
        let many = run.with(&["-l", "32", "-q", "16"]).servers(2);
        assert_eq!(many.queue_pairs(), 32);
    }
}
