//! Runs a test between two processes, from the exchange of the plan (the parameters) to the report.

use std::io::Write;

use serde_json::Value;

use crate::asynchronous;
use crate::control::{self, Control};
use crate::core;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::plan::{Layer, Length, Plan};
use crate::recorder::Recorder;
use crate::report::{Header, Listing, Properties, Style, columns, json};
use crate::rpc;
use crate::settings::Settings;
use crate::statistics::{Bandwidth, Bulk, Latency};
use crate::test::{Metric, Verb};

/// The role of a process in a test: server or client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The process that waits for the client.
    Server,
    /// The process that connects to the server and starts the test.
    Client,
}

/// The result that one of the two processes of a test has measured for one message size.
#[derive(Debug, Clone, PartialEq)]
pub enum Measured {
    /// The latencies of operations.
    Latency(Latency),
    /// The latencies of operations while other messages were sent, and the bandwidth of those
    /// messages.
    Beside(Latency, Bulk),
    /// The rate of operations.
    Bandwidth(Bandwidth),
    /// No result: only the peer measures.
    Nothing,
}

impl Measured {
    /// Returns the latencies that `recorder` recorded, each divided by `parts`. In tests that
    /// report half of a round trip, `parts` is 2.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for too few samples.
    pub fn latency(recorder: &Recorder, parts: u32) -> Result<Self> {
        latency(recorder, parts).map(Self::Latency)
    }

    /// Returns the result of a latency test during which other messages were sent. `recorder` has
    /// the samples of the latency test, each of which is divided by `parts` (2 to report half of a
    /// round trip). `bulk` is the result for the other messages.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if there are too few samples, or no other message was sent during the
    /// test.
    pub fn beside(recorder: &Recorder, parts: u32, bulk: Bulk) -> Result<Self> {
        let latency = latency(recorder, parts)?;
        if bulk.bandwidth.iterations == 0 {
            return Err(Error::Unsupported(
                "the test ended before a message of --beside was complete: use a larger -n".into(),
            ));
        }
        Ok(Self::Beside(latency, bulk))
    }
}

fn latency(recorder: &Recorder, parts: u32) -> Result<Latency> {
    let latency = recorder.latency(parts);
    latency.ok_or_else(|| Error::Unsupported("the test ended with too few samples".into()))
}

/// A connection between the two processes of a test. Each layer under test implements this trait
/// for its connections, to measure its operations over them.
pub trait Measure {
    /// Returns the properties of the connection, such as its device, which the report of the test
    /// shows.
    fn properties(&self) -> &Properties;

    /// Runs the test with messages of `size` bytes, and returns the result. An implementation calls
    /// [`Control::barrier`] once, when this process is ready to receive.
    ///
    /// # Errors
    ///
    /// The errors of the layer, and of the control connection.
    fn measure(&mut self, size: usize, control: &mut Control) -> Result<Measured>;
}

/// Runs a test: as the server if `host` is `None`, else as the client of the server on `host`. The
/// server listens on the TCP port `port`. Prints the report to `out` in the format `style`, and
/// returns the results as JSON.
///
/// # Errors
///
/// The error that ended the test early.
pub fn run(
    plan: &Plan,
    settings: &Settings,
    (host, port): (Option<&str>, u16),
    style: Style,
    out: &mut dyn Write,
) -> Result<Value> {
    let printing = "printing the report";
    let (role, mut control) = match host {
        Some(host) => {
            let control = control::connect(host, port, plan, settings.timeout)?;
            (Role::Client, control)
        }
        None => {
            let listener = control::listen(port)?;
            columns::write_waiting(out).map_err(Error::output(printing))?;
            let control = control::accept(&listener, plan, settings.timeout)?;
            (Role::Server, control)
        }
    };
    let outcome = measure(plan, settings, (role, style), &mut control, out);
    outcome.map_err(|error| {
        let error = control.root_cause(error);
        control.fail(&error);
        error
    })
}

fn measure(
    plan: &Plan,
    settings: &Settings,
    (role, style): (Role, Style),
    control: &mut Control,
    out: &mut dyn Write,
) -> Result<Value> {
    let mut connection: Box<dyn Measure> = match plan.layer {
        Layer::Core => Box::new(core::Connection::establish(role, plan, settings, control)?),
        Layer::Async => {
            let connection = asynchronous::Connection::establish(role, plan, settings, control)?;
            Box::new(connection)
        }
        Layer::Rpc => Box::new(rpc::Connection::establish(role, plan, settings, control)?),
    };
    let header = Header::new(plan, settings, role, connection.properties());
    let printing = "printing the report";
    write!(out, "{header}").map_err(Error::output(printing))?;
    let over_time = matches!(plan.length, Length::Duration(_));
    let silent = role == Role::Server
        && plan.test.metric == Metric::Latency
        && !plan.test.is_half_round_trip();
    if !silent {
        let heading = columns::heading(plan.test.metric, over_time, style.units);
        writeln!(out, "{heading}").map_err(Error::output(printing))?;
    }
    let mut rows = Vec::new();
    for &size in &plan.sizes {
        let measured = connection.measure(size, control)?;
        let shown = match measured {
            // For one-sided operations, the server reports the client's result.
            Measured::Nothing => match control.wait_for_result()? {
                Some(theirs) => Measured::Bandwidth(theirs),
                None => Measured::Nothing,
            },
            Measured::Bandwidth(own) => {
                control.finish(Some(own.clone()))?;
                Measured::Bandwidth(own)
            }
            latency @ (Measured::Latency(_) | Measured::Beside(..)) => {
                control.finish(None)?;
                latency
            }
        };
        print(&shown, size, style, out).map_err(Error::output(printing))?;
        rows.extend(json::row(&shown, size, style.units));
    }
    writeln!(out, "{}", columns::RULE).map_err(Error::output(printing))?;
    let machine = Machine::detect();
    Ok(json::document(&header, &machine, rows, style.units))
}

fn print(
    measured: &Measured,
    size: usize,
    style: Style,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    match measured {
        Measured::Nothing => Ok(()),
        Measured::Bandwidth(bandwidth) => {
            writeln!(out, "{}", columns::bandwidth(bandwidth, size, style.units))?;
            match bandwidth.calls_per_message {
                Some(calls) => writeln!(out, " Calls per message: {calls:.1}"),
                None => Ok(()),
            }
        }
        Measured::Beside(latency, bulk) => {
            let latency = Measured::Latency(latency.clone());
            print(&latency, size, style, out)?;
            let heading = columns::heading(Metric::Bandwidth, false, style.units);
            let line = columns::bandwidth(&bulk.bandwidth, bulk.size, style.units);
            writeln!(out, " Beside these messages:\n{heading}\n{line}")
        }
        Measured::Latency(latency) => {
            let heading = columns::heading(Metric::Latency, false, style.units);
            match style.listing {
                Listing::None => {}
                Listing::Sorted | Listing::Unsorted if latency.samples.is_empty() => {}
                listing => {
                    columns::write_samples(latency, listing, out)?;
                    writeln!(out, "{}\n{heading}", columns::RULE)?;
                }
            }
            writeln!(out, "{}", columns::latency(latency, size))
        }
    }
}

/// Checks that the settings can be combined with the test and its layer.
///
/// # Errors
///
/// [`Error::Unsupported`], which names the first setting that cannot be combined.
pub fn check_settings(plan: &Plan, settings: &Settings) -> Result<()> {
    let refuse = |reason: &str| Err(Error::Unsupported(reason.into()));
    let most = match plan.test.metric {
        Metric::Latency => 1,
        Metric::Bandwidth => settings.tx_depth,
    };
    if !(1..=most).contains(&settings.post_list) {
        return Err(Error::Unsupported(format!(
            "-l takes 1 to {most} here: a list fits into the send queue, and latency has none"
        )));
    }
    let has_pipeline = plan.layer == Layer::Async
        && matches!(plan.test.verb, Verb::Write | Verb::Read)
        && plan.test.metric == Metric::Bandwidth
        && !plan.immediate;
    if settings.pipeline && !has_pipeline {
        return refuse(
            "--pipeline is only for write_bw and read_bw of --layer async, without \
             --write_with_imm",
        );
    }
    let core_writes = plan.layer == Layer::Core
        && plan.test.verb == Verb::Write
        && plan.test.metric == Metric::Bandwidth
        && !plan.immediate;
    if !core_writes && !settings.further_servers.is_empty() {
        return refuse("--also is only for write_bw of --layer core, without --write_with_imm");
    }
    if plan.layer != Layer::Core {
        if settings.post_list != 1 {
            return refuse("-l is only for --layer core");
        }
        if settings.events {
            return refuse(
                "-e is only for --layer core: for the other layers, use --completion event",
            );
        }
        if settings.cq_moderation.is_some()
            || settings.inline.is_some()
            || settings.outstanding_reads.is_some()
        {
            return refuse(
                "-Q, -I and -o are only for --layer core: the other layers determine these values",
            );
        }
    } else if settings.completion.is_some() || settings.threads != 1 {
        return refuse("--completion and --threads are only for --layer async and rpc");
    }
    if settings.events && plan.beside.is_some() {
        return refuse("-e and --beside cannot be combined: both queue pairs are polled");
    }
    if settings.events && plan.test.verb == Verb::Write && !plan.immediate {
        return refuse(
            "the peer of a write gets no event: -e is only for send, read, atomics and \
             --write_with_imm",
        );
    }
    Ok(())
}
