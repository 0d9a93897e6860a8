//! [`Windows`]: the answers that a server keeps for calls that are executed at most once.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Number;
use crate::metadata::Metadata;
use crate::server::Call;
use crate::status::Status;

/// Maximum number of clients whose answers are kept.
const SESSIONS: usize = 1024;

/// Maximum number of answers that are kept for a client.
const ANSWERS: usize = 256;

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
}

/// Calls of one client.
#[derive(Debug, Default)]
struct Window {
    /// Lowest number of a call about which the server knows everything.
    floor: u64,
    calls: BTreeMap<u64, Arc<Entry>>,
    last_used: u64,
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

    /// Checks that a request can be executed, or answered as before.
    pub(crate) fn check(&self, metadata: &Metadata) -> Result<(), Status> {
        let Some(number) = Number::of(metadata) else {
            let reason = "a request of this method has a number";
            return Err(Status::BadRequest(reason.into()));
        };
        if number.incarnation != self.incarnation {
            return Err(Status::ExecutionUnknown);
        }
        if !number.is_repeated {
            return Ok(());
        }
        let state = self.state.lock();
        let window = state.sessions.get(&number.session);
        let is_known = window.is_some_and(|window| {
            // A call that is not below the lowest number and not there has never arrived.
            window.calls.contains_key(&number.call) || number.call >= window.floor
        });
        is_known.then_some(()).ok_or(Status::ExecutionUnknown)
    }

    /// Returns the entry of a call, and whether it is a new one, whose handler must be run.
    fn enter(&self, number: Number) -> (Arc<Entry>, bool) {
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        if !state.sessions.contains_key(&number.session) {
            state.make_room();
        }
        let window = state.sessions.entry(number.session).or_default();
        window.last_used = now;
        if let Some(known) = window.calls.get(&number.call) {
            return (Arc::clone(known), false);
        }
        window.forget(number.floor);
        let entry = Arc::new(Entry {
            answer: watch::Sender::new(Answer::Awaited),
        });
        window.calls.insert(number.call, Arc::clone(&entry));
        (entry, true)
    }
}

impl State {
    /// Drops the answers of the client that has been silent for longest.
    fn make_room(&mut self) {
        if self.sessions.len() < SESSIONS {
            return;
        }
        let idle = self
            .sessions
            .iter()
            .filter(|(_, window)| window.calls.values().all(|entry| entry.is_done()))
            .min_by_key(|(_, window)| window.last_used);
        if let Some(id) = idle.map(|(id, _)| *id) {
            self.sessions.remove(&id);
        }
    }
}

impl Window {
    /// Drops the answers that the client has, and the oldest ones beyond the limit.
    fn forget(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        let (floor, is_done) = (self.floor, |entry: &Arc<Entry>| entry.is_done());
        self.calls
            .retain(|call, entry| *call >= floor || !is_done(entry));
        while self.calls.len() >= ANSWERS {
            let oldest = self.calls.iter().find(|(_, entry)| is_done(entry));
            let Some(oldest) = oldest.map(|(call, _)| *call) else {
                return;
            };
            self.calls.remove(&oldest);
            self.floor = self.floor.max(oldest + 1);
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
pub async fn once<Q, T, E, Fut>(call: Call<Q>, handle: impl FnOnce(Call<Q>) -> Fut) -> Result<T, E>
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
    let (entry, is_new) = windows.enter(number);
    if is_new {
        let (entry, handled) = (Arc::clone(&entry), AssertUnwindSafe(handle(call)));
        tokio::spawn(async move {
            let answer = match handled.catch_unwind().await {
                Ok(result) => Answer::Kept(Arc::new(result)),
                Err(_) => Answer::Panicked,
            };
            entry.answer.send_replace(answer);
        });
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
        windows.check(&Metadata::default().with(name, number.encode()))
    }

    /// Enters a call and finishes it. Returns whether it was new.
    fn run(windows: &Windows, number: Number) -> bool {
        check(windows, number).unwrap();
        let (entry, is_new) = windows.enter(number);
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
        assert!(windows.check(&Metadata::default()).is_err());
    }
}
