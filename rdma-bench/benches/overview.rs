//! Prints a table of the latency, rate and bandwidth of every layer on this machine's RDMA device.
//!
//! `cargo bench -p rdma-bench` and `cargo xtask bench --quick` run this benchmark. The table has no
//! goals: it shows what to expect.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use rdma_bench::compare::{Network, Perftest};
use rdma_bench::machine::Machine;
use rdma_bench::overview::{FOOTNOTES, Figures, Row, measure, rows, table};
use rdma_core::Context;
use serde_json::{Value, json};

/// Measures rdma-core, rdma-async, rdma-rpc and, if installed, perftest on this machine's RDMA
/// device.
#[derive(Debug, Parser)]
struct Options {
    /// The directory to which the table is written as a JSON file.
    #[arg(long, value_name = "DIR")]
    json: Option<PathBuf>,
    /// No effect: this benchmark always has the same length.
    #[arg(long, hide = true)]
    quick: bool,
    /// No effect: `cargo bench` passes this flag to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The number of runs of each test. The table shows the medians of the runs.
const RUNS: usize = 3;
/// Time after which each remaining test runs only once instead of [`RUNS`] times. On a slow device
/// the results are then less certain, but the table is complete.
const TIME_FOR_ALL_RUNS: Duration = Duration::from_secs(110);

/// Name of the JSON format, which the written file contains. The number at its end is incremented
/// when the meaning of a field changes.
const SCHEMA: &str = "rdma-bench/overview/1";

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("overview: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures every operation with every message size over every layer, and prints the table. Returns
/// whether every measurement succeeded.
fn run(options: &Options) -> anyhow::Result<bool> {
    let context = Context::open_default()?;
    let network = Network::of(&context)?;
    let machine = Machine::detect();
    let perftest = Perftest::find(&context);
    describe(&context, &network, &machine, perftest.as_ref());
    let rows = rows(perftest.is_ok());
    let program = Path::new(env!("CARGO_BIN_EXE_rdma-bench"));
    let mut measured: Vec<(Row, Option<Figures>)> = Vec::new();
    let mut failures = Vec::new();
    let begin = Instant::now();
    for (number, row) in rows.iter().enumerate() {
        eprintln!("[{:>2}/{}] {row}", number + 1, rows.len());
        let runs = match begin.elapsed() < TIME_FOR_ALL_RUNS {
            true => RUNS,
            false => 1,
        };
        match measure(row, &network, program, runs) {
            Ok(figures) => measured.push((*row, Some(figures))),
            Err(error) => {
                failures.push(format!("{row}: {error}"));
                measured.push((*row, None));
            }
        }
    }
    println!("\n{}\n{FOOTNOTES}", table(&measured));
    for failure in &failures {
        println!("failed: {failure}\n");
    }
    if let Some(directory) = &options.json {
        write(directory, &document(&network, &machine, &measured))?;
    }
    println!(
        "Next: cargo run --release -p rdma-bench -- send_lat --help    one test, two processes"
    );
    println!("      cargo xtask bench    every size beside perftest, and goals: an hour or more");
    Ok(failures.is_empty())
}

fn describe(
    context: &Context,
    network: &Network,
    machine: &Machine,
    perftest: Result<&Perftest, &&'static str>,
) {
    let kind = match context.device().is_emulated() {
        true => " (softroce, in user space)",
        false => "",
    };
    println!(
        "machine   {}, {} processors, Linux {}",
        machine.processor, machine.processors, machine.kernel
    );
    println!(
        "device    {}{kind}, port {}, GID index {}, path MTU {}",
        network.device, network.port, network.gid_index, network.mtu
    );
    match perftest {
        Ok(perftest) => println!("perftest  {}", perftest.version.replace("Version: ", "")),
        Err(reason) => println!("perftest  {reason}: the table has no rows of it"),
    }
    if machine.processors < 2 {
        println!("Both processes share one processor: results mostly show the scheduler.");
    }
}

fn document(network: &Network, machine: &Machine, rows: &[(Row, Option<Figures>)]) -> Value {
    let row = |(row, figures): &(Row, Option<Figures>)| {
        json!({
            "operation": row.verb,
            "size": row.size,
            "subject": row.subject.to_string(),
            "figures": figures,
        })
    };
    json!({
        "schema": SCHEMA,
        "units": {"latency_*": "usec", "rate": "1/sec", "size": "bytes"},
        "device": network.device,
        "port": network.port,
        "gid_index": network.gid_index,
        "mtu": network.mtu,
        "machine": machine,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn write(directory: &Path, document: &Value) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let path = directory.join("overview.json");
    let text = serde_json::to_string(document)?;
    fs::write(&path, text + "\n").with_context(|| format!("writing {}", path.display()))
}
