//! Measures RDMA between two processes, with perftest's flags and columns.

#![forbid(unsafe_code)]

mod arguments;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use rdma_bench::session;

use arguments::{CommandLine, Request};

fn main() -> ExitCode {
    let request = match CommandLine::parse().request() {
        Ok(request) => request,
        Err(error) => {
            eprintln!("rdma-bench: {error:#}");
            return ExitCode::from(2);
        }
    };
    match run(&request) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The results that were measured before the failure are printed first.
            let _ = io::stdout().flush();
            eprintln!("rdma-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(request: &Request) -> anyhow::Result<()> {
    let end = (request.host.as_deref(), request.control_port);
    let mut out = io::stdout().lock();
    let document = session::run(
        &request.plan,
        &request.settings,
        end,
        request.style,
        &mut out,
    )?;
    if let Some(path) = &request.json {
        let text = serde_json::to_string_pretty(&document)?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
