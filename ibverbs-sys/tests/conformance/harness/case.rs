//! A case: a name, and a function that runs on a device.

use std::time::Duration;

use super::Device;

/// Maximum duration of a case, longer than its waits for events that do not happen.
const LIMIT: Duration = Duration::from_secs(150);

/// One requirement on a device.
#[derive(Clone)]
pub(crate) struct Case {
    /// `subject::what_is_so`.
    pub(crate) name: String,
    /// Maximum duration of the case.
    pub(crate) limit: Duration,
    /// Only with `--long`.
    pub(crate) long: bool,
    run: Run,
}

#[derive(Clone)]
enum Run {
    Plain(fn(&Device)),
    /// A row of a table: the function gets the number of the row.
    Row(fn(&Device, usize), usize),
}

impl Case {
    /// Creates a case with a function of its own.
    pub(crate) fn new(subject: &str, name: &str, run: fn(&Device)) -> Self {
        Self {
            name: format!("{subject}::{name}"),
            limit: LIMIT,
            long: false,
            run: Run::Plain(run),
        }
    }

    /// Creates the case for a row of a table.
    pub(crate) fn row(name: String, run: fn(&Device, usize), row: usize) -> Self {
        Self {
            name,
            limit: LIMIT,
            long: false,
            run: Run::Row(run, row),
        }
    }

    /// Makes the case run only with `--long`, with a limit of `minutes` minutes.
    pub(crate) fn long(mut self, minutes: u64) -> Self {
        self.long = true;
        self.limit = Duration::from_secs(60 * minutes);
        self
    }

    pub(crate) fn run(&self, device: &Device) {
        match self.run {
            Run::Plain(run) => run(device),
            Run::Row(run, row) => run(device, row),
        }
    }
}

/// The cases of a file, by the names of their functions; the subject is the module's name.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {{
        let path = module_path!();
        let subject = path.rsplit("::").next().unwrap_or(path);
        vec![$($crate::harness::Case::new(subject, stringify!($name), $name)),*]
    }};
}
pub(crate) use cases;
