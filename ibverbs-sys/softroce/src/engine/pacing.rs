#![forbid(unsafe_code)]

use std::time::Duration;

/// Interval at which the engine (background thread of the device) checks whether the program still
/// polls. The engine makes these checks while arriving packets do not wake it. So after the program
/// has stopped polling, a packet waits at most for this time.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum time since the program's last poll at which a wakeup of the engine (background thread)
/// counts as useless. The polling thread is then assumed to have received the packet that woke the
/// engine. Waking the engine takes longer than this time, so the thread has polled after the packet
/// arrived.
const POLLED_JUST_NOW: Duration = Duration::from_micros(5);

/// Maximum time since the program's last poll at which the program is assumed to poll again soon.
/// The polling thread is perhaps not scheduled at the moment. Packets that the thread will receive
/// need not wake the engine (background thread).
const POLLED_RECENTLY: Duration = Duration::from_micros(200);

/// Initial number of consecutive useless wakeups after which packets no longer wake the engine
/// (background thread). Afterwards, the engine checks for packets only at intervals. A wakeup is
/// useless if a polling thread of the program receives the packet. With a lower number, packets
/// would be delayed more often after a program has polled only for a moment.
const INITIAL_USELESS_WAKEUPS: u32 = 8;

/// Upper limit of the number of consecutive useless wakeups after which packets no longer wake the
/// engine (background thread). Without a limit, a program that changes often between polling and
/// sleeping could raise the number without end. A wakeup is useless if a polling thread of the
/// program receives the packet. [`Pacing`] adapts the number to the program.
const MAX_USELESS_WAKEUPS: u32 = 1024;

/// Observations of the engine (background thread) in one iteration of its loop, from which
/// [`Pacing::decide`] derives how the engine waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Observations {
    /// Set if a packet in a watched socket, or another event, woke the engine (background thread),
    /// or if the engine fetched packets in this iteration.
    pub(crate) woken: bool,
    /// Set if the engine (background thread) fetched packets or messages in this iteration, from
    /// the sockets or from memory that peer processes share.
    pub(crate) fetched: bool,
    /// Set if another thread was receiving packets when the engine tried to receive.
    pub(crate) contended: bool,
    /// Set if the program armed a completion queue since the last iteration.
    pub(crate) armed: bool,
    /// Time since a thread of the program last polled a completion queue. `None` if no thread ever
    /// polled.
    pub(crate) polled: Option<Duration>,
}

/// The way in which the engine (background thread) waits for work next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Watch the sockets, so that packets wake the engine (background thread).
    Watch,
    /// Do not watch the sockets, and wait at most for the given duration.
    Unwatched(Duration),
}

/// State that decides whether packets wake the engine (the background thread of the device). While
/// the program polls, wakeups are useless, because a polling thread receives the packets. So after
/// several useless wakeups in a row, packets no longer wake the engine. If a packet then waits
/// because the program has stopped polling, the required number of useless wakeups doubles. After
/// 64 intervals in which the program polled, the number halves.
#[derive(Debug)]
pub(crate) struct Pacing {
    /// Set while packets do not wake the engine.
    is_unwatched: bool,
    /// Number of useless wakeups since the last useful wakeup.
    useless_wakeups: u32,
    /// Number of useless wakeups after which packets stop waking the engine.
    max_useless_wakeups: u32,
    /// Number of intervals in which the engine (background thread) did not watch the sockets and
    /// the program polled, so that the decision not to watch was right. Counted since the required
    /// number of useless wakeups last changed.
    right_intervals: u32,
}

impl Pacing {
    pub(crate) fn new() -> Self {
        Self {
            is_unwatched: false,
            useless_wakeups: 0,
            max_useless_wakeups: INITIAL_USELESS_WAKEUPS,
            right_intervals: 0,
        }
    }

    pub(crate) fn decide(&mut self, found: Observations) -> Wait {
        let within = |limit| found.polled.is_some_and(|ago| ago <= limit);
        if found.armed {
            // A program that arms a completion queue is about to sleep, so its earlier polls do not
            // count.
            self.is_unwatched = false;
            self.useless_wakeups = 0;
        } else if self.is_unwatched {
            if within(POLLED_RECENTLY) {
                self.right_intervals += 1;
                if self.right_intervals >= 64 {
                    self.right_intervals = 0;
                    self.max_useless_wakeups =
                        (self.max_useless_wakeups / 2).max(INITIAL_USELESS_WAKEUPS);
                }
                return Wait::Unwatched(CHECK_INTERVAL);
            }
            self.is_unwatched = false;
            self.useless_wakeups = 0;
            if found.fetched {
                self.right_intervals = 0;
                self.max_useless_wakeups = (self.max_useless_wakeups * 2).min(MAX_USELESS_WAKEUPS);
            }
        } else if found.contended && within(POLLED_RECENTLY) {
            // Another thread is receiving at this moment, and may need this processor.
            self.is_unwatched = true;
            return Wait::Unwatched(CHECK_INTERVAL);
        } else if found.contended || within(POLLED_JUST_NOW) {
            if found.woken {
                self.useless_wakeups += 1;
            }
            if self.useless_wakeups >= self.max_useless_wakeups {
                self.is_unwatched = true;
                return Wait::Unwatched(CHECK_INTERVAL);
            }
        } else if found.woken && found.fetched {
            self.useless_wakeups = 0;
        }
        Wait::Watch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observations after a useful wakeup of the engine (background thread): a packet woke the
    /// engine, the engine has received the packet, and no thread of the program polls.
    /// [`Pacing::decide`] derives from them how the engine waits next.
    const USEFUL_WAKEUP: Observations = Observations {
        woken: true,
        fetched: true,
        contended: false,
        armed: false,
        polled: None,
    };

    fn ago(micros: u64) -> Option<Duration> {
        Some(Duration::from_micros(micros))
    }

    fn in_vain() -> Observations {
        Observations {
            fetched: false,
            polled: ago(1),
            ..USEFUL_WAKEUP
        }
    }

    /// Reports useless wakeups to `pacing`, until it decides that packets no longer wake the engine
    /// (background thread). A wakeup is useless if a thread of the program has received the packet.
    /// Returns the number of reported wakeups.
    fn wake_until_unwatched(pacing: &mut Pacing) -> u32 {
        let mut times = 1;
        while pacing.decide(in_vain()) == Wait::Watch {
            times += 1;
            assert!(times < 10_000);
        }
        times
    }

    #[test]
    fn the_engine_polls_while_packets_arrive() {
        let mut pacing = Pacing::new();
        for _ in 0..1000 {
            assert_eq!(pacing.decide(USEFUL_WAKEUP), Wait::Watch);
            // Occasional useless wakeups do not add up.
            assert_eq!(pacing.decide(in_vain()), Wait::Watch);
        }
    }

    #[test]
    fn the_engine_leaves_the_sockets_to_a_polling_program_until_the_program_stops() {
        let mut pacing = Pacing::new();
        assert_eq!(wake_until_unwatched(&mut pacing), INITIAL_USELESS_WAKEUPS);
        let away = Observations {
            woken: false,
            fetched: false,
            polled: ago(100),
            ..USEFUL_WAKEUP
        };
        assert_eq!(pacing.decide(away), Wait::Unwatched(CHECK_INTERVAL));
        assert_eq!(
            pacing.decide(Observations {
                polled: ago(900),
                ..away
            }),
            Wait::Watch
        );
        // Not watching has delayed no packet, so the number of required wakeups stays low.
        assert_eq!(wake_until_unwatched(&mut pacing), INITIAL_USELESS_WAKEUPS);
    }

    #[test]
    fn the_engine_leaves_the_sockets_immediately_to_a_program_that_polls() {
        let mut pacing = Pacing::new();
        let contended = Observations {
            contended: true,
            ..in_vain()
        };
        let long_ago = Observations {
            polled: ago(900),
            ..contended
        };
        assert_eq!(pacing.decide(long_ago), Wait::Watch);
        assert_eq!(pacing.decide(contended), Wait::Unwatched(CHECK_INTERVAL));
        assert_eq!(pacing.decide(long_ago), Wait::Watch);
    }

    #[test]
    fn the_engine_takes_over_when_a_program_is_about_to_sleep() {
        let mut pacing = Pacing::new();
        wake_until_unwatched(&mut pacing);
        let armed = Observations {
            woken: false,
            armed: true,
            ..in_vain()
        };
        assert_eq!(pacing.decide(armed), Wait::Watch);
        assert_eq!(wake_until_unwatched(&mut pacing), INITIAL_USELESS_WAKEUPS);
    }

    #[test]
    fn a_wrong_decision_delays_the_next_one_for_a_limited_time() {
        let mut pacing = Pacing::new();
        let left_over = Observations {
            woken: false,
            fetched: true,
            polled: ago(900),
            ..USEFUL_WAKEUP
        };
        for wakeups in [8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            assert_eq!(wake_until_unwatched(&mut pacing), wakeups);
            assert_eq!(pacing.decide(left_over), Wait::Watch);
        }
        wake_until_unwatched(&mut pacing);
        for _ in 0..64 * 7 {
            let away = Observations {
                woken: false,
                ..in_vain()
            };
            assert_eq!(pacing.decide(away), Wait::Unwatched(CHECK_INTERVAL));
        }
        assert_eq!(pacing.decide(left_over), Wait::Watch);
        assert_eq!(wake_until_unwatched(&mut pacing), 16);
    }
}
