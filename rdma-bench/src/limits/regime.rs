//! The distance of the two processors of a test: near if they share a cache, else far.

use std::fmt;

use serde::Serialize;

/// The distance of the two processors of a test, derived from the round trip of a cache line between
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Regime {
    /// The processors share a cache: the round trip of a cache line takes about 100 ns.
    Near,
    /// The processors share no cache: the round trip of a cache line takes about 400 ns.
    Far,
}

impl Regime {
    /// The round trip, in microseconds, that separates [`Self::Near`] from [`Self::Far`].
    const BETWEEN: f64 = 0.2;

    /// Returns the distance that the given round trip of a cache line, in microseconds, indicates.
    pub fn of(round_trip: f64) -> Self {
        if round_trip < Self::BETWEEN {
            Self::Near
        } else {
            Self::Far
        }
    }
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Near => "near",
            Self::Far => "far",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far_are_told_apart() {
        for (micros, regime) in [
            (0.1, Regime::Near),
            (0.12, Regime::Near),
            (0.4, Regime::Far),
        ] {
            assert_eq!(Regime::of(micros), regime);
        }
    }
}
