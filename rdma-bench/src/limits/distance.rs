//! The distance of the two processors of a test: near if they share a cache, otherwise far.

use std::fmt;

use serde::Serialize;

/// The distance of the two processors of a test: near if they share a cache, otherwise far.
/// Determined from the time that a cache line takes from one processor to the other and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Distance {
    /// The processors share a cache: the round trip of a cache line takes about 100 ns.
    Near,
    /// The processors share no cache: the round trip of a cache line takes about 400 ns.
    Far,
}

impl Distance {
    /// The shortest round trip of a cache line between two processors, in microseconds, that counts
    /// as [`Self::Far`]. This value lies between the typical times with and without a shared cache.
    const THRESHOLD: f64 = 0.2;

    /// Returns the distance of two processors: near if they share a cache, else far. `round_trip`
    /// is the time in microseconds that a cache line takes from one processor to the other and
    /// back. This time is shorter if they share a cache.
    pub fn of(round_trip: f64) -> Self {
        if round_trip < Self::THRESHOLD {
            Self::Near
        } else {
            Self::Far
        }
    }
}

impl fmt::Display for Distance {
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
    fn near_and_far_are_distinguished() {
        for (micros, distance) in [
            (0.1, Distance::Near),
            (0.12, Distance::Near),
            (0.4, Distance::Far),
        ] {
            assert_eq!(Distance::of(micros), distance);
        }
    }
}
