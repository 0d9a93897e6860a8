#![forbid(unsafe_code)]
//! Waking a process that sleeps, and no other; and of its threads the one that sleeps for it.
//!
//! A thread that is about to sleep says so in a word that its process shares with one peer, then looks once more
//! whether there is something to do. Who gives it something to do looks at the word afterwards, and rings its bell only if
//! it says that somebody sleeps; the first who does so takes that back, so that others do not ring, too.
//!
//! Mostly it is the engine that sleeps. But a thread of the program that waits for an event of a completion channel takes
//! its place: it is what all is done for, and to have the engine wake it would take twice as long. When it has
//! its event, the engine is on duty again, asleep as it is.
//!
//! Each pair of processes has words of its own. A peer that dies between taking the word back and
//! ringing leaves nobody asleep for whom another peer has something: and its own end wakes.

use crate::sync::{AtomicU64, Ordering, fence};

/// Says whether a process sleeps, to one peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sleep<'a>(pub(super) &'a AtomicU64);

/// Who sleeps for a process, and is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleeper {
    Engine,
    /// Who waits at a channel: the bell with this number is its own.
    Channel(usize),
}

const AWAKE: u64 = 0;
const ENGINE: u64 = 1;
/// The first channel.
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
    /// Somebody is about to sleep. Afterwards he has to look whether there is something to do, with
    /// loads that come later than this. The engine does not take the place of one who waits at a channel.
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

    /// He is awake again.
    pub(super) fn end(self, sleeper: Sleeper) {
        let (word, order) = (sleeper.word(), Ordering::Relaxed);
        // A load first: mostly he was woken, and this was taken back.
        if self.0.load(order) == word {
            let _ = self.0.compare_exchange(word, AWAKE, order, order);
        }
    }

    /// Who at the peer has to be woken for what was stored before.
    #[must_use]
    pub(super) fn interrupt(self) -> Option<Sleeper> {
        fence(Ordering::SeqCst);
        // A load first: this line is the other side's, and mostly says that nothing is to be done.
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

    /// The one sees what there is to do, or the other sees that it sleeps.
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

    /// Two who come at once: at least one rings, and not both for one sleep.
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

    /// One who waited at a channel goes, while the engine falls asleep and something comes: one of the two sees it,
    /// or the engine is woken.
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
