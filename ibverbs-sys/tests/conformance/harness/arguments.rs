//! The command line: that of the standard test harness, as far as it means something here.

use std::ffi::OsString;

/// Cases to run, and their settings.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// Only cases with one of these in their names; all of them where there is none.
    pub(crate) filters: Vec<String>,
    /// No case with one of these in its name.
    pub(crate) skip: Vec<String>,
    /// A filter is a whole name.
    pub(crate) exact: bool,
    /// Only name the cases.
    pub(crate) list: bool,
    /// A process for each case.
    pub(crate) isolate: bool,
    /// Also what takes minutes or gigabytes.
    pub(crate) long: bool,
    /// The device, instead of the one that `RDMA_DEVICE` names.
    pub(crate) device: Option<String>,
    /// This is the process that runs cases for another one.
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
                // The standard harness's; there is nothing to choose here.
                "--nocapture" | "--no-capture" | "--show-output" | "--quiet" | "-q" | "--test" => {}
                "--test-threads" | "--color" | "--format" => drop(value()?),
                _ if name.starts_with('-') => return Err(format!("{name} is not known")),
                _ => arguments.filters.push(word),
            }
        }
        Ok(arguments)
    }

    /// Returns whether the case of this name was requested.
    pub(crate) fn selects(&self, name: &str) -> bool {
        let matches = |filter: &String| match self.exact {
            true => name == filter,
            false => name.contains(&**filter),
        };
        (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skip.iter().any(matches)
    }
}
