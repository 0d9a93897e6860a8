//! Metrics of calls (feature `metrics`), and traces across processes (feature `trace`). Besides the
//! feature, the program must enable them for each server or client.

#[cfg(feature = "reflection")]
mod counts;
#[cfg(feature = "metrics")]
mod meter;
#[cfg(feature = "trace")]
mod trace;

use std::borrow::Cow;

use tracing::Instrument;

#[cfg(feature = "reflection")]
pub(crate) use self::counts::CallCounters;
#[cfg(feature = "trace")]
pub use self::trace::TraceContext;
use crate::address::Peer;
use crate::metadata::Metadata;

/// Settings of a client or server that state whether metrics and traces are enabled.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ObserveOptions {
    #[cfg(feature = "metrics")]
    pub(crate) has_metrics: bool,
    #[cfg(feature = "trace")]
    pub(crate) has_traces: bool,
}

/// The way in which a call ended, such as with a result or a panic. The metrics of calls contain
/// this value as the label `outcome`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// The handler returned a result.
    Ok,
    /// The handler returned the service's error.
    Service,
    /// The handler panicked.
    Panicked,
    /// The call failed for another reason, for example because the connection has ended or the
    /// response cannot be decoded.
    Failed,
}

/// Metrics and span of a call that a server executes. Dropping this value before [`Self::end`]
/// counts the call as cancelled.
#[derive(Debug)]
pub(crate) struct ServerObservation {
    #[cfg(feature = "reflection")]
    counted: Option<counts::CountedCall>,
    #[cfg(feature = "metrics")]
    meter: Option<meter::Meter>,
    #[cfg(feature = "trace")]
    trace: Option<trace::HandlerSpan>,
}

impl ServerObservation {
    /// Begins the metrics and the span of a call of `method`, if `observe` enables them. `metadata`
    /// is the metadata of the request, which can contain the trace of the caller.
    pub(crate) fn begin(
        observe: ObserveOptions,
        method: &'static str,
        peer: &Peer,
        metadata: &Metadata,
    ) -> Self {
        // Without the features, the arguments are not used.
        let _ = (observe, method, peer, metadata);
        Self {
            #[cfg(feature = "reflection")]
            counted: None,
            #[cfg(feature = "metrics")]
            meter: observe
                .has_metrics
                .then(|| meter::Meter::begin("server", method.into())),
            #[cfg(feature = "trace")]
            trace: observe
                .has_traces
                .then(|| trace::HandlerSpan::begin(method, peer, metadata)),
        }
    }

    /// Adds the observed call to `counts`, from which the reflection service reports the numbers of
    /// calls. The call counts as running until the returned observation is dropped.
    #[cfg(feature = "reflection")]
    pub(crate) fn with_counters(self, counts: Option<&std::sync::Arc<CallCounters>>) -> Self {
        Self {
            counted: counts.map(counts::CountedCall::new),
            ..self
        }
    }

    /// Calls `poll`, which polls the handler of the observed call, and returns the result of
    /// `poll`. If traces are enabled, log events and further calls within `poll` are assigned to
    /// the span of the observed call.
    pub(crate) fn within<T>(&self, poll: impl FnOnce() -> T) -> T {
        #[cfg(feature = "trace")]
        if let Some(trace) = &self.trace {
            return trace.within(poll);
        }
        poll()
    }

    /// Ends the observation of a call that a handler has executed. Adds `outcome` to the metrics
    /// and to the numbers of calls that the reflection service reports.
    pub(crate) fn end(self, outcome: Outcome) {
        #[cfg(feature = "reflection")]
        if let Some(counted) = self.counted {
            counted.end(outcome);
        }
        #[cfg(feature = "metrics")]
        if let Some(meter) = self.meter {
            meter.end(outcome);
        }
        let _ = outcome;
    }
}

/// Metrics of a call that a client makes. Dropping this value before [`Self::end`] counts the call
/// as cancelled.
#[derive(Debug)]
pub(crate) struct ClientObservation {
    #[cfg(feature = "metrics")]
    meter: Option<meter::Meter>,
}

impl ClientObservation {
    /// Begins the metrics of a call of `method` by a client. If `observe` does not enable metrics,
    /// the returned value records nothing.
    pub(crate) fn begin(observe: ObserveOptions, method: Cow<'static, str>) -> Self {
        #[cfg(not(feature = "metrics"))]
        let _ = (observe, method);
        Self {
            #[cfg(feature = "metrics")]
            meter: observe
                .has_metrics
                .then(|| meter::Meter::begin("client", method)),
        }
    }

    /// Ends the observation of a client's call, and counts the call with this outcome in the
    /// metrics.
    pub(crate) fn end(self, outcome: Outcome) {
        #[cfg(feature = "metrics")]
        if let Some(meter) = self.meter {
            meter.end(outcome);
        }
        let _ = outcome;
    }
}

/// Wraps `future` so that it runs in the tracing span and the trace context of the handler that
/// this thread is polling. Used for a task that continues the call of the handler.
pub(crate) fn in_current_call<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let future = future.in_current_span();
    #[cfg(feature = "trace")]
    let future = trace::in_current_call(future, TraceContext::current());
    future
}

/// Counts, in the metrics of the server, a call of `method` that was refused before its handler was
/// started.
pub(crate) fn count_refused(observe: ObserveOptions, method: &'static str) {
    #[cfg(feature = "metrics")]
    if observe.has_metrics {
        meter::count_refused(method);
    }
    let _ = (observe, method);
}

/// Adds a trace context to the metadata of a request, so that the call belongs to the trace of its
/// caller. Returns `metadata` unchanged if `observe` does not enable traces.
pub(crate) fn with_trace(observe: ObserveOptions, metadata: Metadata) -> Metadata {
    #[cfg(feature = "trace")]
    if observe.has_traces {
        return trace::propagate(metadata);
    }
    let _ = observe;
    metadata
}
