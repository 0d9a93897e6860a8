//! How results are told: perftest's header and columns, and JSON.

pub mod columns;
mod general;
mod header;
pub mod json;

pub use header::{Address, Facts, Header};

/// The units of bandwidths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Units {
    /// MiB each second (perftest writes MB).
    #[default]
    Mebibytes,
    /// Gb each second.
    Gigabits,
}

/// Which samples to list before the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listing {
    /// None.
    #[default]
    None,
    /// All but the slowest two, from the fastest on.
    Sorted,
    /// All in the order of time.
    Unsorted,
}

/// How a report looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// The units of bandwidths.
    pub units: Units,
    /// The samples to list.
    pub listing: Listing,
}
