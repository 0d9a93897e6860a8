//! The runner: the process that gives cases to workers and prints the report.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::Case;
use super::arguments::Arguments;
use super::report::{Counts, Verdict};

/// Maximum time that a worker needs to open the device.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Maximum time until a process ends after the request to end.
const END_LIMIT: Duration = Duration::from_secs(5);

pub(crate) fn run(cases: &[Case], arguments: &Arguments) -> ExitCode {
    let selected: Vec<_> = cases
        .iter()
        .filter(|case| arguments.selects(&case.name))
        .collect();
    if arguments.list {
        for case in &selected {
            println!("{}: test", case.name);
        }
        println!("\n{} tests, 0 benchmarks", selected.len());
        return ExitCode::SUCCESS;
    }

    let begin = Instant::now();
    println!("\nrunning {} tests", selected.len());
    let (worker, mut device) = match Worker::start(arguments) {
        Ok(started) => started,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let mut worker = Some(worker);
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    for case in &selected {
        print!("test {} ... ", case.name);
        // The name of the case must be visible even if the machine crashes.
        let _ = std::io::stdout().flush();
        let verdict = if case.long && !arguments.long {
            Verdict::Ignored("only with --long".to_owned())
        } else {
            on_worker(&mut worker, case, arguments, &mut device)
        };
        println!("{verdict}");
        counts.add(&verdict);
        let failed = matches!(verdict, Verdict::Failed(_) | Verdict::Deviation(_));
        if let Verdict::Failed(problem) = verdict {
            failures.push((&case.name, problem));
        }
        // A failed case may have left something behind.
        if failed || arguments.isolate {
            drop(worker.take());
        }
    }
    drop(worker);

    if !failures.is_empty() {
        println!("\nfailures:\n");
        for (name, problem) in &failures {
            println!("---- {name} ----\n{problem}\n");
        }
        println!("failures:");
        for (name, _) in &failures {
            println!("    {name}");
        }
    }
    let Counts {
        passed,
        failed,
        ignored,
        deviations,
    } = counts;
    println!(
        "\n{device}: {passed} cases passed, {failed} failed, {deviations} deviate as documented, \
         {ignored} ignored"
    );
    println!(
        "\ntest result: {}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
         {} filtered out; {deviations} deviations; finished in {:.2}s\n",
        if failed == 0 { "ok" } else { "FAILED" },
        cases.len() - selected.len(),
        begin.elapsed().as_secs_f64(),
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(101)
    }
}

/// Runs a case on the present worker, or on a new one.
fn on_worker(
    slot: &mut Option<Worker>,
    case: &Case,
    arguments: &Arguments,
    device: &mut String,
) -> Verdict {
    let worker = match slot {
        Some(worker) => worker,
        None => match Worker::start(arguments) {
            Ok((worker, name)) => {
                *device = name;
                slot.insert(worker)
            }
            Err(problem) => return Verdict::Failed(problem),
        },
    };
    match worker.run(case) {
        Ok(verdict) => verdict,
        Err(problem) => {
            let ended = worker.end();
            *slot = None;
            Verdict::Failed(format!("{problem}; {ended}"))
        }
    }
}

struct Worker {
    child: Child,
    names: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    /// Starts a worker. Returns the worker and the name of its device.
    fn start(arguments: &Arguments) -> Result<(Self, String), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.arg("--worker");
        if let Some(device) = &arguments.device {
            command.args(["--device", device]);
        }
        if arguments.long {
            command.arg("--long");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a process: {error}"))?;
        let (sender, answers) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    // The output of a library is passed on.
                    match line.split_once('\u{1e}') {
                        Some((_, answer)) if sender.send(answer.to_owned()).is_ok() => {}
                        Some(_) => break,
                        None => eprintln!("{line}"),
                    }
                }
            });
        }
        let mut worker = Self {
            names: child.stdin.take(),
            child,
            answers,
        };
        let greeting = match worker.answers.recv_timeout(START_LIMIT) {
            Ok(greeting) => greeting,
            Err(_) => return Err(format!("no device was opened; {}", worker.end())),
        };
        match greeting.strip_prefix("device ") {
            Some(name) => Ok((worker, name.to_owned())),
            None => Err(greeting.trim_start_matches("none ").to_owned()),
        }
    }

    fn run(&mut self, case: &Case) -> Result<Verdict, String> {
        let names = self.names.as_mut().ok_or("the process is ending")?;
        writeln!(names, "{}", case.name).map_err(|error| error.to_string())?;
        match self.answers.recv_timeout(case.limit) {
            Ok(line) => Verdict::from_line(&line).ok_or(format!("a strange answer: {line}")),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("did not end within {} s", case.limit.as_secs()))
            }
            Err(RecvTimeoutError::Disconnected) => Err("the process died".to_owned()),
        }
    }

    /// Ends the process, and returns a description of its exit status.
    fn end(&mut self) -> String {
        drop(self.names.take());
        for killed in [false, true] {
            let end = Instant::now()
                + if killed {
                    END_LIMIT
                } else {
                    Duration::from_millis(500)
                };
            while Instant::now() < end {
                match self.child.try_wait() {
                    Ok(Some(status)) if killed => return format!("killed, {status}"),
                    Ok(Some(status)) => return status.to_string(),
                    Ok(None) => thread::sleep(Duration::from_millis(2)),
                    Err(error) => return error.to_string(),
                }
            }
            // The process may be gone by now; try_wait tells.
            let _ = self.child.kill();
        }
        "it cannot be killed".to_owned()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}
