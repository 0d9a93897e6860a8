//! [`Windows`]: the answers that a server keeps for calls that are executed at most once.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Number;
use crate::metadata::Metadata;
use crate::observe;
use crate::server::Call;
use crate::status::Status;

/// Maximum number of clients whose answers are kept.
const SESSIONS: usize = 1024;

/// Maximum number of answers that are kept for a client.
const ANSWERS: usize = 256;

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

    /// Checks that a request can be executed, or answered as before. `session` is that of the connection, which its
    /// first such request sets. At most `running` calls of a client run.
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

    /// Returns the entry of a call, and whether it is a new one, whose handler must be run. Returns `None` if the
    /// call may have been executed before, and its answer is gone.
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
        window.forget(number.floor);
        let entry = Arc::new(Entry {
            answer: watch::Sender::new(Answer::Awaited),
        });
        window.calls.insert(number.call, Arc::clone(&entry));
        Some((entry, true))
    }
}

impl State {
    /// Returns whether a request can be answered as before, or has certainly not been executed.
    fn admits(&self, number: &Number) -> bool {
        let Some(window) = self.sessions.get(&number.session) else {
            return !number.is_repeated || !self.has_evicted;
        };
        let call = number.call;
        // A first request may be late, too: its repetition on another connection may have overtaken it.
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
        if let Some(id) = idle.map(|(id, _)| *id) {
            self.sessions.remove(&id);
            self.has_evicted = true;
        }
    }
}

impl Window {
    /// Returns whether no call runs.
    fn is_idle(&self) -> bool {
        self.calls.values().all(|entry| entry.is_done())
    }

    /// Drops the answers that the client has, and the oldest ones beyond the limit.
    fn forget(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        let floor = self.floor;
        self.calls
            .retain(|call, entry| *call >= floor || !entry.is_done());
        self.dropped = self.dropped.split_off(&floor);
        let done = self.calls.iter().filter(|(_, entry)| entry.is_done());
        let done: Vec<u64> = done.map(|(call, _)| *call).collect();
        let excess = (done.len() + 1).saturating_sub(ANSWERS);
        for call in &done[..excess] {
            self.calls.remove(call);
            self.dropped.insert(*call);
        }
        while self.dropped.len() > DROPPED {
            if let Some(oldest) = self.dropped.pop_first() {
                self.floor = oldest.saturating_add(1);
            }
        }
    }
}

impl Entry {
    fn is_done(&self) -> bool {
        !matches!(*self.answer.borrow(), Answer::Awaited)
    }
}

/// Runs the handler of a call at most once, as a task that does not end with its connection. Returns its result to
/// the call and to its repetitions.
#[doc(hidden)]
pub async fn once<Q, T, E, Fut>(
    mut call: Call<Q>,
    handle: impl FnOnce(Call<Q>) -> Fut,
) -> Result<T, E>
where
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
        let (entry, handled) = (Arc::clone(&entry), AssertUnwindSafe(handle(call)));
        tokio::spawn(observe::continued(async move {
            let answer = match handled.catch_unwind().await {
                Ok(result) => Answer::Kept(Arc::new(result)),
                Err(_) => Answer::Panicked,
            };
            entry.answer.send_replace(answer);
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
        entry.answer.send_replace(Answer::Panicked);
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
