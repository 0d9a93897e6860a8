//! Compares the RDMA crates of this workspace with what the machine does without them (copies,
//! system calls, sockets, UCX). Prints the measured values of each comparison, and whether its goal
//! is met.
//!
//! `cargo xtask bench --device softroce` runs this benchmark with softroce preloaded into every
//! program that takes part. The command also runs this benchmark in a virtual machine, with
//! `--kernel`, for the comparisons with the kernel's Soft-RoCE device.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser;
use rdma_bench::Error;
use rdma_bench::compare::{Network, softroce_is_preloaded};
use rdma_bench::limits::{
    Effort, Judge, MachineKind, Networks, Programs, Row, Summary, failed, heading, line, listing,
    select,
};
use rdma_bench::machine::Machine;
use rdma_core::Context;
use serde_json::Value;

/// The environment variable with the path of softroce's example `attacker`.
const ATTACKER: &str = "RDMA_BENCH_ATTACKER";

/// The environment variable with the path of `rdma-bench-peers`, which measures other RPC
/// frameworks.
const PEERS: &str = "RDMA_BENCH_PEERS";

/// The environment variable with the directory of rdma-async's examples.
const EXAMPLES: &str = "RDMA_BENCH_EXAMPLES";

/// The environment variable with the path of the program that measures web servers over streams.
const WEB: &str = "RDMA_BENCH_WEB";

/// Compares softroce, rdma-core, rdma-async and rdma-rpc with copies, system calls, sockets and
/// other programs.
#[derive(Debug, Parser)]
struct Options {
    /// Measure enough pairs of runs to decide whether each goal is met.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Measure few pairs of short runs, too few to decide whether a goal is met.
    #[arg(long)]
    quick: bool,
    /// Measure the rows (comparisons) with DEVICE, the Soft-RoCE device of the virtual machine's
    /// kernel.
    #[arg(long, value_name = "DEVICE")]
    kernel: Option<String>,
    /// Measure only the row (comparison) with this name (G8a), or all rows of a goal (G8) or of a
    /// letter (G).
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// List the rows (comparisons), each with the machine that measures it, and measure nothing.
    #[arg(long)]
    list: bool,
    /// The directory to which one JSON file for each row is written.
    #[arg(long, value_name = "DIR")]
    json: Option<PathBuf>,
    /// No effect: `cargo bench` passes this flag to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if !options.full && !options.quick && !options.list {
        // Without arguments, as `cargo bench` runs it, this benchmark measures nothing.
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("limits: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the comparisons that `options` selects, and prints one table line for each. Returns
/// whether all could be measured and no comparison missed its goal.
fn run(options: &Options) -> anyhow::Result<bool> {
    let selected = select(options.only.as_deref())?;
    if options.list {
        print!("{}", listing(&selected));
        return Ok(true);
    }
    let machine = match options.kernel {
        Some(_) => MachineKind::Guest,
        None => MachineKind::Host,
    };
    let here = selected.iter().filter(|(at, _)| *at == machine);
    let rows: Vec<&Row> = here.map(|(_, row)| *row).collect();
    if rows.is_empty() {
        bail!(
            "no such row is measured here, in the {machine}: `cargo xtask bench --device softroce` \
             measures each row where it belongs"
        );
    }
    let networks = networks(options.kernel.as_deref())?;
    let machine = Machine::detect();
    println!(
        "device {}, MTU {}; kernel {}, {} processors ({})",
        networks.softroce.device,
        networks.softroce.mtu,
        machine.kernel,
        machine.processors,
        machine.processor
    );
    if machine.processors < 2 {
        println!("both processes share one processor: results mostly show the scheduler");
    }
    let effort = if options.full {
        Effort::FULL
    } else {
        Effort::QUICK
    };
    let effort = match options.kernel {
        Some(_) => effort.emulated(),
        None => effort,
    };
    let programs = Programs {
        bench: env!("CARGO_BIN_EXE_rdma-bench").into(),
        yardstick: env!("CARGO_BIN_EXE_yardstick").into(),
        connections: env!("CARGO_BIN_EXE_connections").into(),
        streams: env!("CARGO_BIN_EXE_streams").into(),
        attacker: env::var_os(ATTACKER).map(PathBuf::from),
        peers: env::var_os(PEERS).map(PathBuf::from),
        examples: env::var_os(EXAMPLES).map(PathBuf::from),
        web: env::var_os(WEB).map(PathBuf::from),
    };
    let mut judge = Judge::new(programs, networks, effort);
    println!("{}", heading());
    let mut summary = Summary::default();
    for row in &rows {
        match judge.judge(row) {
            Ok(judged) => {
                println!("{}", line(&judged));
                summary.measured(row, judged.verdict());
                write(options, row, &judged.document(&machine))?;
            }
            Err(error) => {
                println!("{}", failed(row, &error));
                match error {
                    Error::NoNamespaces(_) => summary.impossible(row),
                    _ => summary.not_measured(row),
                }
            }
        }
    }
    print!("\n{summary}");
    Ok(summary.is_success())
}

fn write(options: &Options, row: &Row, document: &Value) -> anyhow::Result<()> {
    let Some(directory) = &options.json else {
        return Ok(());
    };
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let path = directory.join(format!("limit_{}.json", row.id));
    let text = serde_json::to_string(document)?;
    fs::write(&path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// Returns the softroce device and, if `kernel` names one, a Soft-RoCE device of the kernel. Fails
/// if softroce is not preloaded, because the programs that this benchmark starts then do not use
/// softroce.
fn networks(kernel: Option<&str>) -> anyhow::Result<Networks> {
    let context = Context::open_default()?;
    if !softroce_is_preloaded() || !context.device().is_emulated() {
        bail!("softroce is not preloaded: `cargo xtask bench --device softroce` does that");
    }
    let kernel = match kernel {
        Some(name) => Some(Network::of(&Context::open(name)?)?),
        None => None,
    };
    Ok(Networks {
        softroce: Network::of(&context)?,
        kernel,
    })
}
