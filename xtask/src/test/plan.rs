//! The files that transfer a list of test programs into the guest, and their outcomes out of the
//! guest.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::libtest::Counts;
use super::program::{Outcome, Program};

/// Writes the test programs `programs` to the file `path`, from which `cargo xtask run-plan` reads
/// them.
pub(crate) fn write(path: &Path, programs: &[Program]) -> anyhow::Result<()> {
    let list: Vec<Value> = programs
        .iter()
        .map(program_to_json)
        .collect::<Result<_, _>>()?;
    fs::write(path, Value::from(list).to_string())
        .with_context(|| format!("writing {}", path.display()))
}

/// Reads the list of test programs that [`write()`] has written to the file `plan`.
pub(crate) fn read(plan: &Path) -> anyhow::Result<Vec<Program>> {
    let text = fs::read(plan).with_context(|| format!("reading {}", plan.display()))?;
    let list: Vec<Value> = serde_json::from_slice(&text)?;
    list.iter()
        .map(program_from_json)
        .collect::<Option<_>>()
        .context("the file is not a plan")
}

/// Appends the outcome of a test program to the file `path` as a line of JSON. [`outcomes`] reads
/// this file.
pub(crate) fn append(path: &Path, outcome: &Outcome) -> anyhow::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    writeln!(file, "{}", outcome_to_json(outcome))?;
    Ok(())
}

/// Reads the outcomes of test programs that [`append`] has written to the file `path`. Returns an
/// empty list if the file does not exist, which means that no program has ended.
pub(crate) fn outcomes(path: &Path) -> anyhow::Result<Vec<Outcome>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("reading {}", path.display()))?,
    };
    // The last line may be incomplete if the machine crashed.
    let values = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(values
        .filter_map(|value| outcome_from_json(&value))
        .collect())
}

fn program_to_json(program: &Program) -> anyhow::Result<Value> {
    let text = |value: &OsString| {
        let text = value.to_str().map(str::to_owned);
        text.with_context(|| format!("{} is not UTF-8", value.display()))
    };
    let command: Vec<String> = program.command.iter().map(text).collect::<Result<_, _>>()?;
    let mut environment = serde_json::Map::new();
    for (name, value) in &program.environment {
        environment.insert(text(name)?, text(value)?.into());
    }
    Ok(json!({
        "name": program.name,
        "command": command,
        "directory": text(&program.directory.clone().into())?,
        "environment": environment,
        "limit": program.limit.as_secs(),
    }))
}

fn program_from_json(value: &Value) -> Option<Program> {
    let words = value["command"].as_array()?.iter();
    let environment = value["environment"].as_object()?.iter();
    Some(Program {
        name: value["name"].as_str()?.to_owned(),
        command: words
            .map(|word| word.as_str().map(OsString::from))
            .collect::<Option<_>>()?,
        directory: value["directory"].as_str()?.into(),
        environment: environment
            .map(|(name, value)| Some((name.into(), value.as_str()?.into())))
            .collect::<Option<_>>()?,
        limit: Duration::from_secs(value["limit"].as_u64()?),
    })
}

fn outcome_to_json(outcome: &Outcome) -> Value {
    json!({
        "name": outcome.name,
        "passed": outcome.counts.passed,
        "failed": outcome.counts.failed,
        "ignored": outcome.counts.ignored,
        "problem": outcome.problem,
        "failed tests": outcome.failed,
        "ignored tests": outcome.ignored,
        "seconds": outcome.seconds,
    })
}

fn outcome_from_json(value: &Value) -> Option<Outcome> {
    Some(Outcome {
        name: value["name"].as_str()?.to_owned(),
        counts: Counts {
            passed: value["passed"].as_u64()?,
            failed: value["failed"].as_u64()?,
            ignored: value["ignored"].as_u64()?,
        },
        problem: value["problem"].as_str().map(str::to_owned),
        failed: {
            let names = value["failed tests"].as_array()?.iter();
            names
                .map(|name| Some(name.as_str()?.to_owned()))
                .collect::<Option<_>>()?
        },
        ignored: {
            let reasons = value["ignored tests"].as_object()?.iter();
            reasons
                .map(|(reason, count)| Some((reason.clone(), count.as_u64()?)))
                .collect::<Option<_>>()?
        },
        seconds: value["seconds"].as_f64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, script: &str) -> Program {
        Program {
            name: name.into(),
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            directory: "/".into(),
            environment: vec![("A".into(), "b=c".into())],
            limit: Duration::from_secs(60),
        }
    }

    #[test]
    fn programs_are_read_as_written() {
        let program = program("p", "true");
        let json = program_to_json(&program).unwrap();
        assert_eq!(program_from_json(&json), Some(program));
    }

    #[test]
    fn outcomes_are_read_as_written() {
        let outcome = Outcome {
            name: "rdma-core holes".into(),
            counts: Counts {
                passed: 1,
                failed: 2,
                ignored: 3,
            },
            problem: Some("died".into()),
            failed: vec!["a \"quoted\" name".into(), "b".into()],
            ignored: [("no device memory".to_owned(), 3)].into(),
            seconds: 0.5,
        };
        let json = outcome_to_json(&outcome);
        assert_eq!(outcome_from_json(&json), Some(outcome));
    }

    #[test]
    fn an_outcome_cut_short_is_left_out() {
        let directory = std::env::temp_dir().join(format!("xtask-plan-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("outcomes");
        assert_eq!(outcomes(&path).unwrap(), []);
        let first = Outcome::failed("first", "died", 0.0);
        append(&path, &first).unwrap();
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("{\"name\": \"sec");
        fs::write(&path, text).unwrap();
        let found = outcomes(&path);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found.unwrap(), [first]);
    }
}
