//! Compares the latency and bandwidth of rdma-core with those of perftest's C programs.
//!
//! `cargo xtask bench` provides an RDMA device and perftest, and runs this benchmark. Without
//! xtask, `cargo bench -p rdma-bench --bench verbs -- --full` runs it.

#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser;
use rdma_bench::Layer;
use rdma_bench::compare::{Case, Effort, Goal, Network, Perftest, Program, compare, heading, line};
use rdma_bench::limits::Verdict;
use rdma_bench::machine::Machine;
use rdma_core::Context;
use serde_json::Value;

/// Measures rdma-core and, if installed, perftest, in turns.
#[derive(Debug, Parser)]
struct Options {
    /// Measure every size with long runs, and judge whether every goal is met.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Measure few sizes with short runs, and judge no goal.
    #[arg(long)]
    quick: bool,
    /// The directory to which one JSON file for each test is written.
    #[arg(long, value_name = "DIR")]
    json: Option<PathBuf>,
    /// Measure only tests whose names contain this text, such as send_lat_8.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure only the message sizes that have a goal.
    #[arg(long)]
    judged: bool,
    /// Judge no goal: the benchmark `limits` judges softroce by goals of its own.
    #[arg(long, conflicts_with = "judged")]
    unjudged: bool,
    /// No effect: `cargo bench` passes this flag to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if !options.full && !options.quick {
        // Without arguments, as `cargo bench` runs it, this benchmark measures nothing.
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("verbs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The options of this benchmark, the device to measure, and the programs that measure.
struct Bench<'o> {
    options: &'o Options,
    effort: Effort,
    network: Network,
    machine: Machine,
    perftest: Result<Perftest, &'static str>,
    program: PathBuf,
}

/// The numbers of tests with each outcome, counted over the whole run.
#[derive(Debug, Default)]
struct Tally {
    failed: usize,
    judged: usize,
    missed: usize,
}

/// Runs every test that `options` selects. Returns whether all tests ran and, with `--full`, no
/// test missed its goal.
fn run(options: &Options) -> anyhow::Result<bool> {
    let context = Context::open_default()?;
    let network = Network::of(&context)?;
    let perftest = Perftest::find(&context);
    let bench = Bench {
        options,
        effort: if options.full {
            Effort::Full
        } else {
            Effort::Quick
        },
        network,
        machine: Machine::detect(),
        perftest,
        program: env!("CARGO_BIN_EXE_rdma-bench").into(),
    };
    bench.describe();
    if let Some(directory) = &options.json {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let cases = bench.wanted(Case::all(bench.effort));
    if cases.is_empty() {
        bail!("no test has {:?} in its name", options.only);
    }
    let mut tally = Tally::default();
    println!("{}", heading());
    bench.compare(cases, &mut tally)?;
    let Tally {
        failed,
        judged,
        missed,
    } = tally;
    if options.full && !options.unjudged {
        println!("\ngoals: {judged} judged, {missed} missed");
    }
    if failed > 0 {
        println!("\ntests that did not run: {failed}");
    }
    Ok(failed == 0 && missed == 0)
}

impl Bench<'_> {
    fn wanted(&self, cases: Vec<Case>) -> Vec<Case> {
        let wanted = |case: &Case| {
            let named = |text: &String| case.to_string().contains(text);
            self.options.only.as_ref().is_none_or(named)
                && (!self.options.judged || Goal::of(case).is_some())
        };
        cases.into_iter().filter(wanted).collect()
    }

    /// Returns the goal by which `case` is judged. Returns `None` if the options say that no goal
    /// is judged (`--quick`, `--unjudged`), and for a message size without a goal.
    fn goal(&self, case: &Case) -> Option<Goal> {
        let is_judged = self.options.full && !self.options.unjudged;
        is_judged.then(|| Goal::of(case)).flatten()
    }

    /// Runs each test of `cases` with rdma-core and perftest, prints the comparison, and counts the
    /// outcomes in `tally`.
    fn compare(&self, cases: Vec<Case>, tally: &mut Tally) -> anyhow::Result<()> {
        let ours = Program::Ours(self.program.clone(), Layer::Core);
        let peer = self.perftest.as_ref().ok().map(|_| Program::Perftest);
        for case in cases {
            match compare(
                case,
                &self.network,
                (&ours, peer.as_ref()),
                (self.effort, self.goal(&case)),
            ) {
                Ok(comparison) => {
                    println!("{}", line(&comparison));
                    let verdict = comparison.verdict();
                    tally.judged += usize::from(verdict.is_some());
                    tally.missed += usize::from(verdict == Some(Verdict::Missed));
                    let perftest = self.perftest.as_ref().ok();
                    let document = comparison.document(&self.network, &self.machine, perftest);
                    self.write(&format!("core_{case}"), &document)?;
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
            println!("both processes share one processor: results mostly show the scheduler");
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
