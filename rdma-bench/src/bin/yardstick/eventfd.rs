//! Measures the round trip of a wakeup between two processes, which wake each other by eventfds.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::EventfdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};

use super::other::word;
use super::system::Shared;
use super::{Measured, Other, Role};

/// Measures the round trip of a wakeup between this process and a second process for about `time`.
/// Each process sleeps in a read of its eventfd while it waits.
pub(crate) fn measure(time: Duration) -> anyhow::Result<Measured> {
    let (there, back) = (
        eventfd(EventfdFlags::empty())?,
        eventfd(EventfdFlags::empty())?,
    );
    let _other = start(Role::Wake, &there, &back)?;
    let mut samples = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time {
        let sent = Instant::now();
        wake(&there)?;
        sleep(&back)?;
        samples.push(sent.elapsed().as_nanos() as f64);
    }
    Measured::time(samples)
}

/// Measures the round trip of a wakeup between this process and a second process for about `time`.
/// Unlike in [`measure`], a tokio task of each process waits for the wakeup, so that the result
/// contains the costs of the tokio runtime.
pub(crate) fn measure_tasks(time: Duration) -> anyhow::Result<Measured> {
    let flags = EventfdFlags::NONBLOCK;
    let (there, back) = (eventfd(flags)?, eventfd(flags)?);
    let _other = start(Role::WakeTask, &there, &back)?;
    let mut samples = Vec::new();
    runtime()?.block_on(async {
        let back = register(back)?;
        let begun = Instant::now();
        while begun.elapsed() < time {
            let sent = Instant::now();
            wake(&there)?;
            wait(&back).await?;
            samples.push(sent.elapsed().as_nanos() as f64);
        }
        anyhow::Ok(())
    })?;
    Measured::time(samples)
}

/// Runs the second process of [`measure`]: repeatedly waits for a wakeup by the first process, and
/// answers with a wakeup. The standard input of the second process is the eventfd at which it
/// sleeps. The standard output is the eventfd that wakes the first process. Sets a word of the
/// memory `shared` when this process is ready.
pub(crate) fn answer(shared: &Shared) -> anyhow::Result<()> {
    let (there, back) = (io::stdin(), io::stdout());
    shared.store(word::READY, 1);
    loop {
        sleep(&there)?;
        wake(&back)?;
    }
}

/// Runs the second process of [`measure_tasks`]: a tokio task that waits for a wakeup by an
/// eventfd, and answers with a wakeup, again and again. The two eventfds are its standard input and
/// output. The process reports in the shared memory `shared` that it is ready.
pub(crate) fn answer_tasks(shared: &Shared) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let (there, back) = (register(io::stdin())?, io::stdout());
        shared.store(word::READY, 1);
        loop {
            wait(&there).await?;
            wake(&back)?;
        }
    })
}

fn eventfd(flags: EventfdFlags) -> anyhow::Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | flags).context("creating an eventfd")
}

/// Starts the second process of a measurement, which performs the task `role`, and waits until the
/// process is ready. This process wakes the second process by the eventfd `there`, and is woken by
/// the eventfd `back`.
fn start(role: Role, there: &OwnedFd, back: &OwnedFd) -> anyhow::Result<Other> {
    let ends = [there.try_clone()?, back.try_clone()?].map(Stdio::from);
    let mut other = Other::start(role, 0, ends)?;
    other.ready()?;
    Ok(other)
}

fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_io().build()?)
}

/// Registers the eventfd `event` with the current tokio runtime, so that tasks can wait for a
/// wakeup by the eventfd.
fn register<T: AsRawFd>(event: T) -> anyhow::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the replacement is unsafe for types that may change their descriptor, unlike this one"
    )]
    AsyncFd::with_interest(event, Interest::READABLE).context("registering an eventfd")
}

fn wake(event: impl AsFd) -> anyhow::Result<()> {
    rustix::io::write(event, &1_u64.to_ne_bytes()).context("waking the other process")?;
    Ok(())
}

fn sleep(event: impl AsFd) -> anyhow::Result<()> {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).context("waiting for the other process")?;
    Ok(())
}

async fn wait<T: AsFd + AsRawFd>(event: &AsyncFd<T>) -> anyhow::Result<()> {
    let read = |event: &T| {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).map_err(io::Error::from)
    };
    let waited = event.async_io(Interest::READABLE, read).await;
    waited.map(drop).context("waiting for the other process")
}
