#![forbid(unsafe_code)]
//! Wakeups of sleeping peers: a peer is woken only while it sleeps, and only one of its threads.
//!
//! A thread that is about to sleep stores its identity in a word that its process shares with one peer, then checks once more
//! for work. A peer that has sent a message loads the word afterwards, and wakes the thread only if the word names one. The
//! first peer thread that does so clears the word, so that others do not wake the process, too.
//!
//! Usually the engine's thread is the one that sleeps. A thread of the program that waits for an event of a completion channel
//! takes the engine's place: a wakeup by way of the engine would take twice as long. When that thread has its event, the word
//! names the engine again, which may still be asleep.
//!
//! Each pair of processes has words of its own. If a peer ends after it has cleared a word and before it has woken the thread,
//! no message of another peer is missed, and the end of the peer itself wakes the engine.

use crate::sync::{AtomicU64, Ordering, fence};

/// The shared word that names the sleeping thread of a process to one peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sleep<'a>(pub(super) &'a AtomicU64);

/// The thread of a process that sleeps and is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleeper {
    Engine,
    /// A thread that waits at a completion channel, woken by the eventfd with this number.
    Channel(usize),
}

const AWAKE: u64 = 0;
const ENGINE: u64 = 1;
/// Value of the sleep word that names the channel with number 0.
const CHANNELS: u64 = 2;

impl Sleeper {
    fn word(self) -> u64 {
        match self {
            Self::Engine => ENGINE,
            Self::Channel(number) => CHANNELS + number as u64,
        }
    }
}

impl Sleep<'_> {
    /// Stores the identity of a thread that is about to sleep in the word. The thread must check for work afterwards. The
    /// engine does not replace a thread that waits at a channel.
    pub(super) fn declare(self, sleeper: Sleeper) {
        let order = Ordering::Relaxed;
        match sleeper {
            Sleeper::Engine => {
                let _ = self.0.compare_exchange(AWAKE, ENGINE, order, order);
            }
            Sleeper::Channel(_) => self.0.store(sleeper.word(), order),
        }
        fence(Ordering::SeqCst);
    }

    /// Clears the word if it still names this thread, which is awake again.
    pub(super) fn end(self, sleeper: Sleeper) {
        let (word, order) = (sleeper.word(), Ordering::Relaxed);
        // A load first: usually the peer has woken the thread, and so has cleared the word.
        if self.0.load(order) == word {
            let _ = self.0.compare_exchange(word, AWAKE, order, order);
        }
    }

    /// Clears the word. Returns the peer's thread that has to be woken for messages that were sent before, or `None` if no
    /// thread sleeps.
    #[must_use]
    pub(super) fn interrupt(self) -> Option<Sleeper> {
        fence(Ordering::SeqCst);
        // A load first: usually the peer is awake, and a read does not take the cache line away from it.
        if self.0.load(Ordering::Relaxed) == AWAKE {
            return None;
        }
        match self.0.swap(AWAKE, Ordering::Relaxed) {
            AWAKE => None,
            ENGINE => Some(Sleeper::Engine),
            channel => Some(Sleeper::Channel((channel - CHANNELS) as usize)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ENGINE: Sleeper = Sleeper::Engine;
    const CHANNEL: Sleeper = Sleeper::Channel(1);

    #[test]
    fn only_the_first_who_finds_a_sleeper_rings() {
        let word = AtomicU64::new(0);
        let sleep = Sleep(&word);
        for sleeper in [ENGINE, CHANNEL] {
            assert_eq!(sleep.interrupt(), None);
            sleep.declare(sleeper);
            assert_eq!(sleep.interrupt(), Some(sleeper));
            assert_eq!(sleep.interrupt(), None);
            sleep.declare(sleeper);
            sleep.end(sleeper);
            assert_eq!(sleep.interrupt(), None);
        }
    }

    #[test]
    fn who_waits_at_a_channel_is_woken_and_not_the_engine() {
        let word = AtomicU64::new(0);
        let sleep = Sleep(&word);
        sleep.declare(ENGINE);
        sleep.declare(CHANNEL);
        sleep.end(ENGINE);
        sleep.declare(ENGINE);
        assert_eq!(sleep.interrupt(), Some(CHANNEL));
        sleep.declare(ENGINE);
        sleep.end(CHANNEL);
        assert_eq!(sleep.interrupt(), Some(ENGINE));
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

    /// Checks that the sleeping thread finds the work, or the other side finds that the thread sleeps.
    #[test]
    fn nobody_sleeps_over_something() {
        for sleeper in [ENGINE, CHANNEL] {
            loom::model(move || {
                let (word, task) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
                let other = {
                    let (word, task) = (Arc::clone(&word), Arc::clone(&task));
                    thread::spawn(move || {
                        task.store(1, Ordering::Relaxed);
                        Sleep(&word).interrupt()
                    })
                };
                Sleep(&word).declare(sleeper);
                let sees = task.load(Ordering::Relaxed) == 1;
                let is_woken = other.join().unwrap().is_some();
                assert!(sees || is_woken);
            });
        }
    }

    /// Checks that of two concurrent wakers at least one wakes the thread, and not both for one sleep.
    #[test]
    fn one_of_two_rings() {
        loom::model(|| {
            let word = Arc::new(AtomicU64::new(0));
            Sleep(&word).declare(ENGINE);
            let other = {
                let word = Arc::clone(&word);
                thread::spawn(move || Sleep(&word).interrupt().is_some())
            };
            let here = Sleep(&word).interrupt().is_some();
            assert!(here != other.join().unwrap());
        });
    }

    /// Checks that when a thread stops waiting at a channel while the engine falls asleep and a message arrives, one of the two
    /// threads finds the message or the engine is woken.
    #[test]
    fn who_goes_leaves_somebody_on_duty() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false)));
            Sleep(&words.0).declare(CHANNEL);
            let engine = {
                let words = Arc::clone(&words);
                thread::spawn(move || {
                    let (word, task, sleeps) = &*words;
                    sleeps.store(true, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    Sleep(word).declare(ENGINE);
                    task.load(Ordering::Relaxed) == 1
                })
            };
            let peer = {
                let words = Arc::clone(&words);
                thread::spawn(move || {
                    words.1.store(1, Ordering::Relaxed);
                    Sleep(&words.0).interrupt()
                })
            };
            let (word, task, sleeps) = &*words;
            Sleep(word).end(CHANNEL);
            fence(Ordering::SeqCst);
            if sleeps.load(Ordering::Relaxed) {
                Sleep(word).declare(ENGINE);
            }
            let sees = task.load(Ordering::Relaxed) == 1;
            let (engine_sees, woken) = (engine.join().unwrap(), peer.join().unwrap());
            assert!(sees || engine_sees || woken == Some(ENGINE));
        });
    }
}
