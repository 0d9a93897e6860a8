//! Speed, width and physical state of a port's link.

use std::fmt;

/// The data rate of one lane of a link (IBTA 14.2.5.6, `LinkSpeedActive` and `LinkSpeedExtActive`).
#[doc(alias = "active_speed")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LinkSpeed {
    /// 2.5 Gbit/s per lane.
    Sdr,
    /// 5 Gbit/s per lane.
    Ddr,
    /// 10 Gbit/s per lane.
    Qdr,
    /// 10 Gbit/s per lane, with a more efficient encoding than QDR.
    Fdr10,
    /// 14 Gbit/s per lane.
    Fdr,
    /// 25 Gbit/s per lane.
    Edr,
    /// 50 Gbit/s per lane.
    Hdr,
    /// 100 Gbit/s per lane.
    Ndr,
    /// 200 Gbit/s per lane.
    Xdr,
    /// A value that this crate does not know.
    Unknown(u32),
}

impl LinkSpeed {
    pub(crate) fn from_raw(value: u32) -> Self {
        match value {
            1 => Self::Sdr,
            2 => Self::Ddr,
            4 => Self::Qdr,
            8 => Self::Fdr10,
            16 => Self::Fdr,
            32 => Self::Edr,
            64 => Self::Hdr,
            128 => Self::Ndr,
            256 => Self::Xdr,
            other => Self::Unknown(other),
        }
    }

    /// Returns the nominal rate of one lane in Mbit/s, or `None` if the speed is unknown.
    pub fn megabits_per_second(self) -> Option<u32> {
        Some(match self {
            Self::Sdr => 2_500,
            Self::Ddr => 5_000,
            Self::Qdr | Self::Fdr10 => 10_000,
            Self::Fdr => 14_000,
            Self::Edr => 25_000,
            Self::Hdr => 50_000,
            Self::Ndr => 100_000,
            Self::Xdr => 200_000,
            Self::Unknown(_) => return None,
        })
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sdr => "SDR",
            Self::Ddr => "DDR",
            Self::Qdr => "QDR",
            Self::Fdr10 => "FDR10",
            Self::Fdr => "FDR",
            Self::Edr => "EDR",
            Self::Hdr => "HDR",
            Self::Ndr => "NDR",
            Self::Xdr => "XDR",
            Self::Unknown(value) => return write!(f, "speed {value}"),
        })
    }
}

/// The number of lanes of a link (IBTA 14.2.5.6, `LinkWidthActive`).
#[doc(alias = "active_width")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkWidth {
    /// A single lane.
    X1,
    /// Two lanes.
    X2,
    /// Four lanes.
    X4,
    /// Eight lanes.
    X8,
    /// Twelve lanes.
    X12,
    /// A value that this crate does not know.
    Unknown(u8),
}

impl LinkWidth {
    pub(crate) fn from_raw(value: u8) -> Self {
        match value {
            1 => Self::X1,
            2 => Self::X4,
            4 => Self::X8,
            8 => Self::X12,
            16 => Self::X2,
            other => Self::Unknown(other),
        }
    }

    /// Returns the number of lanes of a link with this width, or `None` if the width is unknown.
    pub fn lanes(self) -> Option<u32> {
        Some(match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
            Self::Unknown(_) => return None,
        })
    }
}

impl fmt::Display for LinkWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X1 => f.write_str("1X"),
            Self::X2 => f.write_str("2X"),
            Self::X4 => f.write_str("4X"),
            Self::X8 => f.write_str("8X"),
            Self::X12 => f.write_str("12X"),
            Self::Unknown(value) => write!(f, "width {value}"),
        }
    }
}

/// The physical state of a port (IBTA 14.2.5.6, `PortPhysicalState`).
#[doc(alias = "phys_state")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PhysicalState {
    /// The value for "no state change", which occurs only in requests to a port (IBTA 14.2.5.6).
    NoChange,
    /// The port is in sleep state.
    Sleep,
    /// The port is searching for a port at the other side of the link.
    Polling,
    /// The port is disabled.
    Disabled,
    /// The port is negotiating the link with the port at the other side.
    Training,
    /// The link is up.
    LinkUp,
    /// The link was up and is recovering from errors.
    ErrorRecovery,
    /// The port is testing its physical layer.
    Test,
    /// A value that this crate does not know.
    Unknown(u8),
}

impl PhysicalState {
    pub(crate) fn from_raw(value: u8) -> Self {
        match value {
            0 => Self::NoChange,
            1 => Self::Sleep,
            2 => Self::Polling,
            3 => Self::Disabled,
            4 => Self::Training,
            5 => Self::LinkUp,
            6 => Self::ErrorRecovery,
            7 => Self::Test,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for PhysicalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoChange => "no change",
            Self::Sleep => "sleep",
            Self::Polling => "polling",
            Self::Disabled => "disabled",
            Self::Training => "training",
            Self::LinkUp => "link up",
            Self::ErrorRecovery => "error recovery",
            Self::Test => "test",
            Self::Unknown(value) => return write!(f, "physical state {value}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_speed_is_faster_than_the_one_before() {
        let speeds: Vec<_> = (0..9).map(|bit| LinkSpeed::from_raw(1 << bit)).collect();
        assert!(speeds.is_sorted());
        let rates = speeds
            .iter()
            .map(|speed| speed.megabits_per_second().unwrap());
        assert!(rates.is_sorted());
        assert_eq!(speeds.last(), Some(&LinkSpeed::Xdr));
        assert_eq!(LinkSpeed::from_raw(3), LinkSpeed::Unknown(3));
        assert_eq!(LinkSpeed::from_raw(512).megabits_per_second(), None);
    }

    #[test]
    fn widths_are_no_powers_of_their_bits() {
        let lanes = [1, 2, 4, 8, 16].map(|raw| LinkWidth::from_raw(raw).lanes());
        assert_eq!(lanes, [Some(1), Some(4), Some(8), Some(12), Some(2)]);
        assert_eq!(LinkWidth::from_raw(16).to_string(), "2X");
        assert_eq!(LinkWidth::from_raw(32).to_string(), "width 32");
    }
}
