//! Writes of several processes of one host to as many processes of another host, at the same time.

use std::ffi::OsString;

use serde_json::json;

use super::hosts::{Host, Hosts};
use super::run::{RUN_TIMEOUT, Reading};
use super::statistic::Statistic;
use crate::compare::Network;
use crate::compare::ends::{Flow, free_port, run_together};
use crate::error::{Error, Result};

/// The program of perftest that is measured: several instances run at the same time.
const PROGRAM: &str = "ib_write_bw";
/// The duration in seconds of each run of [`PROGRAM`], as the value of perftest's option `-D`. All
/// instances run for this time, so that they compete from begin to end.
const SECONDS: &str = "1";
/// The MTU in bytes of the network between the two simulated hosts: the usual MTU of Ethernet.
const NETWORK_MTU: usize = 1500;
/// The path MTU of the connections in bytes: the largest path MTU that fits into [`NETWORK_MTU`],
/// the MTU of the simulated network.
const PATH_MTU: &str = "1024";

/// Runs `count` clients of [`PROGRAM`] at the same time on one simulated host. Each writes messages
/// of `size` bytes to a server of its own on the other host. Returns the value that `statistic`
/// selects: the sum of the clients' rates in messages per second, or the fairness (the lowest of
/// these rates divided by the highest).
pub(super) fn measure(
    network: &Network,
    count: usize,
    size: usize,
    statistic: Statistic,
) -> Result<Reading> {
    let hosts = Hosts::create(NETWORK_MTU)?;
    let mut flows = Vec::new();
    for _ in 0..count {
        let port = free_port()?;
        let line = |host, address: &[&str]| -> Vec<OsString> {
            let (port, size) = (port.to_string(), size.to_string());
            let args = [
                PROGRAM,
                "-F",
                "--disable_pcie_relaxed",
                "-d",
                &network.device,
                "-x",
                "0",
                "-m",
                PATH_MTU,
                "-p",
                &port,
                "-s",
                &size,
                "-D",
                SECONDS,
                "-f",
                "0",
            ];
            let args = args.iter().chain(address).map(OsString::from);
            hosts.prefix(host).into_iter().chain(args).collect()
        };
        flows.push(Flow {
            server: line(Host::Server, &[]),
            port,
            client: line(Host::Client, &[Host::Server.address()]),
        });
    }
    let refuse = |reason: String| Error::Program {
        program: PROGRAM.to_owned(),
        reason,
    };
    let mut rates = Vec::new();
    for printed in run_together(&flows, PROGRAM, RUN_TIMEOUT)? {
        let rate = rate(size, &printed);
        rates.push(rate.ok_or_else(|| refuse(format!("the output contains no rate:\n{printed}")))?);
    }
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let fastest = rates.iter().copied().fold(0.0, f64::max);
    let document = json!({
        "figure": rates.iter().sum::<f64>(),
        "fairness": slowest / fastest,
        "rates": rates,
    });
    let figure = statistic
        .in_document(&document)
        .ok_or_else(|| refuse(format!("no {statistic} in {document}")))?;
    Ok(Reading { figure, document })
}

/// Returns the rate for messages of `size` bytes, in messages per second, from `printed`, the
/// output of perftest. Returns `None` if the output has no line for this size.
fn rate(size: usize, printed: &str) -> Option<f64> {
    printed.lines().rev().find_map(|line| {
        let mut columns = line.split_whitespace();
        let is_result = columns.next()?.parse() == Ok(size);
        // The last column has millions of messages per second.
        is_result.then_some(columns.next_back()?.parse::<f64>().ok()? * 1e6)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_the_last_column() {
        let printed =
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      20000            13287.10            5528.84\t\t   0.088461
----";
        assert_eq!(rate(65536, printed), Some(88461.0));
        assert_eq!(rate(8, printed), None);
    }
}
