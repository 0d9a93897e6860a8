//! [`AnswerCache`]: the stored answers of calls that are executed at most once.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::CallNumber;
use super::history::{ConnectionClient, EvictedClients, History};
use crate::bulk;
use crate::codec::{Encode, MethodCodecs};
use crate::metadata::Metadata;
use crate::observe;
use crate::server::Call;
use crate::status::Status;

/// Maximum number of clients for which a server stores answers, which limits the memory of the
/// server. When a further client makes a call, the server drops the answers of another client and
/// keeps only its [`History`]. From the clients without a running call, the server chooses the
/// client whose last request is the oldest.
const MAX_CLIENTS: usize = 1024;

/// Maximum number of answers that a server stores for repeated requests of one client, which limits
/// the memory of the server. A further answer replaces the client's oldest answer. The server then
/// refuses a repeated request for the call of the replaced answer.
const MAX_ANSWERS: usize = 256;

/// Maximum total length of all stored answers in bytes, which limits the memory of the server.
/// Above this limit, answers are dropped, beginning with the answers of the client whose last
/// request is the oldest.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// Maximum number of executed calls of one client that the server remembers after dropping their
/// answers. The server refuses a late request for such a call instead of executing the call again.
/// Higher than [`MAX_ANSWERS`], because the number of a call needs far less memory than an answer.
const MAX_DROPPED: usize = 16 * MAX_ANSWERS;

/// Server's store of calls that must be executed at most once: the running calls, and the answers
/// of executed calls. A repeated request gets the stored answer.
#[derive(Debug)]
pub(crate) struct AnswerCache {
    /// Random number of this server process.
    instance_id: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<u128, ClientAnswers>,
    /// Number of requests so far, as a logical clock by which the client with the oldest request is
    /// found.
    clock: u64,
    evicted: EvictedClients,
    /// Number of bytes of the stored answers.
    answer_bytes: usize,
}

/// Running calls of one client, and stored answers of its executed calls.
#[derive(Debug, Default)]
struct ClientAnswers {
    /// Calls that may have been executed and are in neither `calls` nor `dropped`. Calls below its
    /// floor are not executed: the client has received their answers, or this server has dropped
    /// them.
    history: History,
    calls: BTreeMap<u64, Arc<CallEntry>>,
    /// Sequence numbers, not below the floor, of executed calls whose answers were dropped.
    dropped: BTreeSet<u64>,
    /// Logical time ([`State::clock`]) of the last request.
    last_used: u64,
}

/// Entry of the [`AnswerCache`] for one call. Either the call is still running, or its handler has
/// finished and the entry contains the answer.
#[derive(Debug)]
struct CallEntry {
    answer: watch::Sender<StoredAnswer>,
    /// Length of the answer in bytes, or 0 while the handler runs.
    len: AtomicUsize,
}

/// Content of a call's entry: the answer of the handler, or a value that states that the handler is
/// still running.
#[derive(Debug, Clone)]
enum StoredAnswer {
    /// The handler is running.
    Running,
    /// The handler has returned this `Result<T, E>`.
    Result(Arc<dyn Any + Send + Sync>),
    /// The handler has panicked.
    Panicked,
    /// The handler has returned a result that cannot be sent, for the reason in this status.
    Refused(Status),
}

/// Panic payload with which a handler's task ends its call without a result. The server then sends
/// the contained status to the client. Used only by methods with `#[rpc(once)]`.
pub(crate) struct Refusal(pub(crate) Status);

impl Default for AnswerCache {
    fn default() -> Self {
        Self {
            instance_id: RandomState::new().hash_one(()),
            state: Mutex::default(),
        }
    }
}

impl AnswerCache {
    pub(crate) fn instance_id(&self) -> u64 {
        self.instance_id
    }

    /// Creates the record of the client of a new connection. The record contains the time at which
    /// the connection was accepted. The first request adds the client's identifier. The caller must
    /// create the record before the connection receives requests.
    pub(crate) fn connection_client(&self) -> ConnectionClient {
        ConnectionClient {
            session: OnceLock::new(),
            epoch: self.state.lock().evicted.epoch(),
        }
    }

    /// Checks the request of a call that must be executed at most once. Returns `Ok` if the call
    /// can be executed now, is running, or has a stored answer. Otherwise, returns the status to be
    /// sent to the client.
    ///
    /// `metadata` is the metadata of the request. `client` is the record of the connection's
    /// client, whose identifier the first request sets. `running` is the maximum number of running
    /// calls of a client. A value below [`MAX_ANSWERS`] counts as [`MAX_ANSWERS`].
    pub(crate) fn check(
        &self,
        metadata: &Metadata,
        client: &ConnectionClient,
        running: usize,
    ) -> Result<(), Status> {
        let bad = |reason: &'static str| Err(Status::BadRequest(reason.into()));
        let Some(number) = CallNumber::of(metadata) else {
            return bad("a request of this method must have a number");
        };
        if *client.session.get_or_init(|| number.session) != number.session {
            return bad("the requests of a connection must have numbers of one client");
        }
        if number.instance_id != self.instance_id {
            return Err(Status::ExecutionUnknown);
        }
        let state = self.state.lock();
        if !state.admits(&number, client.epoch) {
            return Err(Status::ExecutionUnknown);
        }
        if !state.has_room(&number, running.max(MAX_ANSWERS)) {
            let reason = "too many calls that are executed at most once are running";
            return Err(Status::Overloaded(reason.into()));
        }
        Ok(())
    }

    /// Finds or creates the entry of the call `number`. Returns the entry, and `true` if the entry
    /// is new: the caller must then run the handler. With `false`, the entry contains the answer,
    /// or gets the answer when the running handler ends. Returns `None` if the call was perhaps
    /// executed, but has no stored answer. `epoch` is the logical time (see [`History`]) at which
    /// the connection was accepted.
    fn enter(&self, number: CallNumber, epoch: u64) -> Option<(Arc<CallEntry>, bool)> {
        let mut state = self.state.lock();
        if !state.admits(&number, epoch) {
            return None;
        }
        state.clock += 1;
        let now = state.clock;
        if !state.sessions.contains_key(&number.session) {
            let history = state.evicted.history(number.session);
            state.evicted.remove(number.session);
            state.evict_client();
            let answers = ClientAnswers {
                history,
                ..ClientAnswers::default()
            };
            state.sessions.insert(number.session, answers);
        }
        let answers = state.sessions.entry(number.session).or_default();
        answers.last_used = now;
        if let Some(known) = answers.calls.get(&number.call) {
            return Some((Arc::clone(known), false));
        }
        let freed = answers.make_room(number.floor);
        let entry = Arc::new(CallEntry {
            answer: watch::Sender::new(StoredAnswer::Running),
            len: AtomicUsize::new(0),
        });
        answers.calls.insert(number.call, Arc::clone(&entry));
        state.answer_bytes -= freed;
        Some((entry, true))
    }

    /// Stores `answer`, the answer of a call with a length of `len` bytes, in `entry`. Wakes the
    /// requests that wait for the answer. Drops old answers if the memory limit is exceeded.
    fn keep(&self, entry: &CallEntry, answer: StoredAnswer, len: usize) {
        let mut state = self.state.lock();
        // A running call is never evicted, so the entry is still stored and its bytes must be
        // counted.
        entry.len.store(len, Ordering::Relaxed);
        state.answer_bytes += len;
        entry.answer.send_replace(answer);
        state.drop_old_answers(MAX_ANSWER_BYTES);
    }
}

impl State {
    /// Returns whether the request of the call `number` can be handled. Returns `false` if the call
    /// was perhaps executed before and its answer is no longer stored. `epoch` is the logical time
    /// (see [`History`]) at which the connection of the request was accepted.
    fn admits(&self, number: &CallNumber, epoch: u64) -> bool {
        let Some(answers) = self.sessions.get(&number.session) else {
            let history = self.evicted.history(number.session);
            return history.excludes(number, epoch);
        };
        let call = number.call;
        answers.calls.contains_key(&call)
            || (answers.history.excludes(number, epoch) && !answers.dropped.contains(&call))
    }

    /// Returns whether the call `number` can be added to the store. `running` is the maximum number
    /// of running calls of a client. A new client can be added if fewer than [`MAX_CLIENTS`]
    /// clients are stored, or if a stored client without a running call can be removed. Returns
    /// `true` for a call that is already stored.
    fn has_room(&self, number: &CallNumber, running: usize) -> bool {
        let Some(answers) = self.sessions.get(&number.session) else {
            return self.sessions.len() < MAX_CLIENTS
                || self.sessions.values().any(ClientAnswers::is_idle);
        };
        let calls = &answers.calls;
        calls.contains_key(&number.call)
            || calls.len() < running
            || calls.values().filter(|entry| !entry.is_done()).count() < running
    }

    /// Removes all calls of one client if [`MAX_CLIENTS`] clients are stored, to make room for
    /// another client. From the clients without a running call, chooses the client whose last
    /// request is the oldest.
    fn evict_client(&mut self) {
        if self.sessions.len() < MAX_CLIENTS {
            return;
        }
        let idle = self
            .sessions
            .iter()
            .filter(|(_, answers)| answers.is_idle())
            .min_by_key(|(_, answers)| answers.last_used);
        let idle = idle.map(|(id, _)| *id);
        if let Some((id, answers)) = idle.and_then(|id| self.sessions.remove_entry(&id)) {
            let kept = answers.calls.values().map(|entry| entry.len());
            self.answer_bytes -= kept.sum::<usize>();
            self.evicted.insert(id, answers.final_history());
        }
    }

    /// Drops stored answers if they have more than `limit` bytes in total. Begins with the answers
    /// of the client whose last request is the oldest. Stops when at most half of `limit` is left,
    /// so that the next answers do not exceed the limit again.
    fn drop_old_answers(&mut self, limit: usize) {
        if self.answer_bytes <= limit {
            return;
        }
        let mut cache: Vec<&mut ClientAnswers> = self.sessions.values_mut().collect();
        cache.sort_unstable_by_key(|answers| answers.last_used);
        for answers in cache {
            self.answer_bytes -= answers.drop_answers(0);
            if self.answer_bytes <= limit / 2 {
                return;
            }
        }
    }
}

impl ClientAnswers {
    /// Returns `true` if the client has no running call. Only then can the client's answers be
    /// removed.
    fn is_idle(&self) -> bool {
        self.calls.values().all(|entry| entry.is_done())
    }

    /// Makes room for another answer of this client. Drops the answers with sequence numbers below
    /// `floor`, because the client has received these answers. If the client still has
    /// [`MAX_ANSWERS`] answers, also drops the oldest answer. Returns the total length of the
    /// dropped answers in bytes.
    fn make_room(&mut self, floor: u64) -> usize {
        let floor = self.raise_floor(floor);
        let mut freed = 0;
        self.calls.retain(|call, entry| {
            let is_kept = *call >= floor || !entry.is_done();
            freed += if is_kept { 0 } else { entry.len() };
            is_kept
        });
        self.dropped = self.dropped.split_off(&floor);
        freed + self.drop_answers(MAX_ANSWERS - 1)
    }

    /// Drops this client's oldest answers until at most `most` answers are left. Stores the numbers
    /// of their calls, so that repeated requests of these calls are refused. Returns the total
    /// length of the dropped answers in bytes.
    fn drop_answers(&mut self, most: usize) -> usize {
        let done = self.calls.iter().filter(|(_, entry)| entry.is_done());
        let done: Vec<u64> = done.map(|(call, _)| *call).collect();
        let excess = done.len().saturating_sub(most);
        let mut freed = 0;
        for call in &done[..excess] {
            let dropped = self.calls.remove(call);
            freed += dropped.map_or(0, |entry| entry.len());
            self.dropped.insert(*call);
        }
        while self.dropped.len() > MAX_DROPPED {
            if let Some(oldest) = self.dropped.pop_first() {
                self.raise_floor(oldest.saturating_add(1));
            }
        }
        freed
    }

    /// Raises the floor of this client to at least `floor`. The floor is a sequence number: the
    /// server executes no further call of the client with a lower number. Returns the new floor,
    /// which is higher than `floor` if the floor was already higher.
    fn raise_floor(&mut self, floor: u64) -> u64 {
        self.history.floor = self.history.floor.max(floor);
        self.history.floor
    }

    /// Returns a record of the calls of this client that the server has perhaps executed. The
    /// record replaces the client's answers, which the caller removes. The floor of the record is
    /// above all calls that the server knows: a call with a lower sequence number was perhaps
    /// executed.
    fn final_history(mut self) -> History {
        let calls = self.calls.last_key_value().map(|(call, _)| *call);
        let last = calls.max(self.dropped.last().copied());
        self.raise_floor(last.map_or(0, |last| last.saturating_add(1)));
        self.history
    }
}

impl CallEntry {
    /// Returns whether the handler of this call has finished, so that its answer is stored.
    fn is_done(&self) -> bool {
        !matches!(*self.answer.borrow(), StoredAnswer::Running)
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

/// Calls `handle`, the handler of a method with `#[rpc(once)]`, at most once for each call.
/// Repeated requests of the same call get the stored result. The handler runs in a task that
/// continues after the end of the connection. `F` selects the codecs of the method.
#[doc(hidden)]
pub async fn execute_once<F, Q, T, E, Fut>(
    mut call: Call<Q>,
    handle: impl FnOnce(Call<Q>) -> Fut,
) -> Result<T, E>
where
    F: MethodCodecs,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
    T: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
{
    let cache = call.context.answer_cache();
    let Some(number) = CallNumber::of(call.context.metadata()) else {
        // Not reachable: `AnswerCache::check` refuses a request without a number.
        return handle(call).await;
    };
    let Some((entry, is_new)) = cache.enter(number, call.context.connection_client().epoch) else {
        // Other clients have evicted this client since the request was checked.
        refuse(Status::ExecutionUnknown);
    };
    if is_new {
        // The limits must count the handler until it ends, even if the call was cancelled.
        let permits = call.take_permits();
        let context = call.context.clone();
        let (entry, handled) = (Arc::clone(&entry), AssertUnwindSafe(handle(call)));
        tokio::spawn(observe::in_current_call(async move {
            let (answer, len) = match handled.catch_unwind().await {
                Ok(result) => match len::<F, T, E>(&result) {
                    Ok(len) => (StoredAnswer::Result(Arc::new(result)), len),
                    Err(status) => (StoredAnswer::Refused(status), 0),
                },
                Err(_) => (StoredAnswer::Panicked, 0),
            };
            context.answer_cache().keep(&entry, answer, len);
            drop(permits);
        }));
    }
    let mut answers = entry.answer.subscribe();
    let answered = answers.wait_for(|answer| !matches!(answer, StoredAnswer::Running));
    // The sender lives as long as the entry, which this future owns.
    let answer = match answered.await {
        Ok(answer) => answer.clone(),
        Err(_) => StoredAnswer::Panicked,
    };
    match answer {
        StoredAnswer::Result(result) => match result.downcast_ref::<Result<T, E>>() {
            Some(result) => result.clone(),
            None => {
                let reason = "the number belongs to a call of another method";
                refuse(Status::BadRequest(reason.into()))
            }
        },
        StoredAnswer::Refused(status) => refuse(status),
        _ => resume_unwind(Box::new("the handler panicked")),
    }
}

/// Ends the task of the present call, and makes the server send `status` to the client. Unwinds
/// with a [`Refusal`] as the panic's payload, without calling the panic hook.
fn refuse(status: Status) -> ! {
    resume_unwind(Box::new(Refusal(status)))
}

/// Returns the approximate length of an answer in bytes, for the memory limit: the encoded length
/// plus the size of the Rust value. Fails if the answer contains a bulk, because such an answer
/// cannot be stored. The memory of a bulk can be far longer than the limit, and only one connection
/// can use it.
fn len<F, T, E>(result: &Result<T, E>) -> Result<usize, Status>
where
    F: MethodCodecs,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
{
    let encoded = catch_unwind(AssertUnwindSafe(|| {
        bulk::detect_bulks(|| match result {
            Ok(value) => F::Response::encoded_len(value),
            Err(error) => F::Error::encoded_len(error),
        })
    }));
    // If the value cannot be encoded, the response fails later with an error.
    let (encoded, has_bulks) = encoded.unwrap_or((Ok(0), false));
    if has_bulks {
        let reason = "a method with #[rpc(once)] cannot return a bulk";
        return Err(Status::BadResponse(reason.into()));
    }
    Ok(encoded.unwrap_or(0) + size_of_val(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(cache: &AnswerCache, session: u128, call: u64, is_repeated: bool) -> CallNumber {
        CallNumber {
            session,
            call,
            floor: 0,
            instance_id: cache.instance_id,
            is_repeated,
        }
    }

    fn check(cache: &AnswerCache, number: CallNumber) -> Result<(), Status> {
        let name = super::super::NAME;
        let metadata = Metadata::default().with(name, number.encode());
        cache.check(&metadata, &cache.connection_client(), 1)
    }

    /// Finds or creates the cache entry of the call `number`, as for a request on a new connection.
    /// Returns the entry, and `true` if the entry is new. Returns `None` if the call was perhaps
    /// executed before, but its answer is no longer stored.
    fn enter(cache: &AnswerCache, number: CallNumber) -> Option<(Arc<CallEntry>, bool)> {
        cache.enter(number, cache.connection_client().epoch)
    }

    /// Enters the call `number` into the cache. If the call is new, stores an answer for it, as if
    /// a handler had run and panicked. Returns whether the call was new.
    fn run(cache: &AnswerCache, number: CallNumber) -> bool {
        check(cache, number).unwrap();
        let (entry, is_new) = enter(cache, number).unwrap();
        if is_new {
            cache.keep(&entry, StoredAnswer::Panicked, 100);
        }
        is_new
    }

    #[test]
    fn calls_whose_answers_were_dropped_are_not_executed_again() {
        let cache = AnswerCache::default();
        for call in 0..MAX_ANSWERS as u64 + 10 {
            assert!(run(&cache, number(&cache, 1, call, false)));
        }
        let unknown = Err(Status::ExecutionUnknown);
        assert_eq!(check(&cache, number(&cache, 1, 0, true)), unknown);
        assert!(!run(&cache, number(&cache, 1, 100, true)));
        // A call that never arrived is executed when it is repeated.
        assert!(run(&cache, number(&cache, 1, 1000, true)));
    }

    #[test]
    fn acknowledged_answers_are_dropped() {
        let cache = AnswerCache::default();
        for call in 0..5 {
            assert!(run(&cache, number(&cache, 1, call, false)));
        }
        let next = CallNumber {
            floor: 4,
            ..number(&cache, 1, 5, false)
        };
        assert!(run(&cache, next));
        let state = cache.state.lock();
        let kept: Vec<u64> = state.sessions[&1].calls.keys().copied().collect();
        assert_eq!(kept, [4, 5]);
    }

    #[test]
    fn calls_of_an_evicted_client_are_not_executed_again() {
        let cache = AnswerCache::default();
        for session in 0..MAX_CLIENTS as u128 + 3 {
            assert!(run(&cache, number(&cache, session, 0, false)));
        }
        assert_eq!(cache.state.lock().sessions.len(), MAX_CLIENTS);
        let unknown = Err(Status::ExecutionUnknown);
        assert_eq!(check(&cache, number(&cache, 0, 0, true)), unknown);
        assert!(!run(&cache, number(&cache, 100, 0, true)));
    }

    #[test]
    fn requests_to_another_server_instance_are_refused() {
        let (cache, before) = (AnswerCache::default(), AnswerCache::default());
        let unknown = Err(Status::ExecutionUnknown);
        assert_eq!(check(&cache, number(&before, 1, 0, false)), unknown);
        let missing = cache.check(&Metadata::default(), &cache.connection_client(), 1);
        assert!(missing.is_err());
    }

    #[test]
    fn a_late_first_request_is_not_executed_after_its_repetition() {
        let cache = AnswerCache::default();
        assert!(run(&cache, number(&cache, 1, 5, true)));
        let next = CallNumber {
            floor: 6,
            ..number(&cache, 1, 6, false)
        };
        assert!(run(&cache, next));
        // The answer was dropped because the client has acknowledged it.
        let late = number(&cache, 1, 5, false);
        assert_eq!(check(&cache, late), Err(Status::ExecutionUnknown));
        assert!(enter(&cache, late).is_none());
        // Numbers of answers that were dropped beyond the limit are stored, too.
        for call in 7..=7 + MAX_ANSWERS as u64 {
            assert!(run(&cache, number(&cache, 1, call, false)));
        }
        let late = number(&cache, 1, 7, false);
        assert_eq!(check(&cache, late), Err(Status::ExecutionUnknown));
    }

    #[test]
    fn a_delayed_first_request_is_executed_after_many_later_requests() {
        let cache = AnswerCache::default();
        for call in 1..=4 * MAX_ANSWERS as u64 {
            assert!(run(&cache, number(&cache, 1, call, false)));
        }
        assert!(run(&cache, number(&cache, 1, 0, false)));
        for call in 4 * MAX_ANSWERS..2 * MAX_DROPPED {
            run(&cache, number(&cache, 1, call as u64 + 1, false));
        }
        let state = cache.state.lock();
        assert!(state.sessions[&1].dropped.len() <= MAX_DROPPED);
        assert!(state.sessions[&1].history.floor > 0);
    }

    #[test]
    fn repeated_calls_of_an_evicted_client_are_refused_after_it_returns() {
        let cache = AnswerCache::default();
        assert!(run(&cache, number(&cache, 0, 5, false)));
        for session in 1..=MAX_CLIENTS as u128 {
            assert!(run(&cache, number(&cache, session, 0, false)));
        }
        let next = CallNumber {
            floor: 5,
            ..number(&cache, 0, 6, false)
        };
        assert!(run(&cache, next));
        let unknown = Err(Status::ExecutionUnknown);
        assert_eq!(check(&cache, number(&cache, 0, 5, true)), unknown);
        // Stored answers are returned to repeated requests.
        assert!(!run(&cache, number(&cache, 0, 6, true)));
    }

    #[test]
    fn a_delayed_first_request_is_not_executed_after_its_client_was_evicted() {
        let cache = AnswerCache::default();
        let old = cache.connection_client();
        let on_old = |number: CallNumber| {
            let metadata = Metadata::default().with(super::super::NAME, number.encode());
            cache.check(&metadata, &old, 1)
        };
        // The first request of this call is delayed on an old connection.
        assert!(run(&cache, number(&cache, 0, 5, true)));
        for session in 1..=MAX_CLIENTS as u128 {
            assert!(run(&cache, number(&cache, session, 0, false)));
        }
        let late = number(&cache, 0, 5, false);
        assert_eq!(on_old(late), Err(Status::ExecutionUnknown));
        assert!(cache.enter(late, old.epoch).is_none());
        // The server knows that the next call was not executed, even if it is repeated.
        assert_eq!(on_old(number(&cache, 0, 6, true)), Ok(()));
        // From here on, the server does not know the calls of some evicted clients.
        let mut state = cache.state.lock();
        for session in 0..=1 << 16 {
            state
                .evicted
                .insert((1 << 64) + session, History::default());
        }
        drop(state);
        assert_eq!(on_old(late), Err(Status::ExecutionUnknown));
        // A request on a connection that was accepted since then has no earlier repetition.
        assert!(run(&cache, number(&cache, 0, 7, false)));
        assert_eq!(
            on_old(number(&cache, 0, 8, false)),
            Err(Status::ExecutionUnknown)
        );
        let repeated = number(&cache, 0, 8, true);
        assert_eq!(check(&cache, repeated), Err(Status::ExecutionUnknown));
        assert!(!run(&cache, number(&cache, 0, 7, true)));
    }

    #[test]
    fn running_calls_are_limited() {
        let cache = AnswerCache::default();
        for call in 0..MAX_ANSWERS as u64 {
            assert!(enter(&cache, number(&cache, 1, call, false)).is_some());
        }
        let refused = check(&cache, number(&cache, 1, 1000, false));
        assert!(matches!(refused, Err(Status::Overloaded(_))), "{refused:?}");
        // The repetition of a running call does not count against the limit.
        assert_eq!(check(&cache, number(&cache, 1, 0, true)), Ok(()));
        for session in 2..=MAX_CLIENTS as u128 {
            assert!(enter(&cache, number(&cache, session, 0, false)).is_some());
        }
        let refused = check(&cache, number(&cache, 0, 0, false));
        assert!(matches!(refused, Err(Status::Overloaded(_))), "{refused:?}");
    }

    #[test]
    fn the_bytes_of_answers_are_limited() {
        let cache = AnswerCache::default();
        for session in 0..3 {
            for call in 0..2 {
                assert!(run(&cache, number(&cache, session, call, false)));
            }
        }
        let mut state = cache.state.lock();
        assert_eq!(state.answer_bytes, 600);
        state.drop_old_answers(600);
        assert_eq!(state.answer_bytes, 600);
        state.drop_old_answers(599);
        assert_eq!(state.answer_bytes, 200);
        drop(state);
        let unknown = Err(Status::ExecutionUnknown);
        for session in 0..2 {
            for is_repeated in [false, true] {
                let call = number(&cache, session, 1, is_repeated);
                assert_eq!(check(&cache, call), unknown);
            }
        }
        assert!(!run(&cache, number(&cache, 2, 1, true)));
        // Answers that are dropped for other reasons reduce the number of bytes, too.
        let next = CallNumber {
            floor: 2,
            ..number(&cache, 2, 2, false)
        };
        assert!(run(&cache, next));
        assert_eq!(cache.state.lock().answer_bytes, 100);
        for session in 3..MAX_CLIENTS as u128 + 3 {
            assert!(run(&cache, number(&cache, session, 0, false)));
        }
        assert_eq!(cache.state.lock().answer_bytes, 100 * MAX_CLIENTS);
    }

    #[test]
    fn a_connection_accepts_the_numbers_of_one_client_only() {
        let cache = AnswerCache::default();
        let client = cache.connection_client();
        let check = |id| {
            let bytes = number(&cache, id, 0, false).encode();
            let metadata = Metadata::default().with(super::super::NAME, bytes);
            cache.check(&metadata, &client, 1)
        };
        assert_eq!((check(1), check(1)), (Ok(()), Ok(())));
        assert!(matches!(check(2), Err(Status::BadRequest(_))));
    }

    #[test]
    fn the_highest_call_numbers_are_handled_like_others() {
        let cache = AnswerCache::default();
        let lowest = u64::MAX - (MAX_DROPPED + 2 * MAX_ANSWERS) as u64;
        for call in lowest..=u64::MAX {
            assert!(run(&cache, number(&cache, 1, call, false)));
        }
        assert!(!run(&cache, number(&cache, 1, u64::MAX, true)));
    }
}
