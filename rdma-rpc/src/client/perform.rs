//! Calls: a request, and the wait for its response.

use std::borrow::Cow;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::calls::{Answer, Calls, Pending, calls};
use super::endpoints::Chosen;
use super::streaming::{Response, Streaming};
use super::{Client, Route};
use crate::bulk::{self, Leased};
use crate::codec::{Codec, Decode, Encodable, Encode, Format, Value};
use crate::core::Core;
use crate::error::{CallError, Error};
use crate::metadata::Metadata;
use crate::method::MethodInfo;
use crate::observe::{self, Made};
use crate::outbox::{Leaves, Placed, Unplaced, send_long};
use crate::payload::Stored;
use crate::status::Status;
use crate::stream::{
    Inlet, Outlet, Sender, Streams, WINDOW_BYTES, WINDOW_ITEMS, Window, decode_stored,
};
use crate::wire::{CallId, Header, MESSAGE_HEADER};

/// Outcome of a call: the result of the handler, or the reason why there is none.
pub(super) type Outcome<T, E> = Result<T, CallError<E>>;

/// Method and time limit of a call, for the errors of its answer.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) method: Cow<'static, str>,
    pub(super) limit: Duration,
}

impl Told {
    /// Returns the error of a call whose deadline has passed.
    pub(super) fn exceeded(&self) -> Error {
        Error::DeadlineExceeded {
            method: self.method.clone(),
            limit: self.limit,
        }
    }

    /// Returns the error of a call that has no response.
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
    /// Makes a unary call.
    #[doc(hidden)]
    pub async fn unary<F: Format, Q, T, E>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Outcome<T, E>
    where
        F::Request: Encode<Q>,
        F::Response: Decode<T>,
        F::Error: Decode<E>,
    {
        let told = self.told(method);
        let body = (
            <F::Request as Codec>::ID,
            Value::new::<F::Request>(&request),
        );
        let decode = |core: &Arc<Core>, answer, body: &mut Stored| {
            decode::<F, T, E>(core, answer, body, &told)
        };
        let called = (method.id, method.is_once);
        self.unary_of(called, &told, self.deadline, body, decode)
            .await
    }

    /// Makes a unary call like [`Self::unary_anywhere`], or like [`Self::unary_once`] if `is_once`
    /// is set, and counts it.
    pub(super) async fn unary_of<Q: ?Sized, T, E>(
        &self,
        (method, is_once): (u32, bool),
        told: &Told,
        deadline: Duration,
        body: (u8, Value<'_, Q>),
        decode: impl Fn(&Arc<Core>, Answer, &mut Stored) -> Outcome<T, E>,
    ) -> Outcome<T, E> {
        let made = Made::begin(self.observed, told.method.clone());
        let outcome = if is_once {
            self.unary_once(method, told, deadline, body, decode).await
        } else {
            let called = self.unary_anywhere(method, told, deadline, body, decode);
            called.await
        };
        made.end(outcome_of(&outcome));
        outcome
    }

    /// Makes a unary call whose answer `decode` decodes. A client of several servers sends a call
    /// that its server has not started to another one.
    async fn unary_anywhere<Q: ?Sized, T, E>(
        &self,
        method: u32,
        told: &Told,
        deadline: Duration,
        body: (u8, Value<'_, Q>),
        decode: impl Fn(&Arc<Core>, Answer, &mut Stored) -> Outcome<T, E>,
    ) -> Outcome<T, E> {
        let metadata = self.metadata_of(&told.method)?;
        let head = (method, &metadata);
        let endpoints = match &self.route {
            Route::One(handle) => {
                let limit = (Some(deadline), told);
                let called = unary_on(&handle.core, head, limit, &body, &decode);
                return called
                    .await
                    .unwrap_or_else(|unstarted| Err(unstarted.0.into()));
            }
            Route::Several(endpoints) => endpoints,
        };
        let mut search = endpoints.search(deadline);
        loop {
            let chosen = search.next().await?;
            let limit = (Some(search.left()), told);
            let called = unary_on(chosen.core(), head, limit, &body, &decode);
            match called.await {
                Ok(outcome) => return outcome,
                Err(unstarted) => search.failed(&chosen, unstarted.0),
            }
        }
    }

    /// Sends a one-way request.
    #[doc(hidden)]
    pub async fn one_way<F: Format, Q>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<(), Error>
    where
        F::Request: Encode<Q>,
    {
        let made = Made::begin(self.observed, Cow::Borrowed(method.name));
        let noted = async {
            match &self.route {
                Route::One(handle) => self.note::<F, Q>(&handle.core, method, request).await,
                Route::Several(endpoints) => {
                    let chosen = endpoints.search(self.deadline).next().await?;
                    self.note::<F, Q>(chosen.core(), method, request).await
                }
            }
        };
        let noted = noted.await;
        made.end(match &noted {
            Ok(()) => observe::Outcome::Ok,
            Err(_) => observe::Outcome::Failed,
        });
        noted
    }

    /// Sends a one-way request on a connection.
    async fn note<F: Format, Q>(
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
        if core.others().is_none() {
            // Only the settings tell how long a request may be.
            core.greeted().await?;
        }
        core.outbox.room().await;
        let header = Header::Request {
            id: CallId::ONE_WAY,
            codec: <F::Request as Codec>::ID,
            method: method.id,
            limit: Some(self.deadline),
            metadata: metadata.encoded(),
        };
        let value = Value::new::<F::Request>(&request);
        let placed = core
            .outbox
            .append(&header, &value, core.send_limit(), Leaves::AtTurnEnd);
        match placed.map_err(|unplaced| unsent(core, unplaced))? {
            Placed::Batched => Ok(()),
            Placed::Long(batch) => {
                let deadline = Instant::now().checked_add(self.deadline);
                let sending = send_long(&**core, batch);
                match by_deadline(deadline, &self.told(method), sending).await {
                    Err(error) if error.is_refusal() => {
                        Err(too_large(&value, header.len(), core.send_limit()))
                    }
                    sent => sent,
                }
            }
        }
    }

    /// Makes a call with a stream of items to the server.
    #[doc(hidden)]
    pub async fn upload<F: Format, Q, I, T, E>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<(Sender<I>, Response<T, E>), Error>
    where
        F::Request: Encode<Q> + Encode<I>,
        F::Response: Decode<T>,
        F::Error: Decode<E>,
    {
        let begun = self.stream::<F, Q>(method, &request).await?;
        let sender = sender::<F, I>(&begun);
        Ok((sender, Response::new::<F>(begun)))
    }

    /// Makes a call with a stream of items from the server.
    #[doc(hidden)]
    pub async fn download<F: Format, Q, O, T, E>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<Streaming<O, T, E>, Error>
    where
        F::Request: Encode<Q>,
        F::Response: Decode<T> + Decode<O>,
        F::Error: Decode<E>,
    {
        let begun = self.stream::<F, Q>(method, &request).await?;
        Ok(Streaming::new::<F>(begun))
    }

    /// Makes a call with streams in both directions.
    #[doc(hidden)]
    pub async fn exchange<F: Format, Q, I, O, T, E>(
        &self,
        method: &'static MethodInfo,
        request: Q,
    ) -> Result<(Sender<I>, Streaming<O, T, E>), Error>
    where
        F::Request: Encode<Q> + Encode<I>,
        F::Response: Decode<T> + Decode<O>,
        F::Error: Decode<E>,
    {
        let begun = self.stream::<F, Q>(method, &request).await?;
        let sender = sender::<F, I>(&begun);
        Ok((sender, Streaming::new::<F>(begun)))
    }

    /// Begins a call with streams, and counts it.
    async fn stream<F: Format, Q>(
        &self,
        method: &'static MethodInfo,
        request: &Q,
    ) -> Result<Begun, Error>
    where
        F::Request: Encode<Q>,
    {
        let made = Made::begin(self.observed, Cow::Borrowed(method.name));
        match self.stream_anywhere::<F, Q>(method, request).await {
            Ok(begun) => Ok(Begun {
                made: Some(made),
                ..begun
            }),
            Err(error) => {
                made.end(observe::Outcome::Failed);
                Err(error)
            }
        }
    }

    /// Begins a call with streams. A client of several servers sends a call whose request was not
    /// sent to another one.
    async fn stream_anywhere<F: Format, Q>(
        &self,
        method: &'static MethodInfo,
        request: &Q,
    ) -> Result<Begun, Error>
    where
        F::Request: Encode<Q>,
    {
        let told = self.told(method);
        let limit = self.has_own_deadline.then_some(self.deadline);
        let body = (<F::Request as Codec>::ID, Value::new::<F::Request>(request));
        let metadata = self.metadata_of(method.name)?;
        let metadata = metadata.encoded();
        let begin = async |core: &Arc<Core>, limit| {
            // The end of an attempt ends its streams.
            let streams = Streams {
                inlet: method.has_output.then(|| Arc::new(Inlet::new(WINDOW))),
                outlet: (method.has_input).then(|| Arc::new(Outlet::new(Window::default()))),
                ..Streams::default()
            };
            let pending = match begin(Arc::clone(core), limit, &told, streams.clone()).await {
                Ok(pending) => pending,
                Err(error) => return Failed::unsent(error).settle(),
            };
            let sent = send(pending, method.id, (limit, &told), metadata, &body, None);
            match sent.await {
                Ok(pending) => Ok(Ok((pending, streams))),
                Err(unsent) => unsent.settle(),
            }
        };
        let begun = |(pending, streams), told, chosen| Begun {
            pending,
            streams,
            told,
            chosen,
            made: None,
        };
        let endpoints = match &self.route {
            Route::One(handle) => {
                let call = begin(&handle.core, limit).await;
                let call = call.unwrap_or_else(|unstarted| Err(unstarted.0))?;
                return Ok(begun(call, told, None));
            }
            Route::Several(endpoints) => endpoints,
        };
        let mut search = endpoints.search(self.deadline);
        loop {
            let chosen = search.next().await?;
            let left = limit.map(|_| search.left());
            match begin(chosen.core(), left).await {
                Ok(call) => return Ok(begun(call?, told, Some(chosen))),
                Err(unstarted) => search.failed(&chosen, unstarted.0),
            }
        }
    }

    fn told(&self, method: &'static MethodInfo) -> Told {
        Told {
            method: Cow::Borrowed(method.name),
            limit: self.deadline,
        }
    }
}

/// Window of a stream to a client, as its settings tell the server.
const WINDOW: Window = Window {
    items: WINDOW_ITEMS,
    bytes: WINDOW_BYTES,
};

/// A call with streams whose request was sent.
pub(super) struct Begun {
    pub(super) pending: Pending<Arc<Core>>,
    pub(super) streams: Streams,
    pub(super) told: Told,
    /// Connection of a client of several servers.
    pub(super) chosen: Option<Chosen>,
    /// Count of the call, until it has ended.
    pub(super) made: Option<Made>,
}

/// Returns the outcome of a call, as metrics name it.
pub(super) fn outcome_of<T, E>(outcome: &Outcome<T, E>) -> observe::Outcome {
    match outcome {
        Ok(_) => observe::Outcome::Ok,
        Err(CallError::Service(_)) => observe::Outcome::Service,
        Err(CallError::Rpc(_)) => observe::Outcome::Failed,
    }
}

/// Error of a call that the server has certainly not started.
pub(super) struct Unstarted(pub(super) Error);

/// Error of a call whose request was not sent as it should.
enum Failed {
    Unstarted(Unstarted),
    /// The server may have started the call, or no server can.
    Final(Error),
}

impl Failed {
    /// Returns the error of a call of whose request nothing was sent. Another connection may do
    /// better if the connection is the reason.
    fn unsent(error: Error) -> Self {
        match error {
            Error::Transport(_)
            | Error::Tcp { .. }
            | Error::Protocol { .. }
            | Error::Disconnected { .. }
            | Error::ShuttingDown => Self::Unstarted(Unstarted(error)),
            error => Self::Final(error),
        }
    }

    fn settle<T>(self) -> Result<Result<T, Error>, Unstarted> {
        match self {
            Self::Unstarted(unstarted) => Err(unstarted),
            Self::Final(error) => Ok(Err(error)),
        }
    }
}

/// Kind of the end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Response,
    /// The server has not started the call.
    Refusal,
    Other,
}

impl End {
    fn of(answer: &Answer) -> Self {
        match answer {
            Answer::Response { .. } => Self::Response,
            Answer::Status(Status::ShuttingDown | Status::Overloaded(_)) => Self::Refusal,
            _ => Self::Other,
        }
    }
}

/// Makes a unary call on a connection, with the given time limit.
pub(super) async fn unary_on<Q: ?Sized, T, E>(
    core: &Arc<Core>,
    (method, metadata): (u32, &Metadata),
    (limit, told): (Option<Duration>, &Told),
    body: &(u8, Value<'_, Q>),
    decode: impl Fn(&Arc<Core>, Answer, &mut Stored) -> Outcome<T, E>,
) -> Result<Outcome<T, E>, Unstarted> {
    let failed = |failed: Failed| failed.settle().map(|end| end.map_err(Into::into));
    let pending = match begin(&**core, limit, told, Streams::default()).await {
        Ok(pending) => pending,
        Err(error) => return failed(Failed::unsent(error)),
    };
    let mut leased = Leased::default();
    let leases = Some((core, &mut leased));
    let sent = send(
        pending,
        method,
        (limit, told),
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
    let (end, outcome) = poll_fn(|cx| {
        pending.poll_answer(cx, |answer, body| {
            let end = End::of(&answer);
            (end, decode(core, answer, body))
        })
    })
    .await;
    if !leased.is_empty() {
        drop(pending);
        match end {
            // The server responds only when it has stopped accessing the memory.
            End::Response => leased.end(),
            _ => leased.close().await,
        }
    }
    match outcome {
        Err(CallError::Rpc(error)) if end == End::Refusal => Err(Unstarted(error)),
        outcome => Ok(outcome),
    }
}

fn sender<F: Format, I>(begun: &Begun) -> Sender<I>
where
    F::Request: Encode<I>,
{
    let outlet = begun.streams.outlet.clone();
    let outlet = outlet.expect("the method has an input");
    let pending = &begun.pending;
    Sender::new::<F::Request>(outlet, Arc::clone(&pending.core), pending.id)
}

/// Occupies a slot, after waiting for a free one, and for room for the request.
async fn begin<C: Deref<Target = Core>>(
    core: C,
    limit: Option<Duration>,
    told: &Told,
    streams: Streams,
) -> Result<Pending<C>, Error> {
    let exceeded = || told.exceeded();
    if limit.is_some_and(|limit| limit.is_zero()) {
        return Err(exceeded());
    }
    let begun = Instant::now();
    let deadline = core.deadlines.after(begun, limit);
    if !core.outbox.has_room() || !calls(&core).try_permit() {
        let permit = async {
            core.outbox.room().await;
            calls(&core).permit(&core).await
        };
        // Only a call that has to wait makes a timer.
        match core.deadlines.time(deadline) {
            Some(time) => {
                let waited = timeout_at(time, permit).await;
                waited.unwrap_or_else(|_| Err(exceeded()))?;
            }
            None => permit.await?,
        }
    }
    Calls::begin(core, deadline, streams)
}

/// Sends the request of a call: at once if no other call is in progress, or else with the other
/// requests of this turn of the scheduler. The request can have bulks if there is a place for their
/// leases.
async fn send<Q: ?Sized, P: Deref<Target = Core>>(
    mut pending: Pending<P>,
    method: u32,
    (limit, told): (Option<Duration>, &Told),
    metadata: &[u8],
    (codec, value): &(u8, Value<'_, Q>),
    leases: Option<(&Arc<Core>, &mut Leased)>,
) -> Result<Pending<P>, Failed> {
    let header = Header::Request {
        id: pending.id,
        codec: *codec,
        method,
        limit,
        metadata,
    };
    let core = &*pending.core;
    let is_alone = calls(core).has_one();
    let leaves = match is_alone {
        true => Leaves::WithFlush,
        false => Leaves::AtTurnEnd,
    };
    let append = || {
        core.outbox
            .append(&header, value, core.send_limit(), leaves)
    };
    let placed = match leases {
        None => append(),
        Some((core, leased)) => bulk::place(core, usize::MAX, append).map(|(placed, new)| {
            *leased = new;
            placed
        }),
    };
    let sent = match placed.map_err(|unplaced| Failed::unsent(unsent(core, unplaced)))? {
        Placed::Batched if is_alone => core.outbox.flush(),
        Placed::Batched => Ok(()),
        Placed::Long(batch) => {
            pending.is_sent = true;
            let sending = send_long(&*pending.core, batch);
            by_deadline(pending.deadline(), told, sending).await
        }
    };
    pending.is_sent = true;
    match sent {
        Ok(()) => Ok(pending),
        Err(error) if error.is_refusal() => {
            pending.is_sent = false;
            let limit = pending.core.send_limit();
            Err(Failed::Final(too_large(value, header.len(), limit)))
        }
        Err(error) => {
            let end = pending.core.end().cloned();
            Err(Failed::Final(end.unwrap_or(error)))
        }
    }
}

/// Waits until a long request is sent, at most until the deadline of its call.
async fn by_deadline(
    deadline: Option<Instant>,
    told: &Told,
    sending: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    match deadline {
        None => sending.await,
        Some(deadline) => timeout_at(deadline, sending)
            .await
            .unwrap_or_else(|_| Err(told.exceeded())),
    }
}

fn too_large<Q: ?Sized>(value: &Value<'_, Q>, header: usize, limit: usize) -> Error {
    let front = MESSAGE_HEADER + header;
    let len = value.encoded_len().map_or(0, |len| front + len);
    Error::TooLarge { len, limit }
}

/// Returns the error of a request that was not sent.
fn unsent(core: &Core, unplaced: Unplaced) -> Error {
    match unplaced {
        Unplaced::Transport(error) => core.end().cloned().unwrap_or(error),
        unplaced => unplaced.into_error(),
    }
}

/// Converts the answer to a call.
pub(super) fn decode<F: Format, T, E>(
    core: &Arc<Core>,
    answer: Answer,
    body: &mut Stored,
    told: &Told,
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
        other => Err(told.error_of(other).into()),
    }
}
