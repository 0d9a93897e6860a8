//! Observation of calls: metrics per method (feature `metrics`), and traces across processes
//! (feature `trace`). A server or client whose program has not asked for them has none, whatever
//! the features are.

#[cfg(feature = "reflection")]
mod counts;
#[cfg(feature = "metrics")]
mod meter;
#[cfg(feature = "trace")]
mod trace;

use std::borrow::Cow;

use tracing::Instrument;

#[cfg(feature = "reflection")]
pub(crate) use self::counts::Counts;
#[cfg(feature = "trace")]
pub use self::trace::TraceContext;
use crate::address::Peer;
use crate::metadata::Metadata;

/// Observations that the program has asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Observed {
    #[cfg(feature = "metrics")]
    pub(crate) has_metrics: bool,
    #[cfg(feature = "trace")]
    pub(crate) has_traces: bool,
}

/// Outcome of a call, as metrics name it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    Ok,
    /// The handler returned the service's error.
    Service,
    Panicked,
    /// The call has no response.
    Failed,
}

/// A call that a server runs. Dropping it before [`Self::end`] counts the call as cancelled.
#[derive(Debug)]
pub(crate) struct Handled {
    #[cfg(feature = "reflection")]
    _counted: Option<counts::Counted>,
    #[cfg(feature = "metrics")]
    meter: Option<meter::Meter>,
    #[cfg(feature = "trace")]
    trace: Option<trace::Traced>,
}

impl Handled {
    pub(crate) fn begin(
        observed: Observed,
        method: &'static str,
        peer: &Peer,
        metadata: &Metadata,
    ) -> Self {
        // Without features, nobody needs them.
        let _ = (observed, method, peer, metadata);
        Self {
            #[cfg(feature = "reflection")]
            _counted: None,
            #[cfg(feature = "metrics")]
            meter: observed
                .has_metrics
                .then(|| meter::Meter::begin("server", method.into())),
            #[cfg(feature = "trace")]
            trace: observed
                .has_traces
                .then(|| trace::Traced::begin(method, peer, metadata)),
        }
    }

    /// Counts the call as running until it has ended.
    #[cfg(feature = "reflection")]
    pub(crate) fn counted(self, counts: Option<&std::sync::Arc<Counts>>) -> Self {
        Self {
            _counted: counts.map(counts::Counted::new),
            ..self
        }
    }

    /// Makes this call the current one of the thread while `poll` runs.
    pub(crate) fn within<T>(&self, poll: impl FnOnce() -> T) -> T {
        #[cfg(feature = "trace")]
        if let Some(trace) = &self.trace {
            return trace.within(poll);
        }
        poll()
    }

    pub(crate) fn end(self, outcome: Outcome) {
        #[cfg(feature = "metrics")]
        if let Some(meter) = self.meter {
            meter.end(outcome);
        }
        let _ = outcome;
    }
}

/// A call that a client makes. Dropping it before [`Self::end`] counts the call as cancelled.
#[derive(Debug)]
pub(crate) struct Made {
    #[cfg(feature = "metrics")]
    meter: Option<meter::Meter>,
}

impl Made {
    pub(crate) fn begin(observed: Observed, method: Cow<'static, str>) -> Self {
        #[cfg(not(feature = "metrics"))]
        let _ = (observed, method);
        Self {
            #[cfg(feature = "metrics")]
            meter: observed
                .has_metrics
                .then(|| meter::Meter::begin("client", method)),
        }
    }

    pub(crate) fn end(self, outcome: Outcome) {
        #[cfg(feature = "metrics")]
        if let Some(meter) = self.meter {
            meter.end(outcome);
        }
        let _ = outcome;
    }
}

/// Returns a future that belongs to the call whose handler this thread is polling, for a task of
/// the handler.
pub(crate) fn continued<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let future = future.in_current_span();
    #[cfg(feature = "trace")]
    let future = trace::continued(future, TraceContext::current());
    future
}

/// Counts a call that was refused before it was started.
pub(crate) fn refused(observed: Observed, method: &'static str) {
    #[cfg(feature = "metrics")]
    if observed.has_metrics {
        meter::refused(method);
    }
    let _ = (observed, method);
}

/// Returns the metadata of a request with the trace that the call belongs to.
pub(crate) fn traced(observed: Observed, metadata: Metadata) -> Metadata {
    #[cfg(feature = "trace")]
    if observed.has_traces {
        return trace::propagate(metadata);
    }
    let _ = observed;
    metadata
}
