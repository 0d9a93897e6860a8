//! Runs many schedules of the simulated network, or one of them with a trace of every packet:
//! ```text
//! cargo run -p softroce --release --features sim --example simulate -- --schedules 10000
//! cargo run -p softroce --release --features sim --example simulate -- --seed 4711 --trace
//! ```

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::Instant;

use softroce::sim::{Outcome, Schedule, run_all};

const USAGE: &str = "simulate [--seed FIRST] [--schedules COUNT] [--trace]

  --seed FIRST        the first seed [0]
  --schedules COUNT   how many schedules, of this seed and those behind it [1 with --seed, else 1000]
  --trace             runs one schedule, and prints what it is and every packet and completion";

struct Options {
    seed: Option<u64>,
    schedules: Option<u64>,
    trace: bool,
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let first = options.seed.unwrap_or(0);
    let count = match (options.schedules, options.seed) {
        (Some(count), _) => count,
        (None, Some(_)) => 1,
        (None, None) => 1000,
    };
    let start = Instant::now();
    let result = if options.trace {
        let schedule = Schedule::of_seed(first);
        let mut out = BufWriter::new(io::stdout().lock());
        // A reader that has seen enough closes the pipe.
        let _ = writeln!(out, "{schedule:#?}");
        schedule.run(Some(&mut |line| {
            let _ = writeln!(out, "{line}");
        }))
    } else {
        run_all(first, count)
    };
    match result {
        Ok(sum) => {
            report(&sum);
            println!("{:.1} s", start.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn report(sum: &Outcome) {
    println!(
        "{} requests: {} successful, {} queue pairs failed, {} requests failed or flushed",
        sum.requests, sum.completed, sum.failed, sum.flushed
    );
    println!(
        "{} packets: {} lost or changed, {} doubled or late; digest {:016x}",
        sum.traffic.packets, sum.traffic.lost, sum.traffic.disturbed, sum.digest
    );
}

fn options() -> Option<Options> {
    let mut options = Options {
        seed: None,
        schedules: None,
        trace: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seed" => options.seed = Some(arguments.next()?.parse().ok()?),
            "--schedules" => options.schedules = Some(arguments.next()?.parse().ok()?),
            "--trace" => options.trace = true,
            _ => return None,
        }
    }
    Some(options)
}
