//! The execution of requests: decoding, the first poll of the handler, and the response.

use std::any::{Any, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use tokio::time::Instant;

use super::call::Call;
use super::call_limit::{CallLimit, CallPermit};
use super::connection::{ServerConnection, refuse};
use super::context::Context;
use super::handler_task::HandlerTask;
use crate::bulk::{self, Accesses};
use crate::codec::{Codec, CodecError, Decode, Encode, MethodCodecs, TypedBody};
use crate::core::Core;
use crate::error::Result;
use crate::metadata::Metadata;
use crate::method::MethodInfo;
#[cfg(feature = "reflection")]
use crate::observe::CallCounters;
use crate::observe::{self, Outcome, ServerObservation};
use crate::once::Refusal;
use crate::outbox::{Appended, Batch, SendAt, send_long};
use crate::payload::Body;
use crate::status::Status;
use crate::stream::{ReceiveBuffer, SendWindow, Streams, WINDOW_BYTES, WINDOW_ITEMS, Window};
use crate::wire::{CallId, Header, ONE_WAY};

/// Duration of a single poll of a handler above which the server logs a warning. Other calls of the
/// same thread must wait during the poll. A poll of a well-behaved handler takes microseconds.
const MAX_POLL_TIME: Duration = Duration::from_millis(10);

/// Maximum number of unused heap allocations that a method keeps for the handlers of later calls.
/// Limits the memory while few calls run.
const MAX_SPARE_FUTURES: usize = 64;

/// Allocation that contains the future of a running handler. Later calls of the method use the same
/// allocation. Between two calls, the allocation contains `None`.
pub(super) type FutureBox<Fut> = Pin<Box<Option<Fut>>>;

/// A received request whose body was not decoded yet.
pub(super) struct IncomingRequest<'m> {
    pub(super) core: &'m Arc<Core>,
    pub(super) id: CallId,
    pub(super) codec: u8,
    pub(super) limit: Option<Duration>,
    pub(super) metadata: Metadata,
    pub(super) body: Body<'m>,
    /// Time at which the clock was last read, so that one reading serves several requests of a
    /// message. Updated after each poll of a handler.
    pub(super) clock: &'m mut Instant,
}

/// A method of a server. The types of its request and result are erased, so that a table can
/// contain all methods.
pub(super) trait Handler: Send + Sync {
    /// Returns the description of the method: its number, its name and its properties.
    fn info(&self) -> &'static MethodInfo;

    /// Returns the number that identifies the codec (encoding) of the method's requests. The
    /// reflection service reports this number.
    #[cfg(feature = "reflection")]
    fn codec(&self) -> u8;

    /// Returns the counters of the method's calls, for the reflection service. Calls are counted
    /// from the first use of this function on.
    #[cfg(feature = "reflection")]
    fn counters(&self) -> Arc<CallCounters>;

    /// Sets the maximum number of running calls of the method to `calls`. Only the first call of
    /// this function has an effect.
    fn set_limit(&self, calls: usize);

    /// Decodes a request, starts its handler and polls the handler once. If the handler has
    /// finished, appends its response to the send queue. Otherwise spawns a task that runs the
    /// handler further. Fails only if the client has violated the protocol.
    fn start(&self, incoming: IncomingRequest<'_>) -> Result<()>;
}

/// A method of a server with its handler. The handler `H` is a function that receives a request of
/// type `Q` and returns a future `Fut` with the output `Result<T, E>`. `F` selects the codecs of
/// these types.
pub(super) struct TypedHandler<F, Q, T, E, Fut, H> {
    info: &'static MethodInfo,
    handle: H,
    spare: ArrayQueue<FutureBox<Fut>>,
    call_limit: OnceLock<Arc<CallLimit>>,
    #[cfg(feature = "reflection")]
    counts: OnceLock<Arc<CallCounters>>,
    #[expect(clippy::type_complexity, reason = "a marker of the types of a method")]
    types: PhantomData<fn() -> (F, Q, T, E)>,
}

impl<F, Q, T, E, Fut, H> TypedHandler<F, Q, T, E, Fut, H> {
    pub(super) fn new(info: &'static MethodInfo, handle: H) -> Self {
        Self {
            info,
            handle,
            spare: ArrayQueue::new(MAX_SPARE_FUTURES),
            call_limit: OnceLock::new(),
            #[cfg(feature = "reflection")]
            counts: OnceLock::new(),
            types: PhantomData,
        }
    }

    /// Drops the handler's future in `boxed`. Keeps the heap allocation for the handler of a later
    /// call of this method.
    pub(super) fn recycle(&self, mut boxed: FutureBox<Fut>) {
        boxed.set(None);
        // An allocation beyond the capacity of the queue is freed.
        drop(self.spare.push(boxed));
    }
}

impl<F, Q, T, E, Fut, H> fmt::Debug for TypedHandler<F, Q, T, E, Fut, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(type_name::<Self>())
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl<F, Q, T, E, Fut, H> Handler for Arc<TypedHandler<F, Q, T, E, Fut, H>>
where
    F: MethodCodecs,
    F::Request: Decode<Q>,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
    Q: 'static,
    T: Send + 'static,
    E: Send + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    H: Fn(Call<Q>) -> Fut + Send + Sync + 'static,
{
    fn info(&self) -> &'static MethodInfo {
        self.info
    }

    #[cfg(feature = "reflection")]
    fn codec(&self) -> u8 {
        <F::Request as Codec>::ID
    }

    #[cfg(feature = "reflection")]
    fn counters(&self) -> Arc<CallCounters> {
        Arc::clone(self.counts.get_or_init(Arc::default))
    }

    fn set_limit(&self, calls: usize) {
        self.call_limit
            .get_or_init(|| Arc::new(CallLimit::new(calls)));
    }

    fn start(&self, incoming: IncomingRequest<'_>) -> Result<()> {
        let IncomingRequest {
            core,
            id,
            codec,
            limit,
            metadata,
            body,
            clock,
        } = incoming;
        let connection = ServerConnection::of(core);
        if id.index == ONE_WAY && !self.info.is_one_way {
            let reason = "the method has a response or streams";
            refuse(core, id, &Status::BadRequest(reason.into()));
            return Ok(());
        }
        if self.info.is_once
            && let Err(status) = connection.shared.once.check(
                &metadata,
                &connection.once_client,
                connection.shared.concurrency,
            )
        {
            observe::count_refused(connection.shared.observe, self.info.name);
            refuse(core, id, &status);
            return Ok(());
        }
        let mut permits = match self.acquire_permits(connection, id) {
            Ok(permits) => permits,
            Err(reason) => {
                observe::count_refused(connection.shared.observe, self.info.name);
                refuse(core, id, &Status::Overloaded(reason.into()));
                return Ok(());
            }
        };
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            bulk::decode(core, false, || decode::<F::Request, Q>(codec, body))
        }));
        let decoded = decoded.unwrap_or_else(|_| Err(CodecError::new("the decoder panicked")));
        let (request, bulks) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                observe::count_refused(connection.shared.observe, self.info.name);
                refuse(core, id, &Status::BadRequest(error.to_string().into()));
                return Ok(());
            }
        };
        let deadline = core.deadlines.after(*clock, limit);
        let streams = self.streams(core, bulks);
        if id.index != ONE_WAY && !connection.slots.begin(id, deadline, streams.clone())? {
            return Ok(());
        }
        if !connection.begin_handler() {
            connection.slots.end(id);
            refuse(core, id, &Status::ShuttingDown);
            return Ok(());
        }
        if self.info.has_input {
            // The caller sends no item before this window, so that no item arrives before its
            // request.
            let (items, bytes) = (WINDOW_ITEMS, WINDOW_BYTES);
            let window = Header::Window { id, items, bytes };
            core.send_control(&window);
        }
        let observed = ServerObservation::begin(
            connection.shared.observe,
            self.info.name,
            &core.peer,
            &metadata,
        );
        #[cfg(feature = "reflection")]
        let observed = observed.with_counters(self.counts.get());
        let context = Context::new(core, id, deadline, metadata);
        let mut call = Call::new(context, request, streams.clone());
        if self.info.is_once {
            call.set_permits(std::mem::take(&mut permits));
        }
        let mut boxed = self.spare.pop().unwrap_or_else(|| Box::pin(None));
        // Unwind safe: a future that panicked is not polled again.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            observed.within(|| {
                boxed.set(Some((self.handle)(call)));
                poll(&mut boxed, &mut TaskContext::from_waker(Waker::noop()))
            })
        }));
        let now = Instant::now();
        self.report_blocking(now.saturating_duration_since(*clock));
        *clock = now;
        match polled {
            Ok(Poll::Ready(result)) => {
                self.recycle(boxed);
                observed.end(outcome_of(&result));
                streams.bulks.close();
                if !streams.bulks.is_idle() {
                    // A task that the handler has spawned is still transferring a piece of a bulk.
                    let (method, core) = (Arc::clone(self), Arc::clone(core));
                    core.runtime.clone().spawn(async move {
                        method.respond(&core, id, &streams, result).await;
                        ServerConnection::of(&core).end_handler();
                    });
                } else if let Some(batch) =
                    self.finish(core, id, &streams, &result, SendAt::NextFlush)
                {
                    let (sending, core) = (send_response(core, id, batch), Arc::clone(core));
                    core.runtime.clone().spawn(async move {
                        sending.await;
                        ServerConnection::of(&core).end_handler();
                    });
                } else {
                    connection.end_handler();
                }
            }
            Ok(Poll::Pending) => {
                let running = HandlerTask::new(self, boxed, core, id, streams, (permits, observed));
                let task = core.runtime.spawn(running.run(deadline));
                if id.index != ONE_WAY {
                    connection.slots.set_task(id, task.abort_handle());
                    core.deadlines.add(deadline);
                    // If the connection ended before this call occupied its slot, `fail` has not
                    // seen the call.
                    if core.end().is_some() {
                        connection.slots.cancel(id)?;
                    }
                }
            }
            Err(payload) => {
                drop_catching_panic(boxed);
                observed.end(self.unwound(core, id, payload));
                connection.end_handler();
            }
        }
        Ok(())
    }
}

impl<F, Q, T, E, Fut, H> TypedHandler<F, Q, T, E, Fut, H>
where
    F: MethodCodecs,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
{
    /// Creates the streams of a call: a receive buffer if the caller sends a stream, and a send
    /// window if the handler sends a stream. `bulks` are the permissions to access the memory of
    /// the [`Bulk`](crate::Bulk)s in the request.
    fn streams(&self, core: &Core, bulks: Accesses) -> Streams {
        let window = Window {
            items: WINDOW_ITEMS,
            bytes: WINDOW_BYTES,
        };
        // A long request may overtake the client's settings, which contain the initial window.
        let granted = core
            .peer_settings()
            .map_or(Window { items: 1, bytes: 1 }, |others| Window {
                items: others.window_items,
                bytes: others.window_bytes,
            });
        Streams {
            incoming: self
                .info
                .has_input
                .then(|| Arc::new(ReceiveBuffer::new(window))),
            outgoing: self
                .info
                .has_output
                .then(|| Arc::new(SendWindow::new(granted))),
            bulks,
        }
    }

    /// Counts a call as running until the returned permits are dropped. The three permits are for
    /// the limits of the server, of the method, and, for a one-way call, of the connection. A
    /// permit is `None` if no such limit applies. If a limit is reached, returns the reason for
    /// refusing the call.
    fn acquire_permits(
        &self,
        connection: &ServerConnection,
        id: CallId,
    ) -> Result<[Option<CallPermit>; 3], &'static str> {
        let limits = [
            (
                connection.shared.load.as_ref(),
                "the limit of running calls is reached",
            ),
            (
                self.call_limit.get(),
                "the limit of running calls of the method is reached",
            ),
            (
                (id.index == ONE_WAY).then_some(&connection.one_way),
                "the limit of running one-way calls of the connection is reached",
            ),
        ];
        let mut permits = [None, None, None];
        for (permit, (limit, reason)) in permits.iter_mut().zip(limits) {
            if let Some(limit) = limit {
                *permit = Some(limit.try_acquire().ok_or(reason)?);
            }
        }
        Ok(permits)
    }

    /// Sends `result`, the result of the call `id`, and ends the call. First waits until the last
    /// pieces of the request's [`Bulk`](crate::Bulk)s were transferred, because the caller can use
    /// the memory of the bulks again after the response.
    async fn respond(&self, core: &Arc<Core>, id: CallId, streams: &Streams, result: Result<T, E>) {
        streams.bulks.close();
        streams.bulks.idle().await;
        match self.finish(core, id, streams, &result, SendAt::TurnEnd) {
            Some(batch) => send_response(core, id, batch).await,
            None => core.outbox.schedule(),
        }
    }

    /// Ends a call and appends its response to the outbox (send queue) of the connection. If the
    /// response is too long to share a message with other frames, returns it as a separate message
    /// instead. The caller must send this message.
    pub(super) fn finish(
        &self,
        core: &Arc<Core>,
        id: CallId,
        streams: &Streams,
        result: &Result<T, E>,
        send_at: SendAt,
    ) -> Option<Box<Batch>> {
        if id.index == ONE_WAY {
            return None;
        }
        // The slot must be free before the response is sent, because the client may then use the
        // slot again.
        if !ServerConnection::of(core).slots.end(id) {
            // The caller has cancelled the call, or got a status when its deadline passed. The
            // caller would ignore the response, and not release the memory of its bulks.
            return None;
        }
        let items = streams.outgoing.as_ref().map(|outgoing| outgoing.sent());
        let header = |codec, is_error| Header::Response {
            id,
            codec,
            is_error,
            items,
        };
        let limit = core.send_limit();
        // Unwind safe: a batch changes only after a frame was encoded completely.
        let append = || match result {
            Ok(value) => {
                let header = header(<F::Response as Codec>::ID, false);
                let value = TypedBody::new::<F::Response>(value);
                core.outbox.append(&header, &value, limit, send_at)
            }
            Err(error) => {
                let header = header(<F::Error as Codec>::ID, true);
                let error = TypedBody::new::<F::Error>(error);
                core.outbox.append(&header, &error, limit, send_at)
            }
        };
        let appended = catch_unwind(AssertUnwindSafe(|| {
            bulk::append_with_bulks(core, bulk::results_left(core), append)
        }));
        match appended {
            Ok(Ok((appended, leased))) => {
                if !leased.is_empty() {
                    let connection = ServerConnection::of(core);
                    let results = bulk::expire_results(leased, connection.shared.bulk_lease);
                    connection.slots.set_results(id, results);
                }
                match appended {
                    Appended::Batched => None,
                    Appended::Long(batch) => Some(batch),
                }
            }
            Err(payload) => {
                self.unwound(core, id, payload);
                None
            }
            Ok(Err(error)) => {
                refuse(core, id, &error.into_status());
                None
            }
        }
    }

    /// Ends the call `id` after a panic of its handler or of the encoder of its response. The
    /// caller gets [`Status::Panicked`]. If the panic's `payload` is a [`Refusal`], the handler's
    /// task has refused the call, and the caller gets the status in the refusal. Returns the
    /// outcome of the call for the metrics.
    pub(super) fn unwound(&self, core: &Core, id: CallId, payload: Box<dyn Any + Send>) -> Outcome {
        let (status, outcome) = match payload.downcast::<Refusal>() {
            Ok(refusal) => (refusal.0, Outcome::Failed),
            Err(_) => {
                tracing::error!(method = self.info.name, "a handler panicked");
                (Status::Panicked, Outcome::Panicked)
            }
        };
        if id.index != ONE_WAY {
            ServerConnection::of(core).slots.end(id);
        }
        refuse(core, id, &status);
        outcome
    }

    /// Logs a warning if a poll of a handler took longer than [`MAX_POLL_TIME`], because such a
    /// poll blocks its thread. `elapsed` is the duration of the poll.
    pub(super) fn report_blocking(&self, elapsed: Duration) {
        if elapsed >= MAX_POLL_TIME {
            let method = self.info.name;
            tracing::warn!(
                method,
                ?elapsed,
                "a handler blocks its thread: use spawn_blocking"
            );
        }
    }
}

/// Returns the outcome of a handler for the metrics and for the numbers of calls that the
/// reflection service reports: success, or an error of the service.
pub(super) fn outcome_of<T, E>(result: &Result<T, E>) -> Outcome {
    match result {
        Ok(_) => Outcome::Ok,
        Err(_) => Outcome::Service,
    }
}

/// Polls the future of a handler. When the handler has finished, returns its result, drops the
/// future, and keeps the allocation of the future for a later call.
pub(super) fn poll<Fut: Future>(
    boxed: &mut FutureBox<Fut>,
    cx: &mut TaskContext<'_>,
) -> Poll<Fut::Output> {
    let future = boxed
        .as_mut()
        .as_pin_mut()
        .expect("the future was not dropped yet");
    let polled = future.poll(cx);
    if polled.is_ready() {
        boxed.set(None);
    }
    polled
}

/// Drops the future of a handler that has panicked or whose call was ended. Catches a panic of the
/// destructor, so that only this call fails.
pub(super) fn drop_catching_panic<Fut>(boxed: FutureBox<Fut>) {
    drop(catch_unwind(AssertUnwindSafe(|| drop(boxed))));
}

/// Decodes the body of a request with the codec `C`. `codec` is the codec number that the request
/// contains. Fails if this number is not that of `C`, or if `C` cannot decode the body.
fn decode<C: Decode<Q>, Q>(codec: u8, body: Body<'_>) -> Result<Q, CodecError> {
    if codec != C::ID {
        return Err(CodecError::codec_mismatch(codec, C::ID));
    }
    match body {
        Body::Short(bytes) => C::decode(bytes),
        Body::Long(retained) => C::decode_payload(retained.into()),
    }
}

/// Returns a future that sends `batch`, a separate message with one long response. If the client
/// refuses the message as too long, sends [`Status::TooLarge`] instead.
pub(super) fn send_response(
    core: &Arc<Core>,
    id: CallId,
    batch: Box<Batch>,
) -> impl Future<Output = ()> + Send + 'static {
    let len = batch.len();
    let (sending, core) = (send_long(Arc::clone(core), batch), Arc::clone(core));
    async move {
        match sending.await {
            Ok(()) => ServerConnection::of(&core).count_long_response(),
            Err(error) if error.is_refusal() => {
                let (len, limit) = (len as u64, core.send_limit() as u64);
                refuse(&core, id, &Status::TooLarge { len, limit });
            }
            Err(error) => core.fail(error),
        }
    }
}
