//! Every test of rdma-core beside perftest's, and then the layers side by side, as tables.
//!
//! `cargo bench -p rdma-bench` runs a short set on this machine's device, with `-- --full` every size
//! and the verdict; `cargo xtask bench` brings the device and perftest.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Parser, ValueEnum};
use rdma_bench::Layer;
use rdma_bench::compare::{
    Case, Effort, Goals, Network, Perftest, Program, compare, heading, layered, layers_heading,
    layers_line, line,
};
use rdma_bench::machine::Machine;
use rdma_core::{AddressChoice, Context, Error};
use serde_json::Value;

/// Measures rdma-core and, where perftest is installed, perftest, in turns; then every layer.
#[derive(Debug, Parser)]
struct Options {
    /// Every size and long runs, with a verdict: whether every goal is met.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Few sizes and short runs: the tables without a verdict. It is what is done without --full.
    #[arg(long)]
    quick: bool,
    /// A directory for a JSON file of every test.
    #[arg(long, value_name = "DIR")]
    json: Option<PathBuf>,
    /// Only tests with this in their names, as in send_lat_8.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only the sizes with a goal, and not the layers.
    #[arg(long)]
    judged: bool,
    /// How near to perftest's the figures must be.
    #[arg(long, value_enum, default_value = "wide")]
    goals: GoalsName,
    /// What cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

/// [`Goals`] by name.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum GoalsName {
    /// Latency at most 1.10 times, bandwidth at least 0.90 times, at four sizes.
    Wide,
    /// At 8 bytes latency at most 1.03 and rate at least 0.97 times, at 64 KiB bandwidth at least
    /// 0.98 times, by seven pairs or more.
    Close,
}

impl From<GoalsName> for Goals {
    fn from(name: GoalsName) -> Self {
        match name {
            GoalsName::Wide => Self::Wide,
            GoalsName::Close => Self::Close,
        }
    }
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

/// Where and with what to measure.
struct Bench<'o> {
    options: &'o Options,
    effort: Effort,
    goals: Goals,
    network: Network,
    machine: Machine,
    perftest: Result<Perftest, &'static str>,
    program: PathBuf,
}

/// What became of the cases.
#[derive(Debug, Default)]
struct Tally {
    failed: usize,
    judged: usize,
    missed: usize,
}

/// Runs every case. Returns whether all ran and, in a full run, met their goals.
fn run(options: &Options) -> anyhow::Result<bool> {
    let (network, perftest) = network()?;
    let bench = Bench {
        options,
        effort: if options.full {
            Effort::Full
        } else {
            Effort::Quick
        },
        goals: options.goals.into(),
        network,
        machine: Machine::look(),
        perftest,
        program: env!("CARGO_BIN_EXE_rdma-bench").into(),
    };
    bench.describe();
    if let Some(directory) = &options.json {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let cases = bench.wanted(Case::all(bench.effort, bench.goals));
    let of_layers = match options.judged {
        true => Vec::new(),
        false => bench.wanted(Case::of_layers(bench.effort)),
    };
    if cases.is_empty() && of_layers.is_empty() {
        bail!("no test has {:?} in its name", options.only);
    }
    let mut tally = Tally::default();
    if !cases.is_empty() {
        println!("{}", heading());
        bench.compare(cases, &mut tally)?;
    }
    if !of_layers.is_empty() {
        println!("\nthe layers, in turns, with their defaults; echoes are whole round trips");
        println!("{}", layers_heading());
        bench.compare_layers(of_layers, &mut tally)?;
    }
    let Tally {
        failed,
        judged,
        missed,
    } = tally;
    println!("\ngoals: {judged} judged, {missed} missed; tests that did not run: {failed}");
    if !options.full && missed > 0 {
        println!("short runs on a busy machine say little: the full run decides");
    }
    Ok(failed == 0 && (!options.full || missed == 0))
}

impl Bench<'_> {
    fn wanted(&self, cases: Vec<Case>) -> Vec<Case> {
        let wanted = |case: &Case| {
            let named = |text: &String| case.to_string().contains(text);
            self.options.only.as_ref().is_none_or(named)
                && (!self.options.judged || self.goals.of(case).is_some())
        };
        cases.into_iter().filter(wanted).collect()
    }

    /// rdma-core and perftest.
    fn compare(&self, cases: Vec<Case>, tally: &mut Tally) -> anyhow::Result<()> {
        let ours = Program::Ours(self.program.clone(), Layer::Core);
        let peer = self.perftest.as_ref().ok().map(|_| Program::Perftest);
        for case in cases {
            match compare(
                case,
                &self.network,
                (&ours, peer.as_ref()),
                (self.effort, self.goals),
            ) {
                Ok(comparison) => {
                    println!("{}", line(&comparison));
                    tally.judged += usize::from(comparison.is_met().is_some());
                    tally.missed += usize::from(comparison.is_met() == Some(false));
                    let perftest = self.perftest.as_ref().ok();
                    let document = comparison.document(&self.network, &self.machine, perftest);
                    self.write(&format!("core_{case}"), &document)?;
                }
                Err(error) => tally.fail(&case, &error),
            }
        }
        Ok(())
    }

    /// The layers.
    fn compare_layers(&self, cases: Vec<Case>, tally: &mut Tally) -> anyhow::Result<()> {
        for case in cases {
            match layered(case, &self.network, &self.program, self.effort) {
                Ok(layered) => {
                    println!("{}", layers_line(&layered));
                    let document = layered.document(&self.network, &self.machine);
                    self.write(&format!("layers_{case}"), &document)?;
                }
                Err(error) => tally.fail(&case, &error),
            }
        }
        Ok(())
    }

    fn describe(&self) {
        let Self {
            network, machine, ..
        } = self;
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
        match &self.perftest {
            Ok(perftest) => println!("perftest: {}", perftest.version),
            Err(reason) => println!("perftest {reason}: rdma-core alone"),
        }
    }

    fn write(&self, name: &str, document: &Value) -> anyhow::Result<()> {
        let Some(directory) = &self.options.json else {
            return Ok(());
        };
        let path = directory.join(format!("{name}.json"));
        let text = serde_json::to_string(document)?;
        fs::write(&path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

impl Tally {
    fn fail(&mut self, case: &Case, error: &rdma_bench::Error) {
        self.failed += 1;
        let test = case.test.to_string();
        println!("{test:<12}{:>9}  FAILED: {error}", case.size);
    }
}

/// The device and address that rdma-core chooses, and perftest if it can use them.
fn network() -> anyhow::Result<(Network, Result<Perftest, &'static str>)> {
    let context = match Context::open_default() {
        Err(
            error @ (Error::NoDevice | Error::NoUsableDevice { .. } | Error::NoUsablePort { .. }),
        ) => {
            bail!("{error}\n`cargo xtask bench` brings a device and runs this on it");
        }
        // The list cannot be read where the kernel knows no RDMA at all.
        Err(error @ Error::Verb { .. }) => {
            bail!(
                "no RDMA device can be used: {error}\n`cargo xtask bench` brings a device and runs this on it"
            );
        }
        outcome => outcome?,
    };
    let address = context.address(AddressChoice::default())?;
    // Linked into this program alone, softroce is not there for others.
    let preloaded = env::var_os("LD_PRELOAD")
        .is_some_and(|libraries| libraries.to_string_lossy().contains("softroce"));
    let perftest = if context.device().is_emulated() && !preloaded {
        Err("does not see the device, which `cargo xtask bench` preloads")
    } else {
        Perftest::find().ok_or("is not installed")
    };
    let network = Network {
        device: context.name().to_owned(),
        port: address.port,
        gid_index: address.gid_index,
        mtu: address.mtu.bytes(),
    };
    Ok((network, perftest))
}
