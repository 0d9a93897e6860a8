//! Calls: a request, and the wait for its response.

use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Client;
use super::calls::{Answer, Calls, Pending, calls};
use super::streaming::{Response, Streaming};
use crate::bulk::{self, Leased};
use crate::codec::{Codec, Decode, Encodable, Encode, Format, Value};
use crate::core::Core;
use crate::error::{CallError, Error};
use crate::method::MethodInfo;
use crate::outbox::{Leaves, Placed, Unplaced, send_long};
use crate::payload::Stored;
use crate::stream::{Inlet, Outlet, Sender, Streams, Window, decode_stored};
use crate::wire::{CallId, Header, MESSAGE_HEADER};

/// Outcome of a call: the result of the handler, or the reason why there is none.
pub(super) type Outcome<T, E> = Result<T, CallError<E>>;

/// Method and time limit of a call, for the errors of its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub(super) method: &'static str,
    pub(super) limit: Duration,
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
        let (told, limit) = (self.told(method), Some(self.deadline));
        let core = self.core();
        let begun = begin(&**core, limit, told, Streams::default()).await?;
        let mut leased = Leased::default();
        let sent = send::<F::Request, Q, _>(
            begun,
            method,
            (limit, told),
            self.metadata.encoded(),
            &request,
            Some((core, &mut leased)),
        )
        .await;
        let pending = match sent {
            Ok(pending) => pending,
            Err(error) => {
                leased.close().await;
                return Err(error.into());
            }
        };
        let (is_response, outcome) = poll_fn(|cx| {
            pending.poll_answer(cx, |answer, body| {
                let is_response = matches!(answer, Answer::Response { .. });
                (is_response, decode::<F, T, E>(core, answer, body, told))
            })
        })
        .await;
        if leased.is_empty() {
            return outcome;
        }
        drop(pending);
        match is_response {
            // The server responds only when it has stopped accessing the memory.
            true => leased.end(),
            false => leased.close().await,
        }
        outcome
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
        let core = self.core();
        if let Some(end) = core.end() {
            return Err(end.clone());
        }
        if calls(core).is_closing() {
            return Err(Error::ShuttingDown);
        }
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
            metadata: self.metadata.encoded(),
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
                match by_deadline(deadline, self.told(method), sending).await {
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
        let streams = Streams {
            outlet: Some(Arc::new(Outlet::new(Window::default()))),
            ..Streams::default()
        };
        let (pending, told) = self
            .stream::<F, Q>(method, &request, streams.clone())
            .await?;
        let sender = sender::<F, I>(&pending, &streams);
        Ok((sender, Response::new::<F>(pending, told)))
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
        let inlet = Arc::new(Inlet::new(self.window()));
        let streams = Streams {
            inlet: Some(Arc::clone(&inlet)),
            ..Streams::default()
        };
        let (pending, told) = self.stream::<F, Q>(method, &request, streams).await?;
        Ok(Streaming::new::<F>(pending, told, inlet))
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
        let inlet = Arc::new(Inlet::new(self.window()));
        let streams = Streams {
            inlet: Some(Arc::clone(&inlet)),
            outlet: Some(Arc::new(Outlet::new(Window::default()))),
            ..Streams::default()
        };
        let (pending, told) = self
            .stream::<F, Q>(method, &request, streams.clone())
            .await?;
        let sender = sender::<F, I>(&pending, &streams);
        Ok((sender, Streaming::new::<F>(pending, told, inlet)))
    }

    async fn stream<F: Format, Q>(
        &self,
        method: &'static MethodInfo,
        request: &Q,
        streams: Streams,
    ) -> Result<(Pending<Arc<Core>>, Told), Error>
    where
        F::Request: Encode<Q>,
    {
        let told = self.told(method);
        let limit = self.has_own_deadline.then_some(self.deadline);
        let begun = begin(Arc::clone(self.core()), limit, told, streams).await?;
        let metadata = self.metadata.encoded();
        let pending =
            send::<F::Request, Q, _>(begun, method, (limit, told), metadata, request, None).await?;
        Ok((pending, told))
    }

    fn told(&self, method: &'static MethodInfo) -> Told {
        Told {
            method: method.name,
            limit: self.deadline,
        }
    }

    fn window(&self) -> Window {
        let own = &self.core().own;
        Window {
            items: own.window_items,
            bytes: own.window_bytes,
        }
    }
}

fn sender<F: Format, I>(pending: &Pending<Arc<Core>>, streams: &Streams) -> Sender<I>
where
    F::Request: Encode<I>,
{
    let outlet = streams.outlet.clone().expect("the call has an outlet");
    Sender::new::<F::Request>(outlet, Arc::clone(&pending.core), pending.id)
}

/// Occupies a slot, after waiting for a free one, and for room for the request.
async fn begin<C: Deref<Target = Core>>(
    core: C,
    limit: Option<Duration>,
    told: Told,
    streams: Streams,
) -> Result<Pending<C>, Error> {
    let exceeded = || Error::DeadlineExceeded {
        method: told.method,
        limit: told.limit,
    };
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
/// requests of this turn of the scheduler. The request can have bulks if there is a place for their leases.
async fn send<C: Encode<Q>, Q, P: Deref<Target = Core>>(
    mut pending: Pending<P>,
    method: &'static MethodInfo,
    (limit, told): (Option<Duration>, Told),
    metadata: &[u8],
    request: &Q,
    leases: Option<(&Arc<Core>, &mut Leased)>,
) -> Result<Pending<P>, Error> {
    let header = Header::Request {
        id: pending.id,
        codec: C::ID,
        method: method.id,
        limit,
        metadata,
    };
    let core = &*pending.core;
    let is_alone = calls(core).has_one();
    let leaves = match is_alone {
        true => Leaves::WithFlush,
        false => Leaves::AtTurnEnd,
    };
    let value = Value::new::<C>(request);
    let append = || {
        core.outbox
            .append(&header, &value, core.send_limit(), leaves)
    };
    let placed = match leases {
        None => append(),
        Some((core, leased)) => bulk::place(core, usize::MAX, append).map(|(placed, new)| {
            *leased = new;
            placed
        }),
    };
    let sent = match placed.map_err(|unplaced| unsent(core, unplaced))? {
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
            Err(too_large(&value, header.len(), pending.core.send_limit()))
        }
        Err(error) => Err(pending.core.end().cloned().unwrap_or(error)),
    }
}

/// Waits until a long request is sent, at most until the deadline of its call.
async fn by_deadline(
    deadline: Option<Instant>,
    told: Told,
    sending: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    match deadline {
        None => sending.await,
        Some(deadline) => timeout_at(deadline, sending).await.unwrap_or({
            Err(Error::DeadlineExceeded {
                method: told.method,
                limit: told.limit,
            })
        }),
    }
}

fn too_large<Q>(value: &Value<'_, Q>, header: usize, limit: usize) -> Error {
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
    told: Told,
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
        Answer::Status(status) => Err(status.into_error(told.method, told.limit).into()),
        Answer::Expired => Err(Error::DeadlineExceeded {
            method: told.method,
            limit: told.limit,
        }
        .into()),
        Answer::Ended(error) => Err(error.into()),
    }
}
