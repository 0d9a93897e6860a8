//! [`TraceContext`]: the trace and span of a call, in the format of W3C Trace Context.

use std::cell::RefCell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::str::FromStr;
use std::sync::Arc;

use crate::address::Peer;
use crate::metadata::Metadata;

/// Name of the metadata value with the trace context. Equal to the header name in [W3C Trace
/// Context](https://www.w3.org/TR/trace-context/).
const NAME: &str = "traceparent";

/// Name of the metadata value with the trace's state, additional data of tracing systems. Equal to
/// the header name in W3C Trace Context.
const STATE_NAME: &str = "tracestate";

/// Maximum length in bytes of a trace's state, the value of the metadata `tracestate`. W3C Trace
/// Context recommends that every system passes on states up to this length. A longer state is
/// dropped.
const MAX_STATE_LEN: usize = 512;

thread_local! {
    // Span of the handler that this thread is polling.
    static CURRENT: RefCell<Option<TraceContext>> = const { RefCell::new(None) };
}

/// Position of a call in a trace: the trace, and the span of the call.
///
/// A [server with traces](crate::Server::traces) runs each handler in a span of the crate
/// `tracing`, with the fields `method`, `peer`, `trace_id`, `span_id` and `parent_id`. Calls that
/// the handler makes through a [client with traces](crate::ClientBuilder::traces) belong to the
/// same trace. A call outside of a handler begins a new trace, unless its metadata already contains
/// a `traceparent`.
///
/// A trace may have a [state](Self::state), which tracing systems add to the first request of a
/// trace as the metadata value `tracestate`. The state is passed on unchanged to all calls of the
/// trace.
///
/// ```
/// use rdma_rpc::TraceContext;
///
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context: TraceContext = text.parse().unwrap();
/// assert_eq!(context.to_string(), text);
/// let child = context.child();
/// assert_eq!(child.trace_id(), context.trace_id());
/// assert_ne!(child.span_id(), context.span_id());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
    /// State of the trace, or `None` if the trace has no state.
    state: Option<Arc<str>>,
}

impl TraceContext {
    /// Creates the first span of a new trace.
    pub fn new() -> Self {
        Self {
            trace_id: u128::from(random()) << 64 | u128::from(random()),
            span_id: random(),
            flags: 1,
            state: None,
        }
    }

    /// Creates a new span in the same trace, with a random ID. A span is one operation of a trace.
    /// Used for a call that is made within the present span.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            span_id: random(),
            ..self.clone()
        }
    }

    /// Returns the ID of the trace, which all calls of the trace share.
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// Returns the ID of this span (one operation of a trace), which identifies the span within its
    /// trace.
    pub fn span_id(&self) -> u64 {
        self.span_id
    }

    /// Returns the state of the trace, the value of the header `tracestate`, or `None` if the trace
    /// has no state.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Sets the state of the trace, for example from the header `tracestate` of an HTTP request.
    ///
    /// # Errors
    ///
    /// If the state is empty, is longer than 512 bytes, or contains other characters than printable
    /// ASCII.
    pub fn with_state(self, state: &str) -> Result<Self, InvalidTraceContext> {
        let is_printable = |byte: u8| (b' '..=b'~').contains(&byte);
        let is_valid =
            (1..=MAX_STATE_LEN).contains(&state.len()) && state.bytes().all(is_printable);
        is_valid
            .then(|| Self {
                state: Some(state.into()),
                ..self
            })
            .ok_or(InvalidTraceContext)
    }

    /// Returns the trace context of the handler that this thread is polling, or `None` outside of a
    /// handler.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs a future in this span, for example in a task that a handler spawns. Calls that the
    /// future makes belong to the same trace.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| within(self.clone(), || future.as_mut().poll(cx))).await
    }
}

impl Default for TraceContext {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns a random ID of a trace or span. Never returns 0, because the format of trace contexts
/// does not allow 0 as an ID.
fn random() -> u64 {
    RandomState::new().hash_one(()).max(1)
}

/// Calls `poll` with `context` as the current span of this thread, and returns the result of
/// `poll`. Calls that are made within `poll` belong to the trace of the span.
fn within<T>(context: TraceContext, poll: impl FnOnce() -> T) -> T {
    let _former = RestoreOnDrop(CURRENT.replace(Some(context)));
    poll()
}

/// Runs `future`. If `context` is given, the calls that the future makes belong to the trace of
/// `context`.
pub(super) async fn in_current_call<F: Future>(
    future: F,
    context: Option<TraceContext>,
) -> F::Output {
    match context {
        Some(context) => context.scope(future).await,
        None => future.await,
    }
}

/// Guard that restores the previous span of this thread when the guard is dropped, also if a
/// handler panics.
struct RestoreOnDrop(Option<TraceContext>);

impl Drop for RestoreOnDrop {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace_id,
            span_id,
            flags,
            state: _,
        } = self;
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{flags:02x}")
    }
}

/// Error of parsing a text that is not in the format `00-<trace>-<span>-<flags>`. Also the error of
/// [`TraceContext::with_state`] for a state that is empty, too long, or not printable ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the text is not a trace context, or not the state of a trace")]
pub struct InvalidTraceContext;

impl FromStr for TraceContext {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, InvalidTraceContext> {
        let mut parts = text.split('-');
        let mut part = |len: usize| {
            let part = parts.next().filter(|part| part.len() == len);
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            part.filter(|part| part.bytes().all(is_digit))
                .ok_or(InvalidTraceContext)
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // Later versions of the format may append further fields.
        let has_more = parts.next().is_some();
        if version == "ff" || (version == "00" && has_more) {
            return Err(InvalidTraceContext);
        }
        let wrong = |_| InvalidTraceContext;
        let context = Self {
            trace_id: u128::from_str_radix(trace, 16).map_err(wrong)?,
            span_id: u64::from_str_radix(span, 16).map_err(wrong)?,
            flags: u8::from_str_radix(flags, 16).map_err(wrong)?,
            state: None,
        };
        let is_valid = context.trace_id != 0 && context.span_id != 0;
        is_valid.then_some(context).ok_or(InvalidTraceContext)
    }
}

/// Returns the trace context in the metadata of a request, or `None` if there is no valid context.
/// The state of the trace is left out if the metadata contains no valid state.
fn of(metadata: &Metadata) -> Option<TraceContext> {
    let context: TraceContext = metadata.get_str(NAME)?.parse().ok()?;
    let state = metadata.get_str(STATE_NAME);
    let complete = state.and_then(|state| context.clone().with_state(state).ok());
    Some(complete.unwrap_or(context))
}

/// Adds a trace context to the metadata of a request. Within a handler, the context is a child of
/// the handler's span. Outside of a handler, the context begins a new trace. Metadata that already
/// contains a trace context is unchanged. Values for which the metadata has no space are left out.
pub(super) fn propagate(metadata: Metadata) -> Metadata {
    if metadata.get(NAME).is_some() {
        return metadata;
    }
    let parent = TraceContext::current();
    let context = parent.map_or_else(TraceContext::new, |parent| parent.child());
    let Some(traced) = metadata.try_with(NAME, context.to_string().as_bytes()) else {
        return metadata;
    };
    let state = context.state();
    let complete = state.and_then(|state| traced.try_with(STATE_NAME, state.as_bytes()));
    complete.unwrap_or(traced)
}

/// Span of the crate `tracing` (a named period in the log) in which a handler runs, and the trace
/// context for the calls that the handler makes.
#[derive(Debug)]
pub(super) struct HandlerSpan {
    context: TraceContext,
    span: tracing::Span,
}

impl HandlerSpan {
    /// Creates the span in which a handler runs and logs, with the crate `tracing`. The parent of
    /// the span is the span of the caller if the request's `metadata` contains a trace context.
    pub(super) fn begin(method: &'static str, peer: &Peer, metadata: &Metadata) -> Self {
        let parent = of(metadata);
        let context = parent
            .as_ref()
            .map_or_else(TraceContext::new, TraceContext::child);
        let span = tracing::info_span!(
            "rpc",
            method,
            %peer,
            trace_id = format_args!("{:032x}", context.trace_id),
            span_id = format_args!("{:016x}", context.span_id),
            parent_id = tracing::field::Empty,
        );
        if let Some(parent) = parent {
            span.record(
                "parent_id",
                tracing::field::display(format_args!("{:016x}", parent.span_id)),
            );
        }
        Self { context, span }
    }

    /// Calls `poll`, which polls the handler, and returns its result. Log events within `poll`
    /// belong to this span. Calls that the handler makes within `poll` become children of this span
    /// in the trace.
    pub(super) fn within<T>(&self, poll: impl FnOnce() -> T) -> T {
        let _entered = self.span.enter();
        within(self.context.clone(), poll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_contexts_are_parsed() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let span = "00f067aa0ba902b7";
        let valid = [
            format!("00-{trace}-{span}-00"),
            format!("cc-{trace}-{span}-01-what-later-versions-have"),
        ];
        for text in valid {
            assert!(text.parse::<TraceContext>().is_ok(), "{text}");
        }
        let zeros = ["0".repeat(32), "0".repeat(16)];
        let invalid = [
            String::new(),
            format!("ff-{trace}-{span}-01"),
            format!("00-{trace}-{span}-01-more"),
            format!("00-{trace}-{span}"),
            format!("00-{}-{span}-01", zeros[0]),
            format!("00-{trace}-{}-01", zeros[1]),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{span}-+1"),
            format!("00-{trace}0-{span}-01"),
        ];
        for text in invalid {
            assert_eq!(
                text.parse::<TraceContext>(),
                Err(InvalidTraceContext),
                "{text}"
            );
        }
    }

    #[test]
    fn a_state_is_passed_on_only_with_a_valid_context() {
        let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let state_of = |context: &str, state: &str| {
            let metadata = Metadata::default().with(NAME, context);
            let received = of(&metadata.with(STATE_NAME, state))?;
            Some(received.child().state().map(str::to_owned))
        };
        let state = "vendor=1,other=two three";
        assert_eq!(state_of(context, state), Some(Some(state.to_owned())));
        let longest = "a".repeat(MAX_STATE_LEN);
        assert_eq!(state_of(context, &longest), Some(Some(longest.clone())));
        for invalid in ["", "a=\n", "a=\u{fc}", &(longest + "a")] {
            assert_eq!(state_of(context, invalid), Some(None), "{invalid}");
        }
        assert_eq!(state_of("00-0-0-01", state), None);
    }

    #[test]
    fn metadata_without_room_for_a_state_has_the_context() {
        let context = TraceContext::new().with_state(&"a".repeat(500)).unwrap();
        let (small, large) = within(context, || {
            let large = Metadata::default().with("large", [0; 1700]);
            (propagate(Metadata::default()), propagate(large))
        });
        assert!(small.get(NAME).is_some() && small.get(STATE_NAME).is_some());
        assert!(large.get(NAME).is_some() && large.get(STATE_NAME).is_none());
    }
}
