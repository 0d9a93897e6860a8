//! The reports of results: text with perftest's header and columns, and JSON.

pub mod columns;
mod general;
mod header;
pub mod json;

pub use header::{Address, Header, Properties};

/// The unit in which a report gives bandwidths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Units {
    /// MiB per second (perftest writes MB).
    #[default]
    Mebibytes,
    /// Gb per second.
    Gigabits,
}

/// A selection of the latency samples that a report lists, one per line, before its summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listing {
    /// No samples.
    #[default]
    None,
    /// All samples except the slowest two, in ascending order.
    Sorted,
    /// All samples, in chronological order.
    Unsorted,
}

/// The options that determine the form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// The unit in which the report gives bandwidths.
    pub units: Units,
    /// The latency samples that the report lists.
    pub listing: Listing,
}
