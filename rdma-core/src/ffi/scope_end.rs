//! Waiting for the requests of a scope, and what is done when they do not end.

use std::thread;
use std::time::{Duration, Instant};

use super::scope::{Outcome, ScopeRequests, Ticket, abort};
use crate::completion::{WorkCompletion, WorkOpcode, WorkStatus};
use crate::error::{Error, Result};
use crate::queue_pair::Outcome as End;
use crate::queue_pair::{Modification, QueuePairState, modify};

/// How long the flushed completions of a queue pair that was failed are waited for.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);

impl ScopeRequests {
    /// Waits until the request has ended.
    pub(crate) fn wait(&self, ticket: &Ticket) -> Result<WorkCompletion> {
        let slot = ticket.0 as usize;
        let is_over = || !matches!(self.outcomes[slot].get(), Outcome::InFlight { .. });
        // It would never complete, and its memory cannot be given back.
        assert!(
            is_over() || !self.queue_pair.is_polled_here(),
            "a request was waited for within a poll of the queue pair's completions"
        );
        let waited = self.wait_until(is_over);
        let outcome = self.outcomes[slot].replace(Outcome::Free);
        self.table.release(ticket.0);
        let completion = match outcome {
            Outcome::Completed(completion) => completion,
            // The device was made to forget it, by this wait or by one before.
            _ => return Err(waited.err().unwrap_or_else(|| self.timed_out())),
        };
        match completion.result() {
            Ok(()) => Ok(completion),
            // It was given up, and this is how it ended.
            Err(error) if error.status == WorkStatus::Flushed => {
                Err(waited.err().unwrap_or(Error::Work(error)))
            }
            Err(error) => Err(Error::Work(error)),
        }
    }

    /// Whether the request has ended, without waiting.
    pub(crate) fn is_over(&self, ticket: &Ticket) -> Result<bool> {
        let outcome = &self.outcomes[ticket.0 as usize];
        if matches!(outcome.get(), Outcome::InFlight { .. }) {
            self.poll()?;
        }
        Ok(!matches!(outcome.get(), Outcome::InFlight { .. }))
    }

    /// Lets the request end unwatched: nobody asks for its outcome.
    pub(crate) fn unwatch(&self, ticket: &Ticket) {
        let outcome = &self.outcomes[ticket.0 as usize];
        match outcome.get() {
            Outcome::InFlight { id } => outcome.set(Outcome::Unwatched { id }),
            Outcome::Completed(completion) => {
                self.note(&completion);
                self.free(ticket.0);
            }
            _ => self.free(ticket.0),
        }
    }

    fn free(&self, index: u32) {
        self.outcomes[index as usize].set(Outcome::Free);
        self.table.release(index);
    }

    /// Notes a failure that no handle tells.
    fn note(&self, completion: &WorkCompletion) {
        if let Err(error) = completion.result() {
            let first = self.failure.take().unwrap_or(Error::Work(error));
            self.failure.set(Some(first));
        }
    }

    /// Waits until all requests have ended.
    pub(super) fn wait_all(&self) -> Result<()> {
        if self.in_flight.get() > 0 && self.queue_pair.is_polled_here() {
            return Err(Error::InUse {
                holder: "a poll of the queue pair's completions that has not ended",
            });
        }
        self.wait_until(|| self.in_flight.get() == 0)
    }

    /// Ends the scope: nothing is in flight after this.
    pub(super) fn end(&self) -> Result<()> {
        let waited = self.wait_all();
        if self.in_flight.get() > 0 {
            abort("a scope ended with requests in flight");
        }
        for outcome in &self.outcomes {
            // Those of handles that were forgotten.
            if let Outcome::Completed(completion) = outcome.get() {
                self.note(&completion);
            }
        }
        waited?;
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Waits for what `is_over` says, which is the case when nothing is in flight. When none of the
    /// requests ends for as long as the scope allows, it is brought about.
    fn wait_until(&self, is_over: impl Fn() -> bool) -> Result<()> {
        match self.await_progress(self.timeout, &is_over) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    /// Waits for what `is_over` says, until `timeout` is over without a completion.
    fn await_progress(&self, timeout: Duration, is_over: &impl Fn() -> bool) -> Result<()> {
        let mut since = Instant::now();
        let mut idle = 0_u32;
        let mut failed = None;
        while !is_over() {
            match self.poll() {
                Ok(0) => {}
                Ok(_) => {
                    since = Instant::now();
                    idle = 0;
                    continue;
                }
                Err(error) => failed = Some(error),
            }
            idle = idle.saturating_add(1);
            let patience = since.elapsed();
            if patience >= timeout {
                return Err(failed.unwrap_or_else(|| self.timed_out()));
            }
            pause(idle, patience);
        }
        Ok(())
    }

    /// Takes what has completed; returns how many requests of the scope did.
    fn poll(&self) -> Result<usize> {
        let mut room = [WorkCompletion::default(); 16];
        let mut count = 0;
        for queue in self.completions.iter().flatten() {
            let found = queue.poll_for(&mut room, |id| self.table.is_in_flight(id))?;
            for completion in &room[..found] {
                self.complete(completion);
            }
            count += found;
        }
        Ok(count)
    }

    fn complete(&self, completion: &WorkCompletion) {
        let Some((index, mut keep)) = self.table.complete(completion.id()) else {
            return;
        };
        keep.settle(End::of(completion));
        let received = matches!(
            completion.opcode(),
            WorkOpcode::Receive | WorkOpcode::ReceiveWriteImmediate
        );
        if let Some(key) = completion.invalidated_key().filter(|_| received) {
            self.queue_pair.domain().ended_by_peer(key);
        }
        self.in_flight.set(self.in_flight.get() - 1);
        let outcome = &self.outcomes[index as usize];
        if let Outcome::Unwatched { .. } = outcome.get() {
            self.note(completion);
            self.free(index);
        } else {
            outcome.set(Outcome::Completed(*completion));
        }
    }

    /// Makes the device end all requests: fails the queue pair and waits for the flushed
    /// completions; if they do not all come, resets it, after which the device has forgotten them
    /// (IBTA volume 1, 10.3.1.1). If that does not go either, the process ends.
    #[cold]
    fn give_up(&self) {
        if let Err(error) = self.change(QueuePairState::Error) {
            tracing::error!(%error, "a queue pair with borrowed memory in flight");
        }
        let nothing_left = || self.in_flight.get() == 0;
        if self.await_progress(FLUSH_PATIENCE, &nothing_left).is_ok() {
            return;
        }
        if let Err(error) = self.change(QueuePairState::Reset) {
            abort(&error.to_string());
        }
        for (index, outcome) in self.outcomes.iter().enumerate() {
            let (Outcome::InFlight { id } | Outcome::Unwatched { id }) = outcome.get() else {
                continue;
            };
            drop(self.table.complete(id));
            self.in_flight.set(self.in_flight.get() - 1);
            if let Outcome::Unwatched { .. } = outcome.get() {
                self.free(index as u32);
            } else {
                outcome.set(Outcome::Forgotten);
            }
        }
    }

    fn change(&self, to: QueuePairState) -> Result<()> {
        modify(&self.queue_pair, &Modification::to(to))
    }

    #[cold]
    fn timed_out(&self) -> Error {
        Error::TimedOut {
            what: "the requests of a scope",
            timeout: self.timeout,
        }
    }
}

/// Lets time pass between two polls: none at first, then that of others, then some.
fn pause(idle: u32, waited: Duration) {
    const SPINS: u32 = 200;
    const YIELDS: Duration = Duration::from_millis(5);
    if idle < SPINS {
        std::hint::spin_loop();
    } else if waited < YIELDS {
        thread::yield_now();
    } else {
        thread::sleep(Duration::from_micros(100));
    }
}
