//! The execution of a call at the client: sending the request and waiting for the answer.

use std::borrow::Cow;
use std::future::poll_fn;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::calls::{Answer, Calls, PendingCall, calls};
use super::endpoints::ChosenConnection;
use super::streaming::{Response, Streaming};
use super::{Client, Route};
use crate::bulk::{self, CallLeases};
use crate::codec::{Codec, Decode, Encodable, Encode, MethodCodecs, TypedBody};
use crate::core::Core;
use crate::error::{CallError, Error};
use crate::metadata::Metadata;
use crate::method::MethodInfo;
use crate::observe::{self, ClientObservation};
use crate::outbox::{AppendError, Appended, SendAt, send_long};
use crate::payload::BodyBuffer;
use crate::status::Status;
use crate::stream::{
    ReceiveBuffer, SendWindow, Sender, Streams, WINDOW_BYTES, WINDOW_ITEMS, Window, decode_stored,
};
use crate::wire::{CallId, Header, MESSAGE_HEADER_LEN};

/// Outcome of a call: the handler's success value, the service's error, or the reason for which the
/// call has no response.
pub(super) type Outcome<T, E> = Result<T, CallError<E>>;

/// Name of the called method and time limit of the call, which appear in the texts of the call's
/// errors.
#[derive(Debug, Clone)]
pub(super) struct ErrorInfo {
    pub(super) method: Cow<'static, str>,
    pub(super) limit: Duration,
}

impl ErrorInfo {
    /// Returns the error for a call of this method whose time limit has passed.
    pub(super) fn exceeded(&self) -> Error {
        Error::DeadlineExceeded {
            method: self.method.clone(),
            limit: self.limit,
        }
    }

    /// Converts an answer that contains no response, such as a status of the server, to the error
    /// that the caller gets.
    pub(super) fn error_of(&self, answer: Answer) -> Error {
        match answer {
            Answer::Status(status) => status.into_error(self.method.clone(), self.limit),
            Answer::Expired => self.exceeded(),
            Answer::Ended(error) => error,
            Answer::Response { .. } => Error::Cancelled,
        }
    }
}

impl Client {
    /// Makes a unary call: one request and one response. `F` are the codecs of the method, `Q` is
    /// the type of the request, and `Result<T, E>` is the type of the handler's result.
    #[doc(hidden)]
    pub async fn unary<F: MethodCodecs, Q, T, E>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Outcome<T, E>
    where
        F::Request: Encode<Q>,
        F::Response: Decode<T>,
        F::Error: Decode<E>,
    {
        let info = self.info(method);
        let body = (
            <F::Request as Codec>::ID,
            TypedBody::new::<F::Request>(&request),
        );
        let decode = |core: &Arc<Core>, answer, body: &mut BodyBuffer| {
            decode::<F, T, E>(core, answer, body, &info)
        };
        let called = (method.id, method.is_once);
        self.unary_observed(called, &info, self.deadline, body, decode)
            .await
    }

    /// Makes a unary call and records its metrics. `method` is the number of the method, and `info`
    /// describes the call in errors. `body` contains the codec's number and the request. If
    /// `is_once` is set, the server executes the call at most once. `decode` converts the server's
    /// answer and the received body to the outcome.
    pub(super) async fn unary_observed<Q: ?Sized, T, E>(
        &self,
        (method, is_once): (u32, bool),
        info: &ErrorInfo,
        deadline: Duration,
        body: (u8, TypedBody<'_, Q>),
        decode: impl Fn(&Arc<Core>, Answer, &mut BodyBuffer) -> Outcome<T, E>,
    ) -> Outcome<T, E> {
        let metrics = ClientObservation::begin(self.observe, info.method.clone());
        let outcome = if is_once {
            self.unary_once(method, info, deadline, body, decode).await
        } else {
            let called = self.unary_balanced(method, info, deadline, body, decode);
            called.await
        };
        metrics.end(outcome_of(&outcome));
        outcome
    }

    /// Makes a unary call of a method without `#[rpc(once)]`, without recording metrics. A client
    /// of several servers sends the call to another server if the first server has not started the
    /// call. `body` contains the codec's number and the request. `decode` converts the server's
    /// answer and the received body to the outcome.
    async fn unary_balanced<Q: ?Sized, T, E>(
        &self,
        method: u32,
        info: &ErrorInfo,
        deadline: Duration,
        body: (u8, TypedBody<'_, Q>),
        decode: impl Fn(&Arc<Core>, Answer, &mut BodyBuffer) -> Outcome<T, E>,
    ) -> Outcome<T, E> {
        let metadata = self.metadata_of(&info.method)?;
        let head = (method, &metadata);
        let endpoints = match &self.route {
            Route::One(connection) => {
                let limit = (Some(deadline), info);
                let called = unary_on(&connection.core, head, limit, &body, &decode);
                return called
                    .await
                    .unwrap_or_else(|unstarted| Err(unstarted.0.into()));
            }
            Route::Several(endpoints) => endpoints,
        };
        let mut search = endpoints.search(deadline);
        loop {
            let chosen = search.next().await?;
            let limit = (Some(search.remaining()), info);
            let called = unary_on(chosen.core(), head, limit, &body, &decode);
            match called.await {
                Ok(outcome) => return outcome,
                Err(unstarted) => search.record_failure(&chosen, unstarted.0),
            }
        }
    }

    /// Sends a one-way request, which has no response. Afterwards, a short request is in the send
    /// queue, and a long request was sent.
    #[doc(hidden)]
    pub async fn one_way<F: MethodCodecs, Q>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<(), Error>
    where
        F::Request: Encode<Q>,
    {
        let metrics = ClientObservation::begin(self.observe, Cow::Borrowed(method.name));
        let sent = async {
            match &self.route {
                Route::One(connection) => {
                    self.send_one_way::<F, Q>(&connection.core, method, request)
                        .await
                }
                Route::Several(endpoints) => {
                    let chosen = endpoints.search(self.deadline).next().await?;
                    self.send_one_way::<F, Q>(chosen.core(), method, request)
                        .await
                }
            }
        };
        let sent = sent.await;
        metrics.end(match &sent {
            Ok(()) => observe::Outcome::Ok,
            Err(_) => observe::Outcome::Failed,
        });
        sent
    }

    /// Sends a one-way request on the connection `core`, after waiting for room in its outbox (send
    /// queue).
    async fn send_one_way<F: MethodCodecs, Q>(
        &self,
        core: &Arc<Core>,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<(), Error>
    where
        F::Request: Encode<Q>,
    {
        if let Some(end) = core.end() {
            return Err(end.clone());
        }
        if calls(core).is_closing() {
            return Err(Error::ShuttingDown);
        }
        let metadata = self.metadata_of(method.name)?;
        let mut limit = self.deadline;
        if core.peer_settings().is_none() || !core.outbox.has_room() {
            let exceeded = || self.info(method).exceeded();
            let begun = Instant::now();
            let waiting = async {
                // The maximum length of a request arrives with the settings.
                core.wait_for_settings().await?;
                core.outbox.wait_for_room().await;
                Ok(())
            };
            let waited = timeout(limit, waiting).await;
            waited.unwrap_or_else(|_| Err(exceeded()))?;
            limit = limit.saturating_sub(begun.elapsed());
            if limit.is_zero() {
                return Err(exceeded());
            }
        }
        let header = Header::Request {
            id: CallId::ONE_WAY,
            codec: <F::Request as Codec>::ID,
            method: method.id,
            limit: Some(limit),
            metadata: metadata.encoded(),
        };
        let value = TypedBody::new::<F::Request>(&request);
        let appended = core
            .outbox
            .append(&header, &value, core.send_limit(), SendAt::TurnEnd);
        match appended.map_err(|error| error_of_unsent(core, error))? {
            Appended::Batched => Ok(()),
            Appended::Long(batch) => {
                let deadline = Instant::now().checked_add(limit);
                let sending = send_long(&**core, batch);
                match by_deadline(deadline, &self.info(method), sending).await {
                    Err(error) if error.is_refusal() => {
                        Err(too_large(&value, header.len(), core.send_limit()))
                    }
                    sent => sent,
                }
            }
        }
    }

    /// Begins a call whose caller sends a stream of items of type `I`. Returns the sender of the
    /// stream, and the future of the response.
    #[doc(hidden)]
    pub async fn upload<F: MethodCodecs, Q, I, T, E>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<(Sender<I>, Response<T, E>), Error>
    where
        F::Request: Encode<Q> + Encode<I>,
        F::Response: Decode<T>,
        F::Error: Decode<E>,
    {
        let begun = self.begin_stream::<F, Q>(method, &request).await?;
        let sender = sender::<F, I>(&begun);
        Ok((sender, Response::new::<F>(begun)))
    }

    /// Begins a call whose handler sends a stream of items of type `O`. Returns the stream of
    /// items, which ends with the handler's result.
    #[doc(hidden)]
    pub async fn download<F: MethodCodecs, Q, O, T, E>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<Streaming<O, T, E>, Error>
    where
        F::Request: Encode<Q>,
        F::Response: Decode<T> + Decode<O>,
        F::Error: Decode<E>,
    {
        let begun = self.begin_stream::<F, Q>(method, &request).await?;
        Ok(Streaming::new::<F>(begun))
    }

    /// Begins a call with streams in both directions. Returns the sender of the caller's stream of
    /// items of type `I`, and the handler's stream of items of type `O`. The handler's stream ends
    /// with the handler's result.
    #[doc(hidden)]
    pub async fn exchange<F: MethodCodecs, Q, I, O, T, E>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<(Sender<I>, Streaming<O, T, E>), Error>
    where
        F::Request: Encode<Q> + Encode<I>,
        F::Response: Decode<T> + Decode<O>,
        F::Error: Decode<E>,
    {
        let begun = self.begin_stream::<F, Q>(method, &request).await?;
        let sender = sender::<F, I>(&begun);
        Ok((sender, Streaming::new::<F>(begun)))
    }

    /// Begins a call of a method with streams: sends the request, and begins to measure the call
    /// for the metrics. Returns the call, from which the caller gets the streams and the response.
    async fn begin_stream<F: MethodCodecs, Q>(
        &self,
        method: &'static MethodInfo,
        request: &Q,
    ) -> Result<StreamingCall, Error>
    where
        F::Request: Encode<Q>,
    {
        let metrics = ClientObservation::begin(self.observe, Cow::Borrowed(method.name));
        match self.begin_stream_balanced::<F, Q>(method, request).await {
            Ok(begun) => Ok(StreamingCall {
                metrics: Some(metrics),
                ..begun
            }),
            Err(error) => {
                metrics.end(observe::Outcome::Failed);
                Err(error)
            }
        }
    }

    /// Begins a call with streams and sends its request, without metrics. If no part of the request
    /// was sent, a client of several servers tries another server. Returns the call in progress.
    async fn begin_stream_balanced<F: MethodCodecs, Q>(
        &self,
        method: &'static MethodInfo,
        request: &Q,
    ) -> Result<StreamingCall, Error>
    where
        F::Request: Encode<Q>,
    {
        let info = self.info(method);
        let limit = self.has_own_deadline.then_some(self.deadline);
        let body = (
            <F::Request as Codec>::ID,
            TypedBody::new::<F::Request>(request),
        );
        let metadata = self.metadata_of(method.name)?;
        let metadata = metadata.encoded();
        let begin = async |core: &Arc<Core>, limit| {
            // Each attempt has its own streams, which end with the attempt.
            let streams = Streams {
                incoming: method
                    .has_output
                    .then(|| Arc::new(ReceiveBuffer::new(WINDOW))),
                outgoing: (method.has_input).then(|| Arc::new(SendWindow::new(Window::default()))),
                ..Streams::default()
            };
            let begun = begin(Arc::clone(core), limit, &info, streams.clone());
            let (pending, limit) = match begun.await {
                Ok(begun) => begun,
                Err(error) => return SendError::from_unsent(error).into_result(),
            };
            let sent = send(pending, method.id, (limit, &info), metadata, &body, None);
            match sent.await {
                Ok(pending) => Ok(Ok((pending, streams))),
                Err(unsent) => unsent.into_result(),
            }
        };
        let begun = |(pending, streams), info, chosen| StreamingCall {
            pending,
            streams,
            info,
            chosen,
            metrics: None,
        };
        let endpoints = match &self.route {
            Route::One(connection) => {
                let call = begin(&connection.core, limit).await;
                let call = call.unwrap_or_else(|unstarted| Err(unstarted.0))?;
                return Ok(begun(call, info, None));
            }
            Route::Several(endpoints) => endpoints,
        };
        let mut search = endpoints.search(self.deadline);
        loop {
            let chosen = search.next().await?;
            let left = limit.map(|_| search.remaining());
            match begin(chosen.core(), left).await {
                Ok(call) => return Ok(begun(call?, info, Some(chosen))),
                Err(unstarted) => search.record_failure(&chosen, unstarted.0),
            }
        }
    }

    fn info(&self, method: &'static MethodInfo) -> ErrorInfo {
        ErrorInfo {
            method: Cow::Borrowed(method.name),
            limit: self.deadline,
        }
    }
}

/// Numbers of items and bytes that a server may send in the stream of a call before the program has
/// taken any item. The client announces these numbers to the server in its settings.
const WINDOW: Window = Window {
    items: WINDOW_ITEMS,
    bytes: WINDOW_BYTES,
};

/// Call with streams that is in progress: its request was sent. The [`Response`] or [`Streaming`]
/// that the program gets is created from this value.
pub(super) struct StreamingCall {
    pub(super) pending: PendingCall<Arc<Core>>,
    pub(super) streams: Streams,
    pub(super) info: ErrorInfo,
    /// Connection that was chosen by a client of several servers. Keeps the call counted as in
    /// progress, for [`Balance::LeastInFlight`](super::Balance::LeastInFlight).
    pub(super) chosen: Option<ChosenConnection>,
    /// Metrics of the call; `None` once the call has ended.
    pub(super) metrics: Option<ClientObservation>,
}

/// Returns the kind of outcome that the metrics record for a call: success, an error that the
/// service has returned, or any other error.
pub(super) fn outcome_of<T, E>(outcome: &Outcome<T, E>) -> observe::Outcome {
    match outcome {
        Ok(_) => observe::Outcome::Ok,
        Err(CallError::Service(_)) => observe::Outcome::Service,
        Err(CallError::Rpc(_)) => observe::Outcome::Failed,
    }
}

/// Error of a call that the server has certainly not started. The client can therefore send the
/// call to another server without the risk of a second execution.
pub(super) struct Unstarted(pub(super) Error);

/// Reason for which a request was not sent completely. The variant determines whether the client
/// can still send the call to another server.
enum SendError {
    /// The server has not started the call, and another server may be able to.
    Unstarted(Unstarted),
    /// The server may have started the call, or the request is invalid for every server.
    Final(Error),
}

impl SendError {
    /// Creates the error of a call from `error`, which occurred before any part of the request was
    /// sent. Returns [`Self::Unstarted`] if the connection caused the error, and [`Self::Final`] if
    /// the request would fail on any connection.
    fn from_unsent(error: Error) -> Self {
        match error {
            Error::Transport(_)
            | Error::Tcp { .. }
            | Error::Protocol { .. }
            | Error::Disconnected { .. }
            | Error::ShuttingDown => Self::Unstarted(Unstarted(error)),
            error => Self::Final(error),
        }
    }

    /// Converts the error to the nested result of a call. Returns `Err` if the client can send the
    /// call to another server. Otherwise, returns the final error as `Ok(Err(error))`. Never
    /// returns `Ok(Ok(_))`.
    fn into_result<T>(self) -> Result<Result<T, Error>, Unstarted> {
        match self {
            Self::Unstarted(unstarted) => Err(unstarted),
            Self::Final(error) => Ok(Err(error)),
        }
    }
}

/// Kind of an answer to a call. The client can send the call to another server only after a
/// refusal. After an answer of the kind [`Self::Other`], the server is perhaps still accessing
/// memory that the request lent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerKind {
    /// The result or the service's error.
    Response,
    /// The server has not started the call.
    Refusal,
    /// Any other reason for which the call has no response. The server may have executed the call.
    Other,
}

impl AnswerKind {
    fn of(answer: &Answer) -> Self {
        match answer {
            Answer::Response { .. } => Self::Response,
            Answer::Status(Status::ShuttingDown | Status::Overloaded(_)) => Self::Refusal,
            _ => Self::Other,
        }
    }
}

/// Makes a unary call on the connection `core`. `limit` is the time limit. `body` contains the
/// codec's number and the request. `decode` converts the server's answer and the received body to
/// the outcome. Returns the outcome in `Ok`. Returns `Err` if the server has not started the call:
/// the client can then send the call to another server.
pub(super) async fn unary_on<Q: ?Sized, T, E>(
    core: &Arc<Core>,
    (method, metadata): (u32, &Metadata),
    (limit, info): (Option<Duration>, &ErrorInfo),
    body: &(u8, TypedBody<'_, Q>),
    decode: impl Fn(&Arc<Core>, Answer, &mut BodyBuffer) -> Outcome<T, E>,
) -> Result<Outcome<T, E>, Unstarted> {
    let failed = |failed: SendError| failed.into_result().map(|end| end.map_err(Into::into));
    let (pending, limit) = match begin(&**core, limit, info, Streams::default()).await {
        Ok(begun) => begun,
        Err(error) => return failed(SendError::from_unsent(error)),
    };
    let mut leased = CallLeases::default();
    let leases = Some((core, &mut leased));
    let sent = send(
        pending,
        method,
        (limit, info),
        metadata.encoded(),
        body,
        leases,
    );
    let pending = match sent.await {
        Ok(pending) => pending,
        Err(unsent) => {
            leased.close().await;
            return failed(unsent);
        }
    };
    // Polling would delay the task of a transfer.
    let mut may_poll = calls(core).has_one_call() && !core.bulks.is_transferring();
    let (end, outcome) = poll_fn(|cx| {
        if mem::take(&mut may_poll) {
            pending.poll_briefly(cx);
        }
        pending.poll_answer(cx, |answer, body| {
            let end = AnswerKind::of(&answer);
            (end, decode(core, answer, body))
        })
    })
    .await;
    if !leased.is_empty() {
        drop(pending);
        match end {
            // The server sends its response only after it has stopped accessing the memory.
            AnswerKind::Response => leased.end(),
            _ => leased.close().await,
        }
    }
    match outcome {
        Err(CallError::Rpc(error)) if end == AnswerKind::Refusal => Err(Unstarted(error)),
        outcome => Ok(outcome),
    }
}

/// Creates the sender by which the caller sends a stream of values of type `I` to the server.
/// `begun` is the running call of a method with such a stream. `F` are the method's codecs.
fn sender<F: MethodCodecs, I>(begun: &StreamingCall) -> Sender<I>
where
    F::Request: Encode<I>,
{
    let outgoing = begun.streams.outgoing.clone();
    let outgoing = outgoing.expect("the method has an input");
    let pending = &begun.pending;
    Sender::new::<F::Request>(outgoing, Arc::clone(&pending.core), pending.id)
}

/// Begins a call, after waiting for a free call slot of the connection and for room in its outbox
/// (send queue). Returns the call, and the part of its time limit `limit` that is left after the
/// wait. Fails with [`Error::DeadlineExceeded`] if the time limit passes during the wait. `info`
/// describes the call in this error.
async fn begin<C: Deref<Target = Core>>(
    core: C,
    limit: Option<Duration>,
    info: &ErrorInfo,
    streams: Streams,
) -> Result<(PendingCall<C>, Option<Duration>), Error> {
    let exceeded = || info.exceeded();
    if limit.is_some_and(|limit| limit.is_zero()) {
        return Err(exceeded());
    }
    let begun = Instant::now();
    let deadline = core.deadlines.after(begun, limit);
    let free = core.outbox.has_room().then(|| calls(&core).try_take_slot());
    let (slot, rest) = match free.flatten() {
        Some(slot) => (slot, limit),
        None => {
            let waiting = async {
                core.outbox.wait_for_room().await;
                calls(&core).take_slot(&core).await
            };
            // A timer is created only for a call that has to wait.
            match core.deadlines.time(deadline) {
                Some(time) => {
                    let waited = timeout_at(time, waiting).await;
                    let slot = waited.unwrap_or_else(|_| Err(exceeded()))?;
                    (slot, Some(time.saturating_duration_since(Instant::now())))
                }
                None => (waiting.await?, limit),
            }
        }
    };
    let pending = Calls::begin(core, slot, deadline, streams)?;
    if rest.is_some_and(|rest| rest.is_zero()) {
        // Dropping the call frees the slot.
        return Err(exceeded());
    }
    Ok((pending, rest))
}

/// Sends the request of a call. If the connection has no other call in progress, sends the request
/// immediately. Otherwise, the requests of all tasks that are ready now share a message. If
/// `leases` is given, the request may contain [`Bulk`](crate::Bulk)s (lent memory), and their
/// leases are stored in `leases`. The caller must end these leases after the call.
async fn send<Q: ?Sized, P: Deref<Target = Core>>(
    mut pending: PendingCall<P>,
    method: u32,
    (limit, info): (Option<Duration>, &ErrorInfo),
    metadata: &[u8],
    (codec, value): &(u8, TypedBody<'_, Q>),
    leases: Option<(&Arc<Core>, &mut CallLeases)>,
) -> Result<PendingCall<P>, SendError> {
    let header = Header::Request {
        id: pending.id,
        codec: *codec,
        method,
        limit,
        metadata,
    };
    let core = &*pending.core;
    let is_alone = calls(core).has_one_call();
    let send_at = match is_alone {
        true => SendAt::NextFlush,
        false => SendAt::TurnEnd,
    };
    let append = || {
        core.outbox
            .append(&header, value, core.send_limit(), send_at)
    };
    let appended = match leases {
        None => append(),
        Some((core, leased)) => {
            bulk::append_with_bulks(core, usize::MAX, append).map(|(appended, new)| {
                *leased = new;
                appended
            })
        }
    };
    let sent =
        match appended.map_err(|error| SendError::from_unsent(error_of_unsent(core, error)))? {
            Appended::Batched if is_alone => core.outbox.flush(),
            Appended::Batched => Ok(()),
            Appended::Long(batch) => {
                pending.is_sent = true;
                let sending = send_long(&*pending.core, batch);
                by_deadline(pending.deadline(), info, sending).await
            }
        };
    pending.is_sent = true;
    match sent {
        Ok(()) => Ok(pending),
        Err(error) if error.is_refusal() => {
            pending.is_sent = false;
            let limit = pending.core.send_limit();
            Err(SendError::Final(too_large(value, header.len(), limit)))
        }
        Err(error) => {
            let end = pending.core.end().cloned();
            Err(SendError::Final(end.unwrap_or(error)))
        }
    }
}

/// Waits for `sending`, the transfer of a long request, at most until the deadline of its call.
/// Fails with [`Error::DeadlineExceeded`] if the deadline passes during the wait. `info` describes
/// the call in this error.
async fn by_deadline(
    deadline: Option<Instant>,
    info: &ErrorInfo,
    sending: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    match deadline {
        None => sending.await,
        Some(deadline) => timeout_at(deadline, sending)
            .await
            .unwrap_or_else(|_| Err(info.exceeded())),
    }
}

/// Returns the error for the request `value`, which is too long for the peer. `header` is the
/// length of the frame's header, and `limit` the peer's limit, in bytes.
fn too_large<Q: ?Sized>(value: &TypedBody<'_, Q>, header: usize, limit: usize) -> Error {
    let front = MESSAGE_HEADER_LEN + header;
    let len = value.encoded_len().map_or(0, |len| front + len);
    Error::TooLarge { len, limit }
}

/// Returns the error for a call whose request was not added to the connection's send queue because
/// of `error`. If the cause is the end of the connection, returns the reason for this end.
fn error_of_unsent(core: &Core, error: AppendError) -> Error {
    match error {
        AppendError::Transport(error) => core.end().cloned().unwrap_or(error),
        error => error.into_error(),
    }
}

/// Converts the answer to a call to its outcome. `body` is the encoded response, `F` are the codecs
/// of the method, and `info` describes the call in an error.
pub(super) fn decode<F: MethodCodecs, T, E>(
    core: &Arc<Core>,
    answer: Answer,
    body: &mut BodyBuffer,
    info: &ErrorInfo,
) -> Outcome<T, E>
where
    F::Response: Decode<T>,
    F::Error: Decode<E>,
{
    let undecoded = |error| CallError::Rpc(Error::Decode(error));
    match answer {
        Answer::Response {
            codec,
            is_error: false,
        } => {
            let decode = || decode_stored::<F::Response, T>(codec, body);
            let (value, _) = bulk::decode(core, true, decode).map_err(undecoded)?;
            Ok(value)
        }
        Answer::Response {
            codec,
            is_error: true,
        } => {
            let decode = || decode_stored::<F::Error, E>(codec, body);
            let (error, _) = bulk::decode(core, true, decode).map_err(undecoded)?;
            Err(CallError::Service(error))
        }
        other => Err(info.error_of(other).into()),
    }
}
