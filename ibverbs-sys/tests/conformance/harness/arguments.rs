//! The command line: the applicable options of the standard test harness.

use std::ffi::OsString;

/// Cases to run, and their settings.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// Runs only cases whose names contain one of these strings. If empty, runs all cases.
    pub(crate) filters: Vec<String>,
    /// Runs no case whose name contains one of these strings.
    pub(crate) skip: Vec<String>,
    /// A filter is a whole name.
    pub(crate) exact: bool,
    /// Only name the cases.
    pub(crate) list: bool,
    /// A process for each case.
    pub(crate) isolate: bool,
    /// Also runs cases that need minutes or gigabytes.
    pub(crate) long: bool,
    /// The name of the device, which overrides `RDMA_DEVICE`.
    pub(crate) device: Option<String>,
    /// Set in a worker: a process that runs cases for the runner.
    pub(crate) worker: bool,
}

impl Arguments {
    pub(crate) fn from_command_line() -> Result<Self, String> {
        Self::parse(std::env::args_os().skip(1))
    }

    fn parse(words: impl Iterator<Item = OsString>) -> Result<Self, String> {
        let mut arguments = Self::default();
        let mut words = words.map(|word| {
            word.into_string()
                .map_err(|word| format!("{} is not UTF-8", word.display()))
        });
        while let Some(word) = words.next().transpose()? {
            let (name, mut attached) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (&*word, None),
            };
            let mut value = || match attached.take() {
                Some(value) => Ok(value),
                None => words
                    .next()
                    .unwrap_or_else(|| Err(format!("{name} takes a value"))),
            };
            match name {
                "--exact" => arguments.exact = true,
                "--list" => arguments.list = true,
                "--isolate" => arguments.isolate = true,
                "--long" | "--include-ignored" => arguments.long = true,
                "--worker" => arguments.worker = true,
                "--skip" => arguments.skip.push(value()?),
                "--device" => arguments.device = Some(value()?),
                // Options of the standard harness that have no effect here.
                "--nocapture" | "--no-capture" | "--show-output" | "--quiet" | "-q" | "--test" => {}
                "--test-threads" | "--color" | "--format" => drop(value()?),
                _ if name.starts_with('-') => return Err(format!("{name} is not known")),
                _ => arguments.filters.push(word),
            }
        }
        Ok(arguments)
    }

    /// Returns whether the case `name` is selected.
    pub(crate) fn selects(&self, name: &str) -> bool {
        let matches = |filter: &String| match self.exact {
            true => name == filter,
            false => name.contains(&**filter),
        };
        (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skip.iter().any(matches)
    }
}
