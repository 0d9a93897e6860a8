//! Handlers: the methods of a server, whose futures are polled first where their request is found.

use std::any::type_name;
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
use super::context::Context;
use super::gate::{Entered, Gate};
use super::running::Running;
use super::serving::{Serving, refuse};
use crate::bulk::{self, Accesses};
use crate::codec::{Codec, CodecError, Decode, Encode, Format, Value};
use crate::core::Core;
use crate::error::Result;
use crate::metadata::Metadata;
use crate::method::MethodInfo;
#[cfg(feature = "reflection")]
use crate::observe::Counts;
use crate::observe::{self, Handled, Outcome};
use crate::outbox::{Batch, Leaves, Placed, send_long};
use crate::payload::Body;
use crate::status::Status;
use crate::stream::{Inlet, Outlet, Streams, WINDOW_BYTES, WINDOW_ITEMS, Window};
use crate::wire::{CallId, Header, ONE_WAY};

/// Time for which a poll of a handler may occupy the thread before it is reported in the log.
const BLOCKING: Duration = Duration::from_millis(10);

/// Number of futures of one method whose memory is kept for the next calls.
const SPARE: usize = 64;

/// Memory of a handler's future, which is used again for later calls.
pub(super) type Cell<Fut> = Pin<Box<Option<Fut>>>;

/// A received request.
pub(super) struct Incoming<'m> {
    pub(super) core: &'m Arc<Core>,
    pub(super) id: CallId,
    pub(super) codec: u8,
    pub(super) limit: Option<Duration>,
    pub(super) metadata: Metadata,
    pub(super) body: Body<'m>,
    /// Time of the last reading of the clock.
    pub(super) clock: &'m mut Instant,
}

/// A method of a server.
pub(super) trait Handler: Send + Sync {
    fn info(&self) -> &'static MethodInfo;

    /// Returns the number of the codec of the requests.
    #[cfg(feature = "reflection")]
    fn codec(&self) -> u8;

    /// Counts the calls of the method from now on.
    #[cfg(feature = "reflection")]
    fn count(&self) -> Arc<Counts>;

    /// Limits the calls of the method that run at once. Only the first call has an effect.
    fn limit(&self, calls: usize);

    /// Decodes a request and polls its handler. If the handler does not finish, it becomes a task.
    fn start(&self, incoming: Incoming<'_>) -> Result<()>;
}

/// A method with its types.
pub(super) struct Typed<F, Q, T, E, Fut, H> {
    info: &'static MethodInfo,
    handle: H,
    spare: ArrayQueue<Cell<Fut>>,
    gate: OnceLock<Arc<Gate>>,
    #[cfg(feature = "reflection")]
    counts: OnceLock<Arc<Counts>>,
    #[expect(clippy::type_complexity, reason = "a marker of the types of a method")]
    types: PhantomData<fn() -> (F, Q, T, E)>,
}

impl<F, Q, T, E, Fut, H> Typed<F, Q, T, E, Fut, H> {
    pub(super) fn new(info: &'static MethodInfo, handle: H) -> Self {
        Self {
            info,
            handle,
            spare: ArrayQueue::new(SPARE),
            gate: OnceLock::new(),
            #[cfg(feature = "reflection")]
            counts: OnceLock::new(),
            types: PhantomData,
        }
    }

    /// Keeps the memory of a future, which is dropped.
    pub(super) fn keep(&self, mut cell: Cell<Fut>) {
        cell.set(None);
        // Memory above the limit is freed.
        drop(self.spare.push(cell));
    }
}

impl<F, Q, T, E, Fut, H> fmt::Debug for Typed<F, Q, T, E, Fut, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(type_name::<Self>())
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl<F, Q, T, E, Fut, H> Handler for Arc<Typed<F, Q, T, E, Fut, H>>
where
    F: Format,
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
    fn count(&self) -> Arc<Counts> {
        Arc::clone(self.counts.get_or_init(Arc::default))
    }

    fn limit(&self, calls: usize) {
        self.gate.get_or_init(|| Arc::new(Gate::new(calls)));
    }

    fn start(&self, incoming: Incoming<'_>) -> Result<()> {
        let Incoming {
            core,
            id,
            codec,
            limit,
            metadata,
            body,
            clock,
        } = incoming;
        let serving = Serving::of(core);
        if id.index == ONE_WAY && !self.info.is_one_way {
            let reason = "the method has a response or streams";
            refuse(core, id, &Status::BadRequest(reason.into()));
            return Ok(());
        }
        if self.info.is_once
            && let Err(status) =
                serving
                    .shared
                    .once
                    .check(&metadata, &serving.session, serving.shared.concurrency)
        {
            observe::refused(serving.shared.observed, self.info.name);
            refuse(core, id, &status);
            return Ok(());
        }
        let mut entered = match self.enter(serving, id) {
            Ok(entered) => entered,
            Err(reason) => {
                observe::refused(serving.shared.observed, self.info.name);
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
                observe::refused(serving.shared.observed, self.info.name);
                refuse(core, id, &Status::BadRequest(error.to_string().into()));
                return Ok(());
            }
        };
        let deadline = core.deadlines.after(*clock, limit);
        let streams = self.streams(core, bulks);
        if id.index != ONE_WAY && !serving.slots.begin(id, deadline, streams.clone())? {
            return Ok(());
        }
        if !serving.begin() {
            serving.slots.end(id);
            refuse(core, id, &Status::ShuttingDown);
            return Ok(());
        }
        if self.info.has_input {
            // The caller's items wait for this window, so that none arrives before its request.
            let (items, bytes) = (WINDOW_ITEMS, WINDOW_BYTES);
            let window = Header::Window { id, items, bytes };
            // If the connection has ended, so has the call.
            drop(core.outbox.append_bare(&window));
        }
        let handled = Handled::begin(
            serving.shared.observed,
            self.info.name,
            &core.peer,
            &metadata,
        );
        #[cfg(feature = "reflection")]
        let handled = handled.counted(self.counts.get());
        let context = Context::new(core, id, deadline, metadata);
        let mut call = Call::new(context, request, streams.clone());
        if self.info.is_once {
            call.set_gates(std::mem::take(&mut entered));
        }
        let mut cell = self.spare.pop().unwrap_or_else(|| Box::pin(None));
        // Unwind safe: a future that has panicked is dropped.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            handled.within(|| {
                cell.set(Some((self.handle)(call)));
                poll(&mut cell, &mut TaskContext::from_waker(Waker::noop()))
            })
        }));
        let now = Instant::now();
        self.report_blocking(now.saturating_duration_since(*clock));
        *clock = now;
        match polled {
            Ok(Poll::Ready(result)) => {
                self.keep(cell);
                handled.end(outcome_of(&result));
                streams.bulks.close();
                if !streams.bulks.is_idle() {
                    // A task of the handler still transfers a piece.
                    let (method, core) = (Arc::clone(self), Arc::clone(core));
                    core.runtime.clone().spawn(async move {
                        method.respond(&core, id, &streams, result).await;
                        Serving::of(&core).ended();
                    });
                } else if let Some(batch) =
                    self.finish(core, id, &streams, &result, Leaves::WithFlush)
                {
                    let (sending, core) = (send(core, id, batch), Arc::clone(core));
                    core.runtime.clone().spawn(async move {
                        sending.await;
                        Serving::of(&core).ended();
                    });
                } else {
                    serving.ended();
                }
            }
            Ok(Poll::Pending) => {
                let running = Running::new(self, cell, core, id, streams, (entered, handled));
                let task = core.runtime.spawn(running.run(deadline));
                if id.index != ONE_WAY {
                    serving.slots.set_task(id, task.abort_handle());
                    core.deadlines.add(deadline);
                    // The connection may have ended its calls before this one began.
                    if core.end().is_some() {
                        serving.slots.cancel(id)?;
                    }
                }
            }
            Err(_) => {
                drop_quietly(cell);
                handled.end(Outcome::Panicked);
                self.panicked(core, id);
                serving.ended();
            }
        }
        Ok(())
    }
}

impl<F, Q, T, E, Fut, H> Typed<F, Q, T, E, Fut, H>
where
    F: Format,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
{
    fn streams(&self, core: &Core, bulks: Accesses) -> Streams {
        let window = Window {
            items: WINDOW_ITEMS,
            bytes: WINDOW_BYTES,
        };
        // The settings are the first message of the client, which a long request may overtake.
        let granted = core
            .others()
            .map_or(Window { items: 1, bytes: 1 }, |others| Window {
                items: others.window_items,
                bytes: others.window_bytes,
            });
        Streams {
            inlet: self.info.has_input.then(|| Arc::new(Inlet::new(window))),
            outlet: self.info.has_output.then(|| Arc::new(Outlet::new(granted))),
            bulks,
        }
    }

    /// Counts a call at the gates of the server, of the method and of one-way calls.
    fn enter(&self, serving: &Serving, id: CallId) -> Result<[Option<Entered>; 3], &'static str> {
        let gates = [
            (
                serving.shared.load.as_ref(),
                "it runs as many calls as it may",
            ),
            (
                self.gate.get(),
                "it runs as many calls of the method as it may",
            ),
            (
                (id.index == ONE_WAY).then_some(&serving.one_way),
                "it runs as many one-way calls of the connection as it may",
            ),
        ];
        let mut entered = [None, None, None];
        for (entered, (gate, reason)) in entered.iter_mut().zip(gates) {
            if let Some(gate) = gate {
                *entered = Some(gate.enter().ok_or(reason)?);
            }
        }
        Ok(entered)
    }

    /// Ends a call and sends its response, after the last piece of its bulks was transferred.
    async fn respond(&self, core: &Arc<Core>, id: CallId, streams: &Streams, result: Result<T, E>) {
        streams.bulks.close();
        streams.bulks.idle().await;
        match self.finish(core, id, streams, &result, Leaves::AtTurnEnd) {
            Some(batch) => send(core, id, batch).await,
            None => core.outbox.schedule(),
        }
    }

    /// Ends a call and appends its response. Returns a response that is too long for a batch.
    pub(super) fn finish(
        &self,
        core: &Arc<Core>,
        id: CallId,
        streams: &Streams,
        result: &Result<T, E>,
        leaves: Leaves,
    ) -> Option<Batch> {
        if id.index == ONE_WAY {
            return None;
        }
        // Before the response: the client may use the slot again as soon as it has the response.
        Serving::of(core).slots.end(id);
        let items = streams.outlet.as_ref().map(|outlet| outlet.sent());
        let header = |codec, is_error| Header::Response {
            id,
            codec,
            is_error,
            items,
        };
        let limit = core.send_limit();
        // Unwind safe: a batch is changed only after its frame was encoded.
        let append = || match result {
            Ok(value) => {
                let header = header(<F::Response as Codec>::ID, false);
                let value = Value::new::<F::Response>(value);
                core.outbox.append(&header, &value, limit, leaves)
            }
            Err(error) => {
                let header = header(<F::Error as Codec>::ID, true);
                let error = Value::new::<F::Error>(error);
                core.outbox.append(&header, &error, limit, leaves)
            }
        };
        let placed = catch_unwind(AssertUnwindSafe(|| {
            bulk::place(core, bulk::results_left(core), append)
        }));
        match placed {
            Ok(Ok((placed, leased))) => {
                if !leased.is_empty() {
                    let serving = Serving::of(core);
                    let results = bulk::serve_results(leased, serving.shared.bulk_lease);
                    serving.slots.set_results(id, results);
                }
                match placed {
                    Placed::Batched => None,
                    Placed::Long(batch) => Some(batch),
                }
            }
            Err(_) => {
                self.panicked(core, id);
                None
            }
            Ok(Err(unplaced)) => {
                refuse(core, id, &unplaced.into_status());
                None
            }
        }
    }

    /// Ends a call whose handler, or the encoder of its response, has panicked.
    pub(super) fn panicked(&self, core: &Core, id: CallId) {
        tracing::error!(method = self.info.name, "a handler panicked");
        if id.index != ONE_WAY {
            Serving::of(core).slots.end(id);
        }
        refuse(core, id, &Status::Panicked);
    }

    /// Reports a poll that has occupied the thread for too long.
    pub(super) fn report_blocking(&self, elapsed: Duration) {
        if elapsed >= BLOCKING {
            let method = self.info.name;
            tracing::warn!(
                method,
                ?elapsed,
                "a handler blocks its thread: use spawn_blocking"
            );
        }
    }
}

/// Returns the outcome of a handler, as metrics name it.
pub(super) fn outcome_of<T, E>(result: &Result<T, E>) -> Outcome {
    match result {
        Ok(_) => Outcome::Ok,
        Err(_) => Outcome::Service,
    }
}

/// Polls the future of a handler once. A future that is ready is dropped.
pub(super) fn poll<Fut: Future>(
    cell: &mut Cell<Fut>,
    cx: &mut TaskContext<'_>,
) -> Poll<Fut::Output> {
    let future = cell
        .as_mut()
        .as_pin_mut()
        .expect("the future was not dropped yet");
    let polled = future.poll(cx);
    if polled.is_ready() {
        cell.set(None);
    }
    polled
}

/// Drops a future that has panicked, whose drop may panic too.
pub(super) fn drop_quietly<Fut>(cell: Cell<Fut>) {
    drop(catch_unwind(AssertUnwindSafe(|| drop(cell))));
}

fn decode<C: Decode<Q>, Q>(codec: u8, body: Body<'_>) -> Result<Q, CodecError> {
    if codec != C::ID {
        return Err(CodecError::other_codec(codec, C::ID));
    }
    match body {
        Body::Short(bytes) => C::decode(bytes),
        Body::Long(kept) => C::decode_payload(kept.into()),
    }
}

/// Returns the future that sends a long response.
pub(super) fn send(
    core: &Arc<Core>,
    id: CallId,
    batch: Batch,
) -> impl Future<Output = ()> + Send + 'static {
    let len = batch.len();
    let (sending, core) = (send_long(Arc::clone(core), batch), Arc::clone(core));
    async move {
        match sending.await {
            Ok(()) => {}
            Err(error) if error.is_refusal() => {
                let (len, limit) = (len as u64, core.send_limit() as u64);
                refuse(&core, id, &Status::TooLarge { len, limit });
            }
            Err(error) => core.fail(error),
        }
    }
}
