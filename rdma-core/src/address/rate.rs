//! Static rates, which limit the rate of packets to a destination.

use std::fmt;

use crate::ffi::{megabits_of_rate, rate_of_megabits};

/// A limit for the rate of packets to a destination. A program sets the limit for a path that
/// contains a link that is slower than the local port. The value is a code of IBTA volume 1, table
/// 224 (`ibv_rate`).
#[doc(alias = "ibv_rate")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StaticRate(pub u8);

impl StaticRate {
    /// The default rate: only the rate of the port limits the packets.
    #[doc(alias = "IBV_RATE_MAX")]
    pub const PORT: Self = Self(0);

    /// Returns the code that stands for exactly `megabits` Mbit/s; `None` if there is no such code.
    ///
    /// ```
    /// # use rdma_core::address::StaticRate;
    /// let rate = StaticRate::from_megabits(10_000).expect("a rate");
    /// assert_eq!(rate.megabits(), Some(10_000));
    /// assert_eq!(StaticRate::from_megabits(12_345), None);
    /// ```
    #[doc(alias = "mbps_to_ibv_rate")]
    pub fn from_megabits(megabits: u32) -> Option<Self> {
        rate_of_megabits(megabits).map(Self)
    }

    /// Returns the rate in Mbit/s. Returns `None` for [`Self::PORT`], which sets no limit, and for
    /// an unknown code.
    #[doc(alias = "ibv_rate_to_mbps")]
    pub fn megabits(self) -> Option<u32> {
        megabits_of_rate(self.0)
    }
}

impl fmt::Debug for StaticRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StaticRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (*self, self.megabits()) {
            (Self::PORT, _) => f.write_str("the port's rate"),
            (_, Some(megabits)) => write!(f, "{megabits} Mbit/s"),
            (Self(code), None) => write!(f, "rate {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_codes_and_megabits() {
        let slowest = StaticRate::from_megabits(2_500).unwrap();
        assert_eq!(slowest, StaticRate(2));
        assert_eq!(slowest.to_string(), "2500 Mbit/s");
        assert_eq!(
            StaticRate(16).megabits(),
            Some(103_125),
            "four lanes of EDR"
        );
        assert_eq!(StaticRate::PORT.megabits(), None);
        assert_eq!(StaticRate::default().to_string(), "the port's rate");
        assert_eq!(StaticRate(1).to_string(), "rate 1");
        for megabits in [0, 1, u32::MAX] {
            assert_eq!(StaticRate::from_megabits(megabits), None);
        }
    }
}
