//! Every test of rdma-core beside perftest's, as a table.
//!
//! `cargo bench -p rdma-bench` runs it on this machine's device, `cargo xtask bench` sets up a
//! Soft-RoCE device first.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser;
use rdma_bench::compare::{
    Case, Comparison, Effort, Network, Perftest, Program, compare, heading, line,
};
use rdma_bench::machine::Machine;
use rdma_core::{AddressChoice, Context, Error};

/// Measures rdma-core and, where perftest is installed, perftest, in turns.
#[derive(Debug, Parser)]
struct Options {
    /// Few sizes and short runs: the table without a verdict.
    #[arg(long)]
    quick: bool,
    /// A directory for a JSON file of every test.
    #[arg(long, value_name = "DIR")]
    json: Option<PathBuf>,
    /// Only tests with this in their names, as in send_lat_8.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only the sizes with a goal.
    #[arg(long)]
    judged: bool,
    /// What cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("verbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs every case. Returns whether all ran and, in a full run, met their goals.
fn run(options: &Options) -> anyhow::Result<bool> {
    let network = network()?;
    let machine = Machine::look();
    let perftest = Perftest::find();
    describe(&network, &machine, perftest.as_ref());
    let ours = Program::Ours(env!("CARGO_BIN_EXE_rdma-bench").into());
    let peer = perftest.as_ref().map(|_| Program::Perftest);
    let effort = if options.quick {
        Effort::Quick
    } else {
        Effort::Full
    };
    if let Some(directory) = &options.json {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let wanted = |case: &Case| {
        let named = |text: &String| case.to_string().contains(text);
        options.only.as_ref().is_none_or(named) && (!options.judged || case.is_judged())
    };
    let cases: Vec<Case> = Case::all(effort).into_iter().filter(wanted).collect();
    if cases.is_empty() {
        bail!("no test has {:?} in its name", options.only);
    }
    println!("{}", heading());
    let (mut failed, mut judged, mut missed) = (0, 0, 0);
    for case in cases {
        match compare(case, &network, (&ours, peer.as_ref()), effort) {
            Ok(comparison) => {
                println!("{}", line(&comparison));
                judged += usize::from(comparison.is_met().is_some());
                missed += usize::from(comparison.is_met() == Some(false));
                if let Some(directory) = &options.json {
                    let document = comparison.document(&network, &machine, perftest.as_ref());
                    write(directory, &comparison, &document)?;
                }
            }
            Err(error) => {
                failed += 1;
                println!(
                    "{:<12}{:>9}  FAILED: {error}",
                    case.test.to_string(),
                    case.size
                );
            }
        }
    }
    println!("goals: {judged} judged, {missed} missed; tests that did not run: {failed}");
    if options.quick && missed > 0 {
        println!("short runs on a busy machine say little: the full run decides");
    }
    Ok(failed == 0 && (options.quick || missed == 0))
}

/// The device and address that rdma-core chooses.
fn network() -> anyhow::Result<Network> {
    let context = match Context::open_default() {
        Err(error @ (Error::NoDevice | Error::NoUsablePort { .. })) => {
            bail!(
                "{error}\n`cargo xtask bench` sets up Soft-RoCE, in a guest if need be, and runs this there"
            );
        }
        // The list cannot be read where the kernel knows no RDMA at all.
        Err(error @ Error::Verb { .. }) => {
            bail!(
                "no RDMA device can be used: {error}\n`cargo xtask bench` sets up Soft-RoCE, in a guest if need be, and runs this there"
            );
        }
        outcome => outcome?,
    };
    let address = context.address(AddressChoice::default())?;
    Ok(Network {
        device: context.name().to_owned(),
        port: address.port,
        gid_index: address.gid_index,
        mtu: address.mtu.bytes(),
    })
}

fn describe(network: &Network, machine: &Machine, perftest: Option<&Perftest>) {
    println!(
        "device {}, port {}, GID index {}, MTU {}",
        network.device, network.port, network.gid_index, network.mtu
    );
    println!(
        "kernel {}, {} processors ({}), a timestamp takes {:.0} ns (clock source {})",
        machine.kernel,
        machine.processors,
        machine.processor,
        machine.timestamp_nanos,
        machine.clock_source
    );
    if machine.processors < 2 {
        println!("both ends share one processor: their figures are those of the scheduler");
    }
    match perftest {
        Some(perftest) => println!("perftest: {}", perftest.version),
        None => println!("perftest is not installed: rdma-core alone"),
    }
}

fn write(
    directory: &Path,
    comparison: &Comparison,
    document: &serde_json::Value,
) -> anyhow::Result<()> {
    let path = directory.join(format!("core_{}.json", comparison.case));
    let text = serde_json::to_string(document)?;
    fs::write(&path, text + "\n").with_context(|| format!("writing {}", path.display()))
}
