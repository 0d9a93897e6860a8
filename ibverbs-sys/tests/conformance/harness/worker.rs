//! The worker: the process that reads the name of a case, runs it, and writes a line with the
//! verdict.

use std::any::Any;
use std::cell::RefCell;
use std::io::{BufRead, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use super::Case;
use super::arguments::Arguments;
use super::check::Ignored;
use super::device::{Device, set_max_wait};
use super::report::Verdict;
use crate::deviations;

thread_local! {
    /// The location and the message of this thread's last panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

pub(crate) fn run(cases: &[Case], arguments: &Arguments) -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let text = words(info.payload());
        PANIC.set(format!("{place}: {text}"));
    }));

    let wanted = arguments.device.as_deref();
    let opened = panic::catch_unwind(|| {
        let device = Device::open(wanted);
        (device.name().to_owned(), device.driver())
    });
    let Ok((name, driver)) = opened else {
        answer(&format!("none {}", PANIC.take()));
        return ExitCode::FAILURE;
    };
    answer(&format!("device {name} ({driver})"));
    for line in std::io::stdin().lock().lines() {
        let Ok(name) = line else { break };
        let verdict = match cases.iter().find(|case| case.name == name) {
            Some(case) => judged(case, wanted, &driver),
            None => Verdict::Failed("there is no such case".to_owned()),
        };
        answer(&verdict.to_line());
    }
    ExitCode::SUCCESS
}

/// Writes a line to the runner. Ignores errors: the runner has ended, and this process will end
/// too.
fn answer(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\u{1e}{line}").and_then(|()| out.flush());
}

/// Runs a case on a context of its own. Closing the context is a part of the case.
fn judged(case: &Case, wanted: Option<&str>, driver: &str) -> Verdict {
    if let Some(verdict) = deviations::fatal(&case.name, driver) {
        return verdict;
    }
    set_max_wait(deviations::max_wait(&case.name, driver));
    let ended = panic::catch_unwind(AssertUnwindSafe(|| case.run(&Device::open(wanted))));
    let verdict = match ended {
        Ok(()) => Verdict::Passed,
        Err(payload) => match payload.downcast::<Ignored>() {
            Ok(ignored) => Verdict::Ignored(ignored.0),
            Err(_) => Verdict::Failed(PANIC.take()),
        },
    };
    deviations::judge(&case.name, driver, verdict)
}

fn words(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(|text| &**text))
        .unwrap_or("a panic without words")
}
