//! The other process, as the one that measures has it.

use std::env;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::Role;
use crate::system::Shared;

/// How long either process waits for the other at most.
const LIMIT: Duration = Duration::from_secs(10);
/// Looks between two looks at the clock.
const LOOKS: u32 = 1 << 14;

/// Words of the shared memory, each on cache lines of its own.
pub(crate) mod word {
    /// What the other process tells first: a port or an address, never 0.
    pub(crate) const READY: usize = 0;
    /// What the measuring process answers.
    pub(crate) const PORT: usize = 1;
    /// The line that goes to and fro, or how much has come.
    pub(crate) const LINE: usize = 2;
    /// How many there are.
    pub(crate) const COUNT: usize = 3;
}

/// The other process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Other {
    child: Child,
    shared: Shared,
}

impl Other {
    /// Starts it. Standard input and output are its way to get what is no memory.
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

    /// The memory of both.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for what it tells first.
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
        // Without effect on one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks until there is something, without a pause, but not for ever.
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
