//! [`Progress`]: a progress bar on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Minimum time between two updates of the bar: ten updates per second look smooth.
const INTERVAL: Duration = Duration::from_millis(100);
/// Length of the full bar, in characters. Short, so that the line with the file name and the rate
/// fits into most terminals.
const WIDTH: usize = 30;

/// A progress bar on standard error, which shows the copied part of a file.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    /// Number of bytes that an earlier copy has left at the receiver.
    first: u64,
    copied: u64,
    size: u64,
    begun: Instant,
    shown: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    pub(crate) fn new(name: &str, first: u64, size: u64, is_shown: bool) -> Self {
        Self {
            name: name.to_owned(),
            first,
            copied: first,
            size,
            begun: Instant::now(),
            shown: None,
            is_shown,
        }
    }

    /// Adds copied bytes, and updates the bar if the last update was long enough ago.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.copied += bytes as u64;
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= INTERVAL);
        if self.is_shown && is_due && stderr().is_terminal() {
            self.shown = Some(Instant::now());
            self.print('\r');
        }
    }

    /// Prints the bar for the last time, and ends the line.
    pub(crate) fn finish(&self) {
        if self.is_shown {
            self.print('\n');
        }
    }

    /// Prints the name, the bar, the percentage and the rate, followed by `end`.
    fn print(&self, end: char) {
        let share = self.copied as f64 / self.size.max(1) as f64;
        let filled = (share * WIDTH as f64) as usize;
        let rate = (self.copied - self.first) as f64 / self.begun.elapsed().as_secs_f64() / 1e6;
        let bar = format!(
            "{}{}",
            "#".repeat(filled),
            " ".repeat(WIDTH - filled.min(WIDTH))
        );
        let percent = share * 100.0;
        // A closed terminal must not stop the copy.
        let _ = write!(
            stderr(),
            "{} [{bar}] {percent:5.1} % {rate:8.0} MB/s{end}",
            self.name
        );
    }
}
