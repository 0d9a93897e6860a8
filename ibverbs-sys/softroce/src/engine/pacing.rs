#![forbid(unsafe_code)]

use std::time::Duration;

/// How long the engine leaves the sockets to those who poll, before it looks whether they still do.
pub(super) const INTERVAL: Duration = Duration::from_millis(1);

/// One who polled so recently will have seen what woke the engine: to wake takes longer.
const POLLING: Duration = Duration::from_micros(5);

/// One who polled so recently is not gone, only kept from running.
const AROUND: Duration = Duration::from_micros(200);

/// How often packets must have woken the engine for nothing before it leaves them to others.
const PATIENCE: u32 = 8;

/// The most patience it learns.
const MOST_PATIENCE: u32 = 1024;

/// What the engine found when it looked after the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// A socket woke it.
    pub(crate) woken: bool,
    /// It fetched packets.
    pub(crate) fetched: bool,
    /// Somebody else was fetching.
    pub(crate) contended: bool,
    /// A program armed a completion queue since the last time.
    pub(crate) armed: bool,
    /// How long ago somebody polled; none: nobody ever did.
    pub(crate) polled: Option<Duration>,
}

/// How the engine shall wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For packets too.
    Watch,
    /// Not for packets, and no longer than this.
    Leave(Duration),
}

/// Decides whether packets wake the engine. Wrong in one direction, every packet to a program that polls costs its
/// sender a wake-up; wrong in the other, packets to one that does not poll wait for an interval. So it leaves
/// the sockets only after it was woken in vain several times in a row, and when that turns out to have been
/// wrong, it wants to see twice as much the next time.
#[derive(Debug)]
pub(crate) struct Pacing {
    away: bool,
    in_vain: u32,
    patience: u32,
    /// Intervals away that were right, since the patience last changed.
    right: u32,
}

impl Pacing {
    pub(crate) fn new() -> Self {
        Self {
            away: false,
            in_vain: 0,
            patience: PATIENCE,
            right: 0,
        }
    }

    pub(crate) fn decide(&mut self, found: Finding) -> Wait {
        let within = |limit| found.polled.is_some_and(|ago| ago <= limit);
        if found.armed {
            // Who arms is about to sleep, and what he polled before says nothing.
            self.away = false;
            self.in_vain = 0;
        } else if self.away {
            if within(AROUND) {
                self.right += 1;
                if self.right >= 64 {
                    self.right = 0;
                    self.patience = (self.patience / 2).max(PATIENCE);
                }
                return Wait::Leave(INTERVAL);
            }
            self.away = false;
            self.in_vain = 0;
            if found.fetched {
                self.right = 0;
                self.patience = (self.patience * 2).min(MOST_PATIENCE);
            }
        } else if found.contended && within(AROUND) {
            // He is at it at this moment, and this may be his processor.
            self.away = true;
            return Wait::Leave(INTERVAL);
        } else if found.contended || within(POLLING) {
            if found.woken {
                self.in_vain += 1;
            }
            if self.in_vain >= self.patience {
                self.away = true;
                return Wait::Leave(INTERVAL);
            }
        } else if found.woken && found.fetched {
            self.in_vain = 0;
        }
        Wait::Watch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Woken by a packet that nobody else was there for.
    const NEEDED: Finding = Finding {
        woken: true,
        fetched: true,
        contended: false,
        armed: false,
        polled: None,
    };

    fn ago(micros: u64) -> Option<Duration> {
        Some(Duration::from_micros(micros))
    }

    fn in_vain() -> Finding {
        Finding {
            fetched: false,
            polled: ago(1),
            ..NEEDED
        }
    }

    /// Woken in vain until it goes away; how often.
    fn provoke(pacing: &mut Pacing) -> u32 {
        let mut times = 1;
        while pacing.decide(in_vain()) == Wait::Watch {
            times += 1;
            assert!(times < 10_000);
        }
        times
    }

    #[test]
    fn it_watches_as_long_as_it_is_needed() {
        let mut pacing = Pacing::new();
        for _ in 0..1000 {
            assert_eq!(pacing.decide(NEEDED), Wait::Watch);
            // One in vain now and then does not add up.
            assert_eq!(pacing.decide(in_vain()), Wait::Watch);
        }
    }

    #[test]
    fn it_leaves_the_sockets_to_one_who_polls_and_comes_back_when_he_is_gone() {
        let mut pacing = Pacing::new();
        assert_eq!(provoke(&mut pacing), PATIENCE);
        let away = Finding {
            woken: false,
            fetched: false,
            polled: ago(100),
            ..NEEDED
        };
        assert_eq!(pacing.decide(away), Wait::Leave(INTERVAL));
        assert_eq!(
            pacing.decide(Finding {
                polled: ago(900),
                ..away
            }),
            Wait::Watch
        );
        // Nothing was lost by it, so it goes as easily the next time.
        assert_eq!(provoke(&mut pacing), PATIENCE);
    }

    #[test]
    fn it_leaves_the_sockets_at_once_to_one_who_is_at_it() {
        let mut pacing = Pacing::new();
        let contended = Finding {
            contended: true,
            ..in_vain()
        };
        let long_ago = Finding {
            polled: ago(900),
            ..contended
        };
        assert_eq!(pacing.decide(long_ago), Wait::Watch);
        assert_eq!(pacing.decide(contended), Wait::Leave(INTERVAL));
        assert_eq!(pacing.decide(long_ago), Wait::Watch);
    }

    #[test]
    fn it_comes_back_when_a_program_is_about_to_sleep() {
        let mut pacing = Pacing::new();
        provoke(&mut pacing);
        let armed = Finding {
            woken: false,
            armed: true,
            ..in_vain()
        };
        assert_eq!(pacing.decide(armed), Wait::Watch);
        assert_eq!(provoke(&mut pacing), PATIENCE);
    }

    #[test]
    fn it_learns_where_it_was_wrong_to_go_and_forgets_that() {
        let mut pacing = Pacing::new();
        let left_over = Finding {
            woken: false,
            fetched: true,
            polled: ago(900),
            ..NEEDED
        };
        for patience in [8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            assert_eq!(provoke(&mut pacing), patience);
            assert_eq!(pacing.decide(left_over), Wait::Watch);
        }
        provoke(&mut pacing);
        for _ in 0..64 * 7 {
            let away = Finding {
                woken: false,
                ..in_vain()
            };
            assert_eq!(pacing.decide(away), Wait::Leave(INTERVAL));
        }
        assert_eq!(pacing.decide(left_over), Wait::Watch);
        assert_eq!(provoke(&mut pacing), 16);
    }
}
