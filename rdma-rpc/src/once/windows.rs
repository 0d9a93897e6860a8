//! [`Windows`]: the answers that a server keeps for calls that are executed at most once.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Number;
use crate::codec::{Encode, Format};
use crate::metadata::Metadata;
use crate::observe;
use crate::server::Call;
use crate::status::Status;

/// Maximum number of clients whose answers are kept.
const SESSIONS: usize = 1024;

/// Maximum number of answers that are kept for a client.
const ANSWERS: usize = 256;

/// Number of bytes of the answers of all clients above which those of the clients that have been
/// silent for longest are dropped.
const KEPT: usize = 256 << 20;

/// Maximum number of calls of a client that are remembered without their answers.
const DROPPED: usize = 16 * ANSWERS;

/// Answers of a server.
#[derive(Debug)]
pub(crate) struct Windows {
    incarnation: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<u128, Window>,
    /// Number of requests so far, for the order of the sessions' last ones.
    clock: u64,
    /// Set once the calls of a client were forgotten.
    has_evicted: bool,
    /// Number of bytes of the answers that are kept.
    kept: usize,
}

/// Calls of one client.
#[derive(Debug, Default)]
struct Window {
    /// Lowest number of a call that may still be executed.
    floor: u64,
    calls: BTreeMap<u64, Arc<Entry>>,
    /// Numbers from `floor` on of calls that were executed and whose answers were dropped.
    dropped: BTreeSet<u64>,
    last_used: u64,
    /// Set if this window has every call of the client: no former window of the client was evicted.
    is_whole: bool,
}

/// A call that runs, or that has run.
#[derive(Debug)]
struct Entry {
    answer: watch::Sender<Answer>,
    /// Number of bytes of the answer, once there is one.
    len: AtomicUsize,
}

#[derive(Debug, Clone)]
enum Answer {
    /// The handler runs.
    Awaited,
    /// Result of the handler: `Result<T, E>`.
    Kept(Arc<dyn Any + Send + Sync>),
    Panicked,
}

impl Default for Windows {
    fn default() -> Self {
        Self {
            incarnation: RandomState::new().hash_one(()),
            state: Mutex::default(),
        }
    }
}

impl Windows {
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Checks that a request can be executed, or answered as before. `session` is that of the
    /// connection, which its first such request sets. At most `running` calls of a client run.
    pub(crate) fn check(
        &self,
        metadata: &Metadata,
        session: &OnceLock<u128>,
        running: usize,
    ) -> Result<(), Status> {
        let bad = |reason: &'static str| Err(Status::BadRequest(reason.into()));
        let Some(number) = Number::of(metadata) else {
            return bad("a request of this method has a number");
        };
        if *session.get_or_init(|| number.session) != number.session {
            return bad("the requests of a connection have numbers of one client");
        }
        if number.incarnation != self.incarnation {
            return Err(Status::ExecutionUnknown);
        }
        let state = self.state.lock();
        if !state.admits(&number) {
            return Err(Status::ExecutionUnknown);
        }
        if !state.has_room(&number, running.max(ANSWERS)) {
            let reason = "it runs as many calls that are executed at most once as it may";
            return Err(Status::Overloaded(reason.into()));
        }
        Ok(())
    }

    /// Returns the entry of a call, and whether it is a new one, whose handler must be run. Returns
    /// `None` if the call may have been executed before, and its answer is gone.
    fn enter(&self, number: Number) -> Option<(Arc<Entry>, bool)> {
        let mut state = self.state.lock();
        if !state.admits(&number) {
            return None;
        }
        state.clock += 1;
        let now = state.clock;
        if !state.sessions.contains_key(&number.session) {
            state.make_room();
        }
        let is_whole = !state.has_evicted;
        let window = state.sessions.entry(number.session);
        let window = window.or_insert_with(|| Window {
            is_whole,
            ..Window::default()
        });
        window.last_used = now;
        if let Some(known) = window.calls.get(&number.call) {
            return Some((Arc::clone(known), false));
        }
        let freed = window.forget(number.floor);
        let entry = Arc::new(Entry {
            answer: watch::Sender::new(Answer::Awaited),
            len: AtomicUsize::new(0),
        });
        window.calls.insert(number.call, Arc::clone(&entry));
        state.kept -= freed;
        Some((entry, true))
    }

    /// Keeps the answer of a call, which has `len` bytes, in its entry.
    fn keep(&self, entry: &Entry, answer: Answer, len: usize) {
        let mut state = self.state.lock();
        // A call that runs is never forgotten, so the bytes are those of an entry of a window.
        entry.len.store(len, Ordering::Relaxed);
        state.kept += len;
        entry.answer.send_replace(answer);
        state.shed(KEPT);
    }
}

impl State {
    /// Returns whether a request can be answered as before, or has certainly not been executed.
    fn admits(&self, number: &Number) -> bool {
        let Some(window) = self.sessions.get(&number.session) else {
            return !number.is_repeated || !self.has_evicted;
        };
        let call = number.call;
        // A first request may be late, too: its repetition on another connection may have overtaken
        // it.
        let is_new = call >= window.floor && !window.dropped.contains(&call);
        window.calls.contains_key(&call) || (is_new && (!number.is_repeated || window.is_whole))
    }

    /// Returns whether there is room for a call. At most `running` calls of a client run.
    fn has_room(&self, number: &Number, running: usize) -> bool {
        let Some(window) = self.sessions.get(&number.session) else {
            return self.sessions.len() < SESSIONS || self.sessions.values().any(Window::is_idle);
        };
        let calls = &window.calls;
        calls.contains_key(&number.call)
            || calls.len() < running
            || calls.values().filter(|entry| !entry.is_done()).count() < running
    }

    /// Forgets the calls of the client that has been silent for longest.
    fn make_room(&mut self) {
        if self.sessions.len() < SESSIONS {
            return;
        }
        let idle = self
            .sessions
            .iter()
            .filter(|(_, window)| window.is_idle())
            .min_by_key(|(_, window)| window.last_used);
        let idle = idle.map(|(id, _)| *id);
        if let Some(window) = idle.and_then(|id| self.sessions.remove(&id)) {
            let kept = window.calls.values().map(|entry| entry.len());
            self.kept -= kept.sum::<usize>();
            self.has_evicted = true;
        }
    }

    /// Drops answers if they have more than `limit` bytes together: those of the clients that have
    /// been silent for longest, until the half is left.
    fn shed(&mut self, limit: usize) {
        if self.kept <= limit {
            return;
        }
        let mut windows: Vec<&mut Window> = self.sessions.values_mut().collect();
        windows.sort_unstable_by_key(|window| window.last_used);
        for window in windows {
            self.kept -= window.drop_answers(0);
            if self.kept <= limit / 2 {
                return;
            }
        }
    }
}

impl Window {
    /// Returns whether no call runs.
    fn is_idle(&self) -> bool {
        self.calls.values().all(|entry| entry.is_done())
    }

    /// Drops the answers that the client has, and the oldest ones, so that there is room for
    /// another. Returns the number of their bytes.
    fn forget(&mut self, floor: u64) -> usize {
        self.floor = self.floor.max(floor);
        let (floor, mut freed) = (self.floor, 0);
        self.calls.retain(|call, entry| {
            let is_kept = *call >= floor || !entry.is_done();
            freed += if is_kept { 0 } else { entry.len() };
            is_kept
        });
        self.dropped = self.dropped.split_off(&floor);
        freed + self.drop_answers(ANSWERS - 1)
    }

    /// Drops the oldest answers, so that `most` are left. Returns the number of their bytes.
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
        while self.dropped.len() > DROPPED {
            if let Some(oldest) = self.dropped.pop_first() {
                self.floor = self.floor.max(oldest.saturating_add(1));
            }
        }
        freed
    }
}

impl Entry {
    fn is_done(&self) -> bool {
        !matches!(*self.answer.borrow(), Answer::Awaited)
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

/// Runs the handler of a call at most once, as a task that does not end with its connection.
/// Returns its result to the call and to its repetitions.
#[doc(hidden)]
pub async fn once<F, Q, T, E, Fut>(
    mut call: Call<Q>,
    handle: impl FnOnce(Call<Q>) -> Fut,
) -> Result<T, E>
where
    F: Format,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
    T: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
{
    let windows = call.context.windows();
    let Some(number) = Number::of(call.context.metadata()) else {
        // The request was checked.
        return handle(call).await;
    };
    let Some((entry, is_new)) = windows.enter(number) else {
        // Another client has taken the room of this one since the request was checked.
        resume_unwind(Box::new("the answers of the client were dropped"));
    };
    if is_new {
        // The limits count the handler as long as it runs, even if the call was cancelled.
        let gates = call.take_gates();
        let context = call.context.clone();
        let (entry, handled) = (Arc::clone(&entry), AssertUnwindSafe(handle(call)));
        tokio::spawn(observe::continued(async move {
            let (answer, len) = match handled.catch_unwind().await {
                Ok(result) => {
                    let len = len::<F, T, E>(&result);
                    (Answer::Kept(Arc::new(result)), len)
                }
                Err(_) => (Answer::Panicked, 0),
            };
            context.windows().keep(&entry, answer, len);
            drop(gates);
        }));
    }
    let mut answers = entry.answer.subscribe();
    let answered = answers.wait_for(|answer| !matches!(answer, Answer::Awaited));
    // The entry, which this future holds, has the sender.
    let answer = match answered.await {
        Ok(answer) => answer.clone(),
        Err(_) => Answer::Panicked,
    };
    match answer {
        Answer::Kept(result) => match result.downcast_ref::<Result<T, E>>() {
            Some(result) => result.clone(),
            None => resume_unwind(Box::new("a number of another method")),
        },
        _ => resume_unwind(Box::new("the handler panicked")),
    }
}

/// Returns about the number of bytes of an answer.
fn len<F, T, E>(result: &Result<T, E>) -> usize
where
    F: Format,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
{
    let encoded = catch_unwind(AssertUnwindSafe(|| match result {
        Ok(value) => F::Response::encoded_len(value),
        Err(error) => F::Error::encoded_len(error),
    }));
    // A value that cannot be encoded fails the call later.
    let encoded = encoded.unwrap_or(Ok(0)).unwrap_or(0);
    encoded + size_of_val(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(windows: &Windows, session: u128, call: u64, is_repeated: bool) -> Number {
        Number {
            session,
            call,
            floor: 0,
            incarnation: windows.incarnation,
            is_repeated,
        }
    }

    fn check(windows: &Windows, number: Number) -> Result<(), Status> {
        let name = super::super::NAME;
        let metadata = Metadata::default().with(name, number.encode());
        windows.check(&metadata, &OnceLock::new(), 1)
    }

    /// Enters a call and finishes it. Returns whether it was new.
    fn run(windows: &Windows, number: Number) -> bool {
        check(windows, number).unwrap();
        let (entry, is_new) = windows.enter(number).unwrap();
        if is_new {
            windows.keep(&entry, Answer::Panicked, 100);
        }
        is_new
    }

    #[test]
    fn answers_beyond_the_window_are_unknown_and_never_run_again() {
        let windows = Windows::default();
        for call in 0..ANSWERS as u64 + 10 {
            assert!(run(&windows, number(&windows, 1, call, false)));
        }
        let unknown = Err(Status::ExecutionUnknown);
        assert_eq!(check(&windows, number(&windows, 1, 0, true)), unknown);
        assert!(!run(&windows, number(&windows, 1, 100, true)));
        // A call that never arrived may be repeated.
        assert!(run(&windows, number(&windows, 1, 1000, true)));
    }

    #[test]
    fn answers_that_the_client_has_are_dropped() {
        let windows = Windows::default();
        for call in 0..5 {
            assert!(run(&windows, number(&windows, 1, call, false)));
        }
        let next = Number {
            floor: 4,
            ..number(&windows, 1, 5, false)
        };
        assert!(run(&windows, next));
        let state = windows.state.lock();
        let kept: Vec<u64> = state.sessions[&1].calls.keys().copied().collect();
        assert_eq!(kept, [4, 5]);
    }

    #[test]
    fn clients_beyond_the_limit_are_forgotten_and_their_calls_unknown() {
        let windows = Windows::default();
        for session in 0..SESSIONS as u128 + 3 {
            assert!(run(&windows, number(&windows, session, 0, false)));
        }
        assert_eq!(windows.state.lock().sessions.len(), SESSIONS);
        let unknown = Err(Status::ExecutionUnknown);
        assert_eq!(check(&windows, number(&windows, 0, 0, true)), unknown);
        assert!(!run(&windows, number(&windows, 100, 0, true)));
    }

    #[test]
    fn another_incarnation_refuses_everything() {
        let (windows, before) = (Windows::default(), Windows::default());
        let unknown = Err(Status::ExecutionUnknown);
        assert_eq!(check(&windows, number(&before, 1, 0, false)), unknown);
        let missing = windows.check(&Metadata::default(), &OnceLock::new(), 1);
        assert!(missing.is_err());
    }

    #[test]
    fn a_late_first_request_is_not_executed_after_its_repetition() {
        let windows = Windows::default();
        assert!(run(&windows, number(&windows, 1, 5, true)));
        let next = Number {
            floor: 6,
            ..number(&windows, 1, 6, false)
        };
        assert!(run(&windows, next));
        // Its answer was dropped, because the client has it.
        let late = number(&windows, 1, 5, false);
        assert_eq!(check(&windows, late), Err(Status::ExecutionUnknown));
        assert!(windows.enter(late).is_none());
        // Answers that were dropped beyond the limit are remembered, too.
        for call in 7..=7 + ANSWERS as u64 {
            assert!(run(&windows, number(&windows, 1, call, false)));
        }
        let late = number(&windows, 1, 7, false);
        assert_eq!(check(&windows, late), Err(Status::ExecutionUnknown));
    }

    #[test]
    fn a_slow_first_request_is_executed_after_many_later_ones() {
        let windows = Windows::default();
        for call in 1..=4 * ANSWERS as u64 {
            assert!(run(&windows, number(&windows, 1, call, false)));
        }
        assert!(run(&windows, number(&windows, 1, 0, false)));
        for call in 4 * ANSWERS..2 * DROPPED {
            run(&windows, number(&windows, 1, call as u64 + 1, false));
        }
        let state = windows.state.lock();
        assert!(state.sessions[&1].dropped.len() <= DROPPED);
        assert!(state.sessions[&1].floor > 0);
    }

    #[test]
    fn a_client_that_was_forgotten_repeats_nothing() {
        let windows = Windows::default();
        assert!(run(&windows, number(&windows, 0, 5, false)));
        for session in 1..=SESSIONS as u128 {
            assert!(run(&windows, number(&windows, session, 0, false)));
        }
        let next = Number {
            floor: 5,
            ..number(&windows, 0, 6, false)
        };
        assert!(run(&windows, next));
        let unknown = Err(Status::ExecutionUnknown);
        assert_eq!(check(&windows, number(&windows, 0, 5, true)), unknown);
        // The answers that are there are repeated.
        assert!(!run(&windows, number(&windows, 0, 6, true)));
    }

    #[test]
    fn calls_that_run_are_limited() {
        let windows = Windows::default();
        for call in 0..ANSWERS as u64 {
            assert!(windows.enter(number(&windows, 1, call, false)).is_some());
        }
        let refused = check(&windows, number(&windows, 1, 1000, false));
        assert!(matches!(refused, Err(Status::Overloaded(_))), "{refused:?}");
        // A repetition of a call that runs needs no room.
        assert_eq!(check(&windows, number(&windows, 1, 0, true)), Ok(()));
        for session in 2..=SESSIONS as u128 {
            assert!(windows.enter(number(&windows, session, 0, false)).is_some());
        }
        let refused = check(&windows, number(&windows, 0, 0, false));
        assert!(matches!(refused, Err(Status::Overloaded(_))), "{refused:?}");
    }

    #[test]
    fn the_bytes_of_answers_are_limited() {
        let windows = Windows::default();
        for session in 0..3 {
            for call in 0..2 {
                assert!(run(&windows, number(&windows, session, call, false)));
            }
        }
        let mut state = windows.state.lock();
        assert_eq!(state.kept, 600);
        state.shed(600);
        assert_eq!(state.kept, 600);
        state.shed(599);
        assert_eq!(state.kept, 200);
        drop(state);
        let unknown = Err(Status::ExecutionUnknown);
        for session in 0..2 {
            for is_repeated in [false, true] {
                let call = number(&windows, session, 1, is_repeated);
                assert_eq!(check(&windows, call), unknown);
            }
        }
        assert!(!run(&windows, number(&windows, 2, 1, true)));
        // Answers that are dropped otherwise are counted, too.
        let next = Number {
            floor: 2,
            ..number(&windows, 2, 2, false)
        };
        assert!(run(&windows, next));
        assert_eq!(windows.state.lock().kept, 100);
        for session in 3..SESSIONS as u128 + 3 {
            assert!(run(&windows, number(&windows, session, 0, false)));
        }
        assert_eq!(windows.state.lock().kept, 100 * SESSIONS);
    }

    #[test]
    fn a_connection_has_the_numbers_of_one_client() {
        let (windows, session) = (Windows::default(), OnceLock::new());
        let check = |id| {
            let bytes = number(&windows, id, 0, false).encode();
            let metadata = Metadata::default().with(super::super::NAME, bytes);
            windows.check(&metadata, &session, 1)
        };
        assert_eq!((check(1), check(1)), (Ok(()), Ok(())));
        assert!(matches!(check(2), Err(Status::BadRequest(_))));
    }

    #[test]
    fn the_highest_number_is_one_like_others() {
        let windows = Windows::default();
        let lowest = u64::MAX - (DROPPED + 2 * ANSWERS) as u64;
        for call in lowest..=u64::MAX {
            assert!(run(&windows, number(&windows, 1, call, false)));
        }
        assert!(!run(&windows, number(&windows, 1, u64::MAX, true)));
    }
}
