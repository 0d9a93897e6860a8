//! The second process of a measurement, as the measuring process uses it.

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::Role;
use crate::system::Shared;

/// Maximum time that either process waits for the other.
const LIMIT: Duration = Duration::from_secs(10);
/// Number of polls between two checks of the clock.
const LOOKS: u32 = 1 << 14;

/// Words of the shared memory, each on its own cache lines.
pub(crate) mod word {
    /// Set by the other process when it is ready: a port or an address, never 0.
    pub(crate) const READY: usize = 0;
    /// Set by the measuring process: its port.
    pub(crate) const PORT: usize = 1;
    /// The word that is sent back and forth, or the number of bytes received.
    pub(crate) const LINE: usize = 2;
    /// Number of words.
    pub(crate) const COUNT: usize = 3;
}

/// The other process, which is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Other {
    child: Child,
    shared: Shared,
}

impl Other {
    /// Starts the other process. `ends` become its standard input and output, by which it gets
    /// resources other than the shared memory.
    pub(crate) fn start(role: Role, size: usize, ends: [Stdio; 2]) -> anyhow::Result<Self> {
        let shared = Shared::new(word::COUNT)?;
        let name = role.to_possible_value().context("a role without a name")?;
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

    /// Returns the memory that both processes share.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the other process has set [`word::READY`], and returns the value.
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
                bail!("the other process does not start");
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

/// Polls `look` without a pause until it returns a value. Fails after [`LIMIT`].
#[inline]
pub(crate) fn spin<T>(mut look: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let mut begun = None;
    let mut looks = 0_u32;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        looks += 1;
        if looks.is_multiple_of(LOOKS) && begun.get_or_insert_with(Instant::now).elapsed() > LIMIT {
            bail!(
                "nothing came from the other process for {} s",
                LIMIT.as_secs()
            );
        }
    }
}
