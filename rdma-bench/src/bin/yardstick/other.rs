//! Starts the second process of a measurement, and exchanges numbers with it through shared memory.

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::Role;
use crate::system::Shared;

/// Maximum time that a process of a measurement waits until the other process is ready, or polls
/// for a change by the other process. After this time, the measurement fails.
const LIMIT: Duration = Duration::from_secs(10);
/// Number of polls of a condition between two readings of the clock. Reading the clock takes long
/// compared with a poll.
const POLLS: u32 = 1 << 14;

/// Indices of the words of the shared memory. Each word has its own cache lines.
pub(crate) mod word {
    /// Index of the shared word by which the second process reports that it is ready. Until then,
    /// the value is 0. Afterwards, the value is the second process's UDP port, the address of its
    /// memory, or 1 if the measurement needs neither number.
    pub(crate) const READY: usize = 0;
    /// Index of the shared word by which the measuring process passes a number to the second
    /// process. In a measurement of datagrams, the number is the UDP port of the measuring process.
    /// In a measurement of a ring buffer, the number is the number of writes so far.
    pub(crate) const PORT: usize = 1;
    /// Index, in the shared memory, of the word that changes during the measurement. To measure the
    /// round trip of a cache line, both processes increment the word in turn. In other
    /// measurements, the word contains the number of bytes or writes that the second process has
    /// received.
    pub(crate) const LINE: usize = 2;
    /// Number of atomic words at the start of the shared memory, by which the two processes of a
    /// measurement coordinate.
    pub(crate) const COUNT: usize = 3;
}

/// A handle to the second process of a measurement, which answers this process or receives its
/// data. The second process is killed when the handle is dropped.
#[derive(Debug)]
pub(crate) struct Other {
    child: Child,
    shared: Shared,
}

impl Other {
    /// Starts this program again as the second process of a measurement. `role` is the task of the
    /// second process, and `size` is the number of bytes of an operation. `ends` become its
    /// standard input and output, for instance two eventfds.
    pub(crate) fn start(role: Role, size: usize, ends: [Stdio; 2]) -> anyhow::Result<Self> {
        Self::start_with(role, size, ends, 0)
    }

    /// Starts the second process as [`Self::start`] does. The memory that both processes share has
    /// `bytes` additional bytes after the [`word::COUNT`] atomic words at its start.
    pub(crate) fn start_with(
        role: Role,
        size: usize,
        ends: [Stdio; 2],
        bytes: usize,
    ) -> anyhow::Result<Self> {
        let shared = Shared::with_words_and_bytes(word::COUNT, bytes)?;
        let name = role.to_possible_value().context("the role has no name")?;
        let [input, output] = ends;
        let child = Command::new(env::current_exe()?)
            .args(["other", name.get_name(), &shared.path()])
            .arg(size.to_string())
            .stdin(input)
            .stdout(output)
            .spawn()
            .context("starting the other process")?;
        Ok(Self { child, shared })
    }

    /// Returns the memory that this process shares with the process that it has started. The memory
    /// begins with words, whose indices are the constants in [`word`].
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the process ID of the second process of the measurement.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the second process of the measurement is ready: until it has set the shared word
    /// [`word::READY`] to a value other than 0. Returns this value, for instance its UDP port.
    pub(crate) fn ready(&mut self) -> anyhow::Result<u64> {
        let begun = Instant::now();
        loop {
            let told = self.shared.load(word::READY);
            if told != 0 {
                return Ok(told);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the other process ended with {status}");
            }
            if begun.elapsed() > LIMIT {
                bail!("the other process did not start in time");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Has no effect if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls `poll` without a pause until it returns a value, and returns the value. Fails after
/// [`LIMIT`].
#[inline]
pub(crate) fn spin<T>(mut poll: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let mut begun = None;
    let mut polls = 0_u32;
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        polls += 1;
        if polls.is_multiple_of(POLLS) && begun.get_or_insert_with(Instant::now).elapsed() > LIMIT {
            bail!(
                "the other process did not respond for {} s",
                LIMIT.as_secs()
            );
        }
    }
}
