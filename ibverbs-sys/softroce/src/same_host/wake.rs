#![forbid(unsafe_code)]
//! Wakeups of sleeping peers: a peer is woken only while it sleeps, and only one of its threads.
//!
//! A thread that is about to sleep stores its identity in a word that its process shares with one
//! peer, and then checks once more for work. A peer that has sent a message loads the word
//! afterwards, and wakes the thread only if the word names one. The first thread of the peer that
//! does so clears the word, so that the others do not wake the process again.
//!
//! Usually the engine (background thread) is the thread that sleeps. While a thread of the program
//! waits for an event of a completion channel, the word names that thread instead of the engine: a
//! wakeup that goes through the engine would take twice as long. When the thread has its event, the
//! word names the engine again, which may still be asleep.
//!
//! Each pair of processes has its own words. If a peer ends after it has cleared a word and before
//! it has woken the thread, no message of another peer is missed, and the engine is woken because
//! the peer has ended.

use crate::sync::{AtomicU8, AtomicU64, Ordering, fence};

/// Shared word in which a process publishes its sleeping thread to one peer. The value is [`AWAKE`]
/// if no thread sleeps, [`ENGINE`] if the background thread sleeps, or at least [`FIRST_CHANNEL`]
/// if a thread at a completion channel sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct SleepWord<'a>(pub(super) &'a AtomicU64);

/// The thread of a process that sleeps, and that a peer must wake after it has sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleeper {
    Engine,
    /// A thread that waits at the completion channel whose eventfd has this index.
    Channel(usize),
}

/// Value of a [`SleepWord`] if no thread of its process sleeps. The peer then wakes no thread.
const AWAKE: u64 = 0;
/// Value of a [`SleepWord`] while the engine (background thread) of its process sleeps. A peer that
/// sends a message then wakes the engine.
const ENGINE: u64 = 1;
/// First value of a [`SleepWord`] for threads that wait at a completion channel. If a thread waits
/// at the channel whose eventfd has the index `i`, the value of the word is this value plus `i`.
const FIRST_CHANNEL: u64 = 2;

impl Sleeper {
    fn word(self) -> u64 {
        match self {
            Self::Engine => ENGINE,
            Self::Channel(number) => FIRST_CHANNEL + number as u64,
        }
    }
}

impl SleepWord<'_> {
    /// Stores the thread `sleeper`, which is about to sleep, in this shared word, so that the peer
    /// wakes the thread. Afterwards the thread must check for work again before it sleeps. If the
    /// word already names a thread of the program, the engine (background thread) is not stored.
    pub(super) fn store_sleeper(self, sleeper: Sleeper) {
        let order = Ordering::Relaxed;
        match sleeper {
            Sleeper::Engine => {
                let _ = self.0.compare_exchange(AWAKE, ENGINE, order, order);
            }
            Sleeper::Channel(_) => self.0.store(sleeper.word(), order),
        }
        fence(Ordering::SeqCst);
    }

    /// Clears this sleep word if it names the thread `sleeper`, because this thread is awake again.
    /// The peer then does not wake the thread.
    pub(super) fn end(self, sleeper: Sleeper) {
        let (word, order) = (sleeper.word(), Ordering::Relaxed);
        // The word is loaded first: usually the peer has woken the thread, and so has cleared the
        // word.
        if self.0.load(order) == word {
            let _ = self.0.compare_exchange(word, AWAKE, order, order);
        }
    }

    /// Clears this sleep word if it names a thread at a completion channel. The peer then does not
    /// wake this thread.
    pub(super) fn clear_channel(self) {
        let order = Ordering::Relaxed;
        let is_channel = |word| (word >= FIRST_CHANNEL).then_some(AWAKE);
        let _ = self.0.fetch_update(order, order, is_channel);
    }

    /// Returns the sleeping thread that is named in this word of a peer, and clears the word, so
    /// that no second thread wakes the peer. Returns `None` if no thread of the peer sleeps. The
    /// caller must wake the returned thread, so that it receives the messages that the caller has
    /// sent before.
    #[must_use]
    pub(super) fn take_sleeper(self) -> Option<Sleeper> {
        fence(Ordering::SeqCst);
        // The word is loaded first: usually the peer is awake, and a load does not take the cache
        // line away from it.
        if self.0.load(Ordering::Relaxed) == AWAKE {
            return None;
        }
        match self.0.swap(AWAKE, Ordering::Relaxed) {
            AWAKE => None,
            ENGINE => Some(Sleeper::Engine),
            channel => Some(Sleeper::Channel((channel - FIRST_CHANNEL) as usize)),
        }
    }
}

/// Flag that is set after the program has requested an event of a completion queue with a
/// non-blocking channel. While the flag is set, peers wake the program instead of the engine
/// (background thread). The program may be busy, so the engine then checks for messages at
/// intervals.
#[derive(Debug)]
pub(super) struct Armed(AtomicU8);

/// Value of [`Armed`] if the flag is not set: the program has not recently requested an event of a
/// completion queue with a non-blocking channel. The engine (background thread) need not check for
/// messages at intervals.
const UNARMED: u8 = 0;
/// Value of [`Armed`] if the program requested an event of a completion queue in an earlier check
/// interval of the engine (background thread), but not in the present interval.
const ARMED_BEFORE: u8 = 1;
/// Value of [`Armed`] if the program has requested an event of a completion queue in the present
/// check interval of the engine (background thread).
const ARMED: u8 = 2;

impl Armed {
    /// Records that the program has requested an event of a completion queue with a non-blocking
    /// channel. Afterwards the caller must make peers wake the channel
    /// ([`SleepWord::store_sleeper`]). Returns `true` if the flag was not set before. The caller
    /// must then also wake the engine (background thread), because it can be sleeping without a
    /// time limit.
    #[must_use]
    pub(super) fn arm(&self) -> bool {
        self.0.swap(ARMED, Ordering::SeqCst) == UNARMED
    }

    /// Returns whether this flag is set, because the program has requested an event of a completion
    /// queue. The engine (background thread) must then check for messages at intervals.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) != UNARMED
    }

    /// Ends the present check interval of the engine (background thread), which is the caller. If
    /// the flag is set and the program has requested no event in this interval, clears the flag and
    /// returns `true`. The engine must then [remove](SleepWord::clear_channel) the channel from the
    /// shared words before the engine stores itself as asleep in these words.
    #[must_use]
    pub(super) fn end_interval(&self) -> bool {
        let next = |state: u8| state.checked_sub(1);
        let ended = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        ended == Ok(ARMED_BEFORE)
    }
}

impl Default for Armed {
    fn default() -> Self {
        Self(AtomicU8::new(UNARMED))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ENGINE: Sleeper = Sleeper::Engine;
    const CHANNEL: Sleeper = Sleeper::Channel(1);

    #[test]
    fn only_the_first_sender_wakes_a_sleeping_thread() {
        let word = AtomicU64::new(0);
        let sleep = SleepWord(&word);
        for sleeper in [ENGINE, CHANNEL] {
            assert_eq!(sleep.take_sleeper(), None);
            sleep.store_sleeper(sleeper);
            assert_eq!(sleep.take_sleeper(), Some(sleeper));
            assert_eq!(sleep.take_sleeper(), None);
            sleep.store_sleeper(sleeper);
            sleep.end(sleeper);
            assert_eq!(sleep.take_sleeper(), None);
        }
    }

    #[test]
    fn the_thread_at_a_channel_is_woken_instead_of_the_engine() {
        let word = AtomicU64::new(0);
        let sleep = SleepWord(&word);
        sleep.store_sleeper(ENGINE);
        sleep.store_sleeper(CHANNEL);
        sleep.end(ENGINE);
        sleep.store_sleeper(ENGINE);
        assert_eq!(sleep.take_sleeper(), Some(CHANNEL));
        sleep.store_sleeper(ENGINE);
        sleep.end(CHANNEL);
        assert_eq!(sleep.take_sleeper(), Some(ENGINE));
    }

    #[test]
    fn a_channel_is_removed_after_an_interval_without_arming() {
        let armed = Armed::default();
        assert!(!armed.end_interval());
        assert!(armed.arm());
        assert!(!armed.arm());
        assert!(!armed.end_interval());
        assert!(!armed.arm());
        assert!(!armed.end_interval());
        assert!(armed.is_set());
        assert!(armed.end_interval());
        assert!(!armed.is_set());
        assert!(armed.arm());

        let word = AtomicU64::new(0);
        let sleep = SleepWord(&word);
        for (sleeper, after) in [(CHANNEL, None), (ENGINE, Some(ENGINE))] {
            sleep.store_sleeper(sleeper);
            sleep.clear_channel();
            assert_eq!(sleep.take_sleeper(), after);
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    const ENGINE: Sleeper = Sleeper::Engine;
    const CHANNEL: Sleeper = Sleeper::Channel(0);

    /// Checks that a thread does not miss work that another thread adds while the first thread goes
    /// to sleep. Either the first thread must find the work before it sleeps, or the other thread
    /// must find that it has to wake the first thread.
    #[test]
    fn no_message_is_missed_by_a_sleeping_thread() {
        for sleeper in [ENGINE, CHANNEL] {
            loom::model(move || {
                let (word, task) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
                let other = {
                    let (word, task) = (Arc::clone(&word), Arc::clone(&task));
                    thread::spawn(move || {
                        task.store(1, Ordering::Relaxed);
                        SleepWord(&word).take_sleeper()
                    })
                };
                SleepWord(&word).store_sleeper(sleeper);
                let sees = task.load(Ordering::Relaxed) == 1;
                let is_woken = other.join().unwrap().is_some();
                assert!(sees || is_woken);
            });
        }
    }

    /// Checks the case that two threads of the peer try to wake a sleeping thread at the same time:
    /// exactly one of them must wake it.
    #[test]
    fn only_one_of_two_senders_wakes_the_thread() {
        loom::model(|| {
            let word = Arc::new(AtomicU64::new(0));
            SleepWord(&word).store_sleeper(ENGINE);
            let other = {
                let word = Arc::clone(&word);
                thread::spawn(move || SleepWord(&word).take_sleeper().is_some())
            };
            let here = SleepWord(&word).take_sleeper().is_some();
            assert!(here != other.join().unwrap());
        });
    }

    /// Checks that no message is missed if it arrives while a thread stops waiting at a channel and
    /// the engine (background thread) falls asleep. Either a thread must find the message, or the
    /// engine must be woken.
    #[test]
    fn no_message_is_missed_when_a_thread_leaves_the_channel() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false)));
            SleepWord(&words.0).store_sleeper(CHANNEL);
            let engine = {
                let words = Arc::clone(&words);
                thread::spawn(move || {
                    let (word, task, sleeps) = &*words;
                    sleeps.store(true, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    SleepWord(word).store_sleeper(ENGINE);
                    task.load(Ordering::Relaxed) == 1
                })
            };
            let peer = {
                let words = Arc::clone(&words);
                thread::spawn(move || {
                    words.1.store(1, Ordering::Relaxed);
                    SleepWord(&words.0).take_sleeper()
                })
            };
            let (word, task, sleeps) = &*words;
            SleepWord(word).end(CHANNEL);
            fence(Ordering::SeqCst);
            if sleeps.load(Ordering::Relaxed) {
                SleepWord(word).store_sleeper(ENGINE);
            }
            let sees = task.load(Ordering::Relaxed) == 1;
            let (engine_sees, woken) = (engine.join().unwrap(), peer.join().unwrap());
            assert!(sees || engine_sees || woken == Some(ENGINE));
        });
    }
    /// Checks that no message is missed if it arrives while the program requests an event of a
    /// completion queue and the engine (background thread) checks for messages. Either a thread
    /// must find the message or be woken, or the engine must check again.
    #[test]
    fn no_message_is_left_behind_by_an_armed_channel() {
        for was_armed in [false, true] {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = Some(3);
            model.check(move || {
                let shared = Arc::new((AtomicU64::new(0), AtomicU64::new(0), Armed::default()));
                SleepWord(&shared.0).store_sleeper(ENGINE);
                if was_armed {
                    let _ = shared.2.arm();
                    assert!(!shared.2.end_interval());
                    SleepWord(&shared.0).store_sleeper(CHANNEL);
                }
                let engine = {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        let (word, task, armed) = &*shared;
                        if armed.end_interval() {
                            SleepWord(word).clear_channel();
                        }
                        let looks_again = armed.is_set();
                        SleepWord(word).store_sleeper(ENGINE);
                        looks_again || task.load(Ordering::Relaxed) == 1
                    })
                };
                let peer = {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        shared.1.store(1, Ordering::Relaxed);
                        SleepWord(&shared.0).take_sleeper().is_some()
                    })
                };
                let (word, task, armed) = &*shared;
                let wakes_engine = armed.arm();
                SleepWord(word).store_sleeper(CHANNEL);
                let sees = task.load(Ordering::Relaxed) == 1;
                let (engine_sees, woken) = (engine.join().unwrap(), peer.join().unwrap());
                assert!(wakes_engine || sees || engine_sees || woken);
            });
        }
    }
}
