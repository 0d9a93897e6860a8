//! The load of a measurement: the size of a message, the number of calls in flight, and the
//! duration.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures_util::TryStreamExt;
use futures_util::stream::FuturesUnordered;

/// Number of calls after which the clock is read again when only the rate of calls is measured:
/// reading the clock takes a noticeable time.
const CLOCK_EVERY: usize = 16;

/// The load that a measurement puts on the server: its duration, the number of calls in flight, and
/// the size of their messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Bytes in a request and in its response, or in a streamed item.
    pub(crate) size: usize,
    /// Number of calls in flight.
    pub(crate) depth: usize,
    /// Duration of the measurement. A warm-up of a fifth of this duration precedes it.
    pub(crate) time: Duration,
}

/// The result of a measurement: the number of completed calls (or received stream items), their
/// rate, and the median latency.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// Number of measured calls or items.
    pub(crate) count: usize,
    /// Calls or items per second.
    pub(crate) rate: f64,
    /// Median duration of a call if one call is in flight at a time, else zero.
    pub(crate) median: Duration,
}

impl Load {
    /// Makes calls for the duration of the load, so that [`Self::depth`] calls are in flight at any
    /// time. The function `call` makes one call.
    pub(crate) async fn calls(
        &self,
        call: impl AsyncFnMut() -> anyhow::Result<()> + Clone,
    ) -> anyhow::Result<Measured> {
        if self.depth == 1 {
            return self.one_by_one(call).await;
        }
        let meter = Meter::new(self);
        let loops: FuturesUnordered<_> = (0..self.depth)
            .map(|_| {
                let (meter, mut call) = (&meter, call.clone());
                async move {
                    while meter.goes_on() {
                        call().await?;
                        meter.complete();
                    }
                    anyhow::Ok(())
                }
            })
            .collect();
        loops.try_collect::<()>().await?;
        meter.measured()
    }

    /// Makes one call after the other for the duration of the load, and measures the latency of
    /// each. The function `call` makes one call.
    pub(crate) async fn one_by_one(
        &self,
        mut call: impl AsyncFnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Measured> {
        let warm = Instant::now();
        while warm.elapsed() < self.time / 5 {
            call().await?;
        }
        let begun = Instant::now();
        let mut samples = Vec::with_capacity(1 << 20);
        let mut last = begun;
        while last - begun < self.time {
            call().await?;
            let now = Instant::now();
            samples.push(now - last);
            last = now;
        }
        samples.sort_unstable();
        Ok(Measured {
            count: samples.len(),
            rate: samples.len() as f64 / (last - begun).as_secs_f64(),
            median: samples[samples.len() / 2],
        })
    }

    /// Receives the items of a stream for the duration of the load. The function `next` returns the
    /// length of the next item.
    pub(crate) async fn items(
        &self,
        mut next: impl AsyncFnMut() -> anyhow::Result<usize>,
    ) -> anyhow::Result<Measured> {
        let meter = Meter::new(self);
        while meter.goes_on() {
            let length = next().await?;
            ensure!(length == self.size, "wrong item length: {length}");
            meter.complete();
        }
        meter.measured()
    }
}

/// The counter of completed calls, and the start of the measured time.
struct Meter {
    time: Duration,
    done: Cell<usize>,
    /// End of the warm-up, and the number of calls that had completed by then; `None` during the
    /// warm-up.
    begun: RefCell<Option<(Instant, usize)>>,
    first: Instant,
    last: Cell<Instant>,
}

impl Meter {
    fn new(load: &Load) -> Self {
        let now = Instant::now();
        Self {
            time: load.time,
            done: Cell::new(0),
            begun: RefCell::new(None),
            first: now,
            last: Cell::new(now),
        }
    }

    /// Returns whether the measurement continues, because its duration is not over.
    fn goes_on(&self) -> bool {
        match *self.begun.borrow() {
            Some((begun, _)) => self.last.get() - begun < self.time,
            None => true,
        }
    }

    /// Records that a call has completed. Reads the clock only after every [`CLOCK_EVERY`] calls.
    fn complete(&self) {
        let done = self.done.get() + 1;
        self.done.set(done);
        if !done.is_multiple_of(CLOCK_EVERY) {
            return;
        }
        let now = Instant::now();
        self.last.set(now);
        let mut begun = self.begun.borrow_mut();
        if begun.is_none() && now - self.first >= self.time / 5 {
            *begun = Some((now, done));
        }
    }

    fn measured(&self) -> anyhow::Result<Measured> {
        let begun = *self.begun.borrow();
        // Calls that completed after the clock was last read do not count.
        let done = self.done.get() / CLOCK_EVERY * CLOCK_EVERY;
        let (begun, before) = begun.unwrap_or((self.first, 0));
        let (count, time) = (done - before, self.last.get() - begun);
        ensure!(count > 0 && !time.is_zero(), "no call completed");
        Ok(Measured {
            count,
            rate: count as f64 / time.as_secs_f64(),
            median: Duration::ZERO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_calls_are_in_flight_as_asked_for() {
        let (now, most) = (Cell::new(0), Cell::new(0));
        let load = Load {
            size: 0,
            depth: 8,
            time: Duration::from_millis(10),
        };
        let call = async || {
            now.set(now.get() + 1);
            most.set(most.get().max(now.get()));
            tokio::task::yield_now().await;
            now.set(now.get() - 1);
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let measured = runtime.block_on(load.calls(&call)).unwrap();
        assert_eq!(most.get(), 8);
        assert!(measured.count > 0 && measured.rate > 0.0);
    }

    #[test]
    fn items_of_a_wrong_length_are_refused() {
        let load = Load {
            size: 64,
            depth: 1,
            time: Duration::from_millis(1),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        assert!(runtime.block_on(load.items(async || Ok(63))).is_err());
        assert!(runtime.block_on(load.items(async || Ok(64))).is_ok());
    }
}
