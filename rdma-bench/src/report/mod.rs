//! Reports of results: perftest's header and columns, and JSON.

pub mod columns;
mod general;
mod header;
pub mod json;

pub use header::{Address, Facts, Header};

/// The units of bandwidths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Units {
    /// MiB per second (perftest writes MB).
    #[default]
    Mebibytes,
    /// Gb per second.
    Gigabits,
}

/// The samples to list before the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listing {
    /// No samples.
    #[default]
    None,
    /// All but the slowest two, in ascending order.
    Sorted,
    /// All, in chronological order.
    Unsorted,
}

/// The format options of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// The units of bandwidths.
    pub units: Units,
    /// The samples to list.
    pub listing: Listing,
}
