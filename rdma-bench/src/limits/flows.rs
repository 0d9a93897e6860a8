//! Writes of several processes of one host to as many processes of another host, at the same time.

use std::ffi::OsString;

use serde_json::json;

use super::hosts::{Host, Hosts};
use super::run::{LIMIT, Reading};
use super::statistic::Statistic;
use crate::compare::Network;
use crate::compare::ends::{Flow, free_port, run_together};
use crate::error::{Error, Result};

/// The program of each flow, and its duration in seconds.
const PROGRAM: &str = "ib_write_bw";
const SECONDS: &str = "1";
/// The MTU of the network, and the largest path MTU that fits into it, in bytes.
const NETWORK_MTU: usize = 1500;
const PATH_MTU: &str = "1024";

/// Runs `count` flows of writes of `size` bytes. The main result is their sum in messages per second;
/// the document has the rate of the slowest flow divided by that of the fastest, as `fairness`.
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
            let words = [
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
            let words = words.iter().chain(address).map(OsString::from);
            hosts.words(host).into_iter().chain(words).collect()
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
    for printed in run_together(&flows, PROGRAM, LIMIT)? {
        let rate = rate(size, &printed);
        rates.push(rate.ok_or_else(|| refuse(format!("no rate in what it printed:\n{printed}")))?);
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

/// Returns the messages per second that perftest has printed for messages of `size` bytes.
fn rate(size: usize, printed: &str) -> Option<f64> {
    printed.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_result = words.next()?.parse() == Ok(size);
        // The last column has millions of messages per second.
        is_result.then_some(words.next_back()?.parse::<f64>().ok()? * 1e6)
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
